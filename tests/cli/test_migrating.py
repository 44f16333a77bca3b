"""`acpd migrate`: what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

from tests.cli import acpd
from tests.cli.test_stored import Shelf, conversation


def test_to_another_backend(tmp_path: Path) -> None:
    """It says what it would do, does it, proves it, names what was kept, and gives the lines for the configuration."""
    shelf = Shelf(tmp_path)
    for name in ("one", "two"):
        shelf.add(name, conversation())
    dry, done, said, again = acpd.run_many(
        tmp_path,
        ["migrate", "--to", "json", "--dry-run"],
        ["migrate", "--to", "json"],
        ["--backend", "json", "ls", "--all", "--json"],
        ["migrate", "--to", "json"],
    )
    data = tmp_path / "data"
    assert (0, f"would migrate 2 sessions of {data} from workspace to json\n", "") == dry
    assert (0, "") == (done.code, done.err)
    assert "compared byte for byte: 2 logs, 0 blobs, 0 states\n" in done.out
    assert (
        f"kept as it was, until you remove it: {data}/agents/*/context, {data}/agents/*/sessions, {data}/agents/*/memory\n"
        in done.out
    )
    assert done.out.endswith(f'now say so in {tmp_path}/config/acpd.toml:\n\n[storage]\nbackend = "json"\n')
    assert 2 == said.out.count('"title":"About hello"')
    assert 0 == again.code


def test_what_is_refused(tmp_path: Path) -> None:
    """A backend that is not there, or that is the one in use, is a wrong command line; no store is nothing to do."""
    nothing, odd, same = acpd.run_many(
        tmp_path, ["migrate", "--to", "json"], ["migrate", "--to", "paper"], ["migrate", "--to", "workspace"]
    )
    assert (0, "") == (nothing.code, nothing.err)
    assert "nothing to migrate" in nothing.out
    assert (2, "") == odd[:2]
    assert "unknown storage backend 'paper'" in odd.err
    assert (2, "") == same[:2]
    assert "the store is workspace already" in same.err
