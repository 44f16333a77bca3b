"""The cases of the wire corpus that are about MCP servers, against `acpd-agent` itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT, SHARED

CASES = ("42_mcp_silent", "43_mcp_exits", "44_mcp_bad_config", "45_mcp_secret_header")


@pytest.mark.e2e
@pytest.mark.parametrize("case", CASES)
def test_servers_that_are_none(case: str) -> None:
    """A server that never answers, exits, does not exist, is malformed or has a secret costs nothing but itself."""
    corpus = SHARED / "corpus"
    command = [sys.executable, str(corpus / "play.py"), str(corpus / "rpc" / f"{case}.ndjson"), "--"]
    agent = [sys.executable, "-m", "acpd.native.entry", "--offline"]
    done = subprocess.run([*command, *agent], cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
