"""What acpd's own process imports: start-up time is a feature, and a model SDK has no business in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.paths import ROOT

HEAVY = {
    *("acp", "anthropic", "httpx", "httpx2", "mcp", "mcp_types", "openai"),
    *("pydantic", "pydantic_ai", "pydantic_core", "rich", "starlette", "uvicorn"),
}
"""700 ms and more, where together acpd takes about 100."""
NEEDLESS = {"argparse", "email", "importlib.metadata", "platformdirs", "tomllib", "urllib.request", "xml"}
"""Of no use to an editor that starts `acpd` with no arguments and no file."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every module that was imported until session/new was answered, as Python itself reports it.

    Those that `importlib.import_module` was asked for are not in the report, but what they import is.
    """
    home = tmp_path_factory.mktemp("home")
    path = os.pathsep.join((str(ROOT), str(ROOT / "backends")))
    command = [sys.executable, "-X", "importtime", "-P", "-m", "acpd.cli.entry"]
    with Client(command, home, env={"PYTHONPATH": path}) as client:
        client.initialize()
        client.new(home)
    return _modules(client.stderr_path)


def _modules(report: Path) -> set[str]:
    lines = report.read_text().splitlines()
    return {line.split("|")[2].strip() for line in lines if line.startswith("import time:") and line.count("|") == 2}


def test_the_report_is_of_the_whole_process(imported: set[str]) -> None:
    """The report has what acpd cannot do without, so what it lacks was not imported."""
    assert {"acpd.daemon", "acpd.wire.envelope", "acpd_backends.jsonl", "msgspec", "asyncio"} <= imported


def test_no_model_sdk_and_no_web_framework(imported: set[str]) -> None:
    """After session/new neither mcp nor pydantic nor anything of their kind is loaded."""
    assert set() == {name for name in imported if name.split(".")[0] in HEAVY}


def test_nothing_needless(imported: set[str]) -> None:
    """A start without arguments and without a file loads no argument parser, no TOML, no entry points."""
    assert set() == imported & NEEDLESS


def test_search_is_imported_by_who_searches(imported: set[str]) -> None:
    """Its modules come with the first turn that is saved, or the first request for them: a start has none of them."""
    names = {"acpd.storage.documents", "acpd.storage.hits", "acpd.storage.queries"}
    assert set() == imported & (names | {f"acpd_backends.{name}" for name in ("search", "snippets", "tokens")})


def test_acpd_itself_is_light() -> None:
    """`import acpd` loads nothing but a part of the standard library: what a name costs is paid where it is used."""
    code = "import acpd; print(*({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'}))"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}"]
    assert "acpd\n" == subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_floors_know_every_module() -> None:
    """The contracts of pyproject.toml that list modules have not forgotten one: a new module is in them or in none."""
    modules = {
        path.name.removesuffix(".py")
        for path in (ROOT / "acpd").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    modules = {f"acpd.{name}" for name in modules - {"__init__"}}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = {contract["id"]: contract for contract in contracts}
    hidden = set(listed["backends-see-the-contract"]["forbidden_modules"])
    assert modules - {"acpd.wire", "acpd.storage", "acpd.errors"} == hidden
    assert modules - {"acpd.api", "acpd.calling", "acpd.native", "acpd.__main__"} == set(listed["light"]["source_modules"])
