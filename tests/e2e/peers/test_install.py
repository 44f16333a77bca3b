"""The pins of the peers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.peers import install
from tests.e2e.peers.install import GROUPS, PINS, Installed, InstallError


@pytest.mark.parametrize("group", GROUPS)
def test_pins_name_versions_and_no_host(group: str) -> None:
    """Every version is exact, and no file says where packages come from."""
    files = {path.name: path.read_text() for path in (PINS / group).iterdir()}
    assert [name for name, text in files.items() if "://" in text] == []
    if "package.json" in files:
        wanted = json.loads(files["package.json"])["dependencies"]
        locked = json.loads(files["package-lock.json"])["packages"]
        assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    constraints = files["constraints.txt"].splitlines()
    assert [line for line in constraints if line.count("==") != 1] == []
    assert set(files["requirements.txt"].splitlines()) <= set(constraints)


def test_another_pin_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed is named by its pins, so a change of a pin installs anew."""
    (tmp_path / "push").mkdir()
    (tmp_path / "push" / "package.json").write_text("1")
    monkeypatch.setattr(install, "PINS", tmp_path)
    before = install.pin_hash("push")
    (tmp_path / "push" / "package.json").write_text("2")
    assert install.pin_hash("push") != before


def test_half_an_installation_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed installation left is never taken for a whole one; a whole one is not touched again."""
    environ = {"ACPD_PEERS": str(tmp_path)}
    calls: list[str] = []

    def fail(*_: object) -> None:
        raise InstallError("no network")

    def note(_: object, command: list[str], __: object) -> None:
        calls.append(command[-1])

    monkeypatch.setattr(Installed, "node_bin", tmp_path / "node" / "bin")
    monkeypatch.setattr(install, "_run", fail)
    with pytest.raises(InstallError):
        install.install(("push",), environ)
    monkeypatch.setattr(install, "_run", note)
    install.install(("push",), environ)
    done = len(calls)
    assert done == 3
    install.install(("push",), environ)
    assert len(calls) == done
