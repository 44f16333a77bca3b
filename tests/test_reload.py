"""The configuration is read again: what changes at once, what needs a restart, what a broken file does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from acpd.config import NO_FLAGS, WANTED, Config, Flags, Paths
from acpd.reload import FIXED, changes, read_again, unread, wants_restart


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "config").mkdir()
    return Paths.find({"ACPD_HOME": str(tmp_path)})


def loaded(paths: Paths, text: str, flags: Flags = NO_FLAGS) -> Config:
    Path(paths.config_file).write_text(text)
    return Config.load(paths, {}, flags)


class Said(list[tuple[str, dict[str, object]]]):
    """A log: the level and values of each line."""

    def __call__(self, level: str, _event: str, /, **values: object) -> None:
        self.append((level, values))


OTHERS = {
    "storage.backend": '"json"',
    "storage.path": '"/elsewhere"',
    "storage.sync": '"process"',
    "agents.default": '"offline"',
    "sessions.on_disconnect": '"cancel"',
    "sessions.tools": "true",
    "daemon.autostart": "false",
    "log.level": '"debug"',
    "log.file": '"/elsewhere"',
}
"""Values that are not the default; of numbers 1234 is one."""


@pytest.mark.parametrize("key", WANTED)
def test_every_key(paths: Paths, key: str) -> None:
    """A key takes its new value at once, or keeps the old one with a sentence that names it, its file and the restart."""
    section, name = key.split(".")
    old = loaded(paths, "")
    new = loaded(paths, f"[{section}]\n{name} = {OTHERS.get(key, '1234')}\n")
    applied, refused = changes(old, new)
    fixed = name in FIXED.get(section, ())
    expected = old if fixed else new
    assert getattr(getattr(expected, section), name) == getattr(getattr(applied, section), name)
    assert expected.sources[key] == applied.sources[key]
    assert ([f"{key} was changed ({paths.config_file}), which needs a restart"] if fixed else []) == refused
    assert getattr(getattr(old, section), name) != getattr(getattr(new, section), name)


@pytest.mark.parametrize("key", WANTED)
def test_what_was_not_read_yet(paths: Paths, key: str) -> None:
    """A key with another value is named until it was read again, one that needs a restart afterwards too."""
    section, name = key.split(".")
    old = loaded(paths, "")
    load = partial(loaded, paths, f"[{section}]\n{name} = {OTHERS.get(key, '1234')}\n")
    assert [key] == unread(old, load)
    applied = changes(old, load())[0]
    assert ([key] if name in FIXED.get(section, ()) else []) == unread(applied, load)
    assert (name in FIXED.get(section, ())) == wants_restart(key)


def test_agents_that_were_not_read_yet(paths: Paths) -> None:
    """Each that came, went or changed; of acpd's own whether it is there. A file that cannot be read names none."""
    old = loaded(paths, '[agents.a]\ncommand = ["a"]\n[agents.b]\ncommand = ["b"]\n[agents.d]\ncommand = ["d"]\n')
    text = '[agents.b]\ncommand = ["b2"]\n[agents.c]\ncommand = ["c"]\n[agents.d]\ncommand = ["d"]\n[agents.native]\n'
    new = loaded(paths, text)
    assert ["agents.a", "agents.b", "agents.c", "agents.native"] == unread(old, lambda: new)
    assert [] == unread(new, partial(loaded, paths, text + "memory = false\n"))
    assert [] == unread(old, partial(loaded, paths, "[agents\n"))


def test_agents_come_change_and_go(paths: Paths) -> None:
    """Agents that are started from now on are the new ones."""
    old = loaded(paths, '[agents.a]\ncommand = ["a"]\n[agents.b]\ncommand = ["b"]\n[agents]\ndefault = "a"\n')
    new = loaded(paths, '[agents.b]\ncommand = ["b2"]\n[agents.c]\ncommand = ["c"]\n[agents]\ndefault = "c"\n')
    applied, refused = changes(old, new)
    assert ({"b": ("b2",), "c": ("c",)}, []) == ({name: one.command for name, one in applied.agents.programs.items()}, refused)
    assert "c" == applied.choose().name


def test_the_user_stays(paths: Paths) -> None:
    """Whose sessions these are is decided at the start."""
    old = loaded(paths, "", Flags(user="alice"))
    applied, refused = changes(old, Config.load(paths, {"ACPD_USER": "bob"}))
    assert ("alice", "--user") == (applied.user, applied.sources["user"])
    assert ["user was changed (ACPD_USER), which needs a restart"] == refused


def test_nothing_changed(paths: Paths) -> None:
    """Then the configuration is the same, and nothing is said of it."""
    old = loaded(paths, "[sessions]\nqueue = 3\n", Flags(sync="process"))
    assert (old, []) == changes(old, Config.load(paths, {}, Flags(sync="process")))


def test_reading_again(paths: Paths) -> None:
    """What changed is taken, what needs a restart is a warning, and the log says which file was read."""
    old = loaded(paths, "")
    Path(paths.config_file).write_text('[log]\nlevel = "debug"\n[storage]\nsync = "process"\n')
    said = Said()
    now = read_again(old, partial(Config.load, paths, {}), said)
    assert ("debug", "power") == (now.log.level, now.storage.sync)
    assert ["warning", "info"] == [level for level, _ in said]
    assert "storage.sync" in str(said[0][1])
    assert {"file": paths.config_file} == said[1][1]


@pytest.mark.parametrize("text", ["[log]\nlevel = 3\n", "[log\n", "[agents.a]\n"])
def test_a_broken_file(paths: Paths, text: str) -> None:
    """One error with file and line; the old configuration stays."""
    old = loaded(paths, "[sessions]\nqueue = 3\n")
    Path(paths.config_file).write_text(text)
    said = Said()
    assert old is read_again(old, partial(Config.load, paths, {}), said)
    ((level, values),) = said
    assert "error" == level
    assert paths.config_file in str(values)
    assert "line " in str(values)
