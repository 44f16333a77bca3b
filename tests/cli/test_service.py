"""`acpd service`: the units that are written and what systemd is told, with a systemctl of the test's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from acpd.cli.service import HIDDEN_FROM_THE_MACHINES, MARKER, UNITS, units, visible
from acpd.errors import ConfigError
from tests.cli.acpd import Ran, run


class Systemd:
    """A machine: a folder for units, and a systemctl that notes what it is told, or fails."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.units = home / "config" / "systemd" / "user"
        self.told = home / "told"
        self.bin = home / "bin"
        self.bin.mkdir()
        self.answers(0)

    def answers(self, code: int) -> None:
        script = self.bin / "systemctl"
        script.write_text(f'#!/bin/sh\necho "$*" >> {self.told}\necho "no bus" >&2\nexit {code}\n')
        script.chmod(0o755)

    def acpd(self, *words: str) -> Ran:
        return self.says({}, *words)

    def says(self, env: Mapping[str, str], *words: str) -> Ran:
        """With these variables as well."""
        path = f"{self.bin}:{os.environ['PATH']}"
        own = {"XDG_CONFIG_HOME": str(self.home / "config"), "PATH": path, "ACPD_HOME": "", "HOME": str(self.home)}
        return run(self.home / "acpd", "service", *words, env={**own, **env})

    def heard(self) -> list[str]:
        return self.told.read_text().splitlines() if self.told.exists() else []


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    return Systemd(tmp_path)


def test_install_and_uninstall(systemd: Systemd) -> None:
    """Both units with the path of the program; the socket is enabled and started, the service is not: a client starts it.
    Uninstall leaves nothing of it, and done again says so.
    """
    ran = systemd.acpd("install")
    assert (0, "") == (ran.code, ran.err)
    assert set(UNITS) == set(os.listdir(systemd.units))
    (line,) = [line for line in (systemd.units / UNITS[0]).read_text().splitlines() if line.startswith("ExecStart=")]
    assert os.access(line.removeprefix("ExecStart=").removesuffix(" serve"), os.X_OK)
    told = ["--user daemon-reload", "--user enable --now acpd.socket"]
    assert told == systemd.heard()
    assert all(f"run systemctl {words}\n" in ran.out for words in told)
    assert 0 == systemd.acpd("install").code  # again: an upgrade
    assert 0 == systemd.acpd("uninstall").code
    assert [] == os.listdir(systemd.units)
    assert ["--user disable --now acpd.service acpd.socket", "--user daemon-reload"] == systemd.heard()[4:]
    assert "there are no units" in systemd.acpd("uninstall").out
    assert 6 == len(systemd.heard())


def test_a_dry_run(systemd: Systemd) -> None:
    """What would be written, all of it, and what would be run; nothing is done, by uninstall neither."""
    out = systemd.acpd("install", "--dry-run").out
    assert f"would write {systemd.units / UNITS[1]}\n" in out
    assert "    ListenStream=%t/acpd/acpd.sock\n" in out
    assert "would run systemctl --user enable --now acpd.socket\n" in out
    assert not systemd.units.exists()
    systemd.acpd("install")
    heard = systemd.heard()
    assert f"would remove {systemd.units / UNITS[0]}\n" in systemd.acpd("uninstall", "--dry-run").out
    assert (2, heard) == (len(os.listdir(systemd.units)), systemd.heard())


def test_the_machines_dry_run(systemd: Systemd) -> None:
    """With --system it is the machine's systemd, and a user of its own."""
    out = systemd.acpd("install", "--system", "--dry-run").out
    assert "would write /etc/systemd/system/acpd.service\n" in out
    assert "    User=acpd\n" in out
    assert "would run systemctl enable --now acpd.socket\n" in out


@pytest.mark.parametrize("action", ["install", "uninstall"])
def test_somebody_elses_unit(systemd: Systemd, action: str) -> None:
    """One that install did not write is neither replaced nor removed, and nothing else is done."""
    systemd.units.mkdir(parents=True)
    other = systemd.units / UNITS[1]
    other.write_text("[Socket]\n")
    ran = systemd.acpd(action)
    assert 2 == ran.code
    assert f"{other} was not written by acpd service install (move it away; " in ran.err
    assert ("[Socket]\n", [UNITS[1]], []) == (other.read_text(), os.listdir(systemd.units), systemd.heard())


def test_no_systemd_runs(systemd: Systemd) -> None:
    """The units are written; the error has the cause and the commands that are left. Uninstall removes them all the same."""
    systemd.answers(1)
    ran = systemd.acpd("install")
    assert 1 == ran.code
    left = "systemctl --user daemon-reload && systemctl --user enable --now acpd.socket"
    assert f"acpd: systemctl --user daemon-reload: no bus (where systemd runs: {left}; without it: acpd serve)\n" == ran.err
    assert 2 == len(os.listdir(systemd.units))
    ran = systemd.acpd("uninstall")
    assert (1, []) == (ran.code, os.listdir(systemd.units))
    assert "disable --now acpd.service acpd.socket: no bus (the units are removed all the same; " in ran.err
    assert "acpd serve" not in ran.err


@pytest.mark.parametrize(
    ("env", "words", "said", "then"),
    [
        ({"ACPD_HOME": "/x"}, [], "ACPD_HOME", "Environment=ACPD_HOME=/x, {socket}: ListenStream=/x/run/acpd.sock"),
        ({"ACPD_HOME": "/x"}, ["--backend=json"], "--backend, ACPD_HOME", "Environment=ACPD_STORAGE_BACKEND=json ACPD_HOME=/x"),
        ({"ACPD_STORAGE_PATH": "/x"}, [], "ACPD_STORAGE_PATH", "Environment=ACPD_STORAGE_PATH=/x, {socket}: ListenStream=/"),
        ({}, ["--sync", "process"], "--sync", "acpd.toml says it"),
        ({"ACPD_HOME": "/x"}, ["--system", "--storage=/x"], "--storage", "/etc/acpd/acpd.toml says it"),
    ],
)
def test_another_store_than_the_usual_one(
    systemd: Systemd, env: Mapping[str, str], words: list[str], said: str, then: str
) -> None:
    """A unit would not have it, so that service and editors had different stores: refused, with the drop-ins that do it."""
    ran = systemd.says(env, "install", "--dry-run", *words)
    assert (2, "", [], False) == (ran.code, ran.out, systemd.heard(), systemd.units.exists())
    assert f"acpd: the units are for the usual store, and cannot have {said} (leave that away" in ran.err
    assert then.format(socket="'systemctl --user edit acpd.socket'") in ran.err


def test_a_folder_that_cannot_be_written(systemd: Systemd) -> None:
    """One line that names the file."""
    systemd.units.parent.parent.mkdir()
    systemd.units.parent.write_text("in the way")
    ran = systemd.acpd("install")
    assert 1 == ran.code
    assert 1 == ran.err.count("\n")
    assert str(systemd.units / UNITS[0]) in ran.err


@pytest.mark.parametrize("whose", ["user", "system"])
def test_units_say_who_wrote_them(whose: str) -> None:
    """The first line is what uninstall goes by, and the program's path stands where the template has a mark."""
    for text in units(whose, "/opt/a b/50%/acpd").values():
        assert text.startswith(MARKER)
        assert "@ACPD@" not in text
    assert '\nExecStart="/opt/a b/50%%/acpd" serve\n' in units(whose, "/opt/a b/50%/acpd")[UNITS[0]]
    assert "\nExecStart=/opt/50%%/acpd serve\n" in units(whose, "/opt/50%/acpd")[UNITS[0]]
    assert "\nExecStart=/usr/bin/acpd serve\n" in units(whose, "/usr/bin/acpd")[UNITS[0]]


@pytest.mark.parametrize("program", ["/it's/acpd", '/"/acpd', "/a\\b/acpd", "/a\nb/acpd"])
def test_a_program_that_systemd_cannot_start(program: str) -> None:
    """Said before anything is written."""
    with pytest.raises(ConfigError, match="systemd cannot start"):
        units("user", program)


def test_a_program_that_the_machines_service_cannot_see(tmp_path: Path) -> None:
    """It sees no homes and no /tmp: an acpd or a Python from there is refused, also behind a link, with the next step."""
    visible("/opt/acpd/bin/acpd", "/usr", "/usr/local")
    for folder in HIDDEN_FROM_THE_MACHINES:
        with pytest.raises(ConfigError, match=r"sees no homes and no /tmp \(install it for the machine: .*/opt/acpd"):
            visible("/usr/bin/acpd", f"{folder}me/.venv")
    (tmp_path / "acpd").symlink_to("/home/me/acpd")
    with pytest.raises(ConfigError, match="cannot start /home/me/acpd"):
        visible(str(tmp_path / "acpd"))
