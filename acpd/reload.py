"""The configuration is read again while acpd runs: what changes at once, and what needs a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from acpd.config import SECTIONS, WANTED, Config
from acpd.errors import ConfigError
from acpd.ownagent import SECTION

FIXED = {"storage": {*SECTIONS["storage"].__struct_fields__}, "log": {*SECTIONS["log"].__struct_fields__} - {"level"}}
"""The keys of each section that hold from the start to the end: a store is opened once, and so is the log's file."""
_TOP = ("user", "standalone")


class Logs(Protocol):
    def __call__(self, level: str, event: str, /, **values: object) -> None: ...


def changes(old: Config, new: Config) -> tuple[Config, list[str]]:
    """What holds from now on, and for each key that stays as it was although `new` has another value, a sentence for people.

    All of `[agents]` (for agents that are started from now on) and `[sessions]`, and the level of the log, are `new`'s.
    """
    kept: dict[str, object] = {name: getattr(old, name) for name in _TOP}
    fixed = list(_TOP)
    for section, names in FIXED.items():
        values = {name: getattr(getattr(old, section), name) for name in names}
        kept[section] = msgspec.structs.replace(getattr(new, section), **values)
        fixed += [key for key in WANTED if key.partition(".")[0] == section and key.partition(".")[2] in names]
    sources = {**new.sources, **{key: old.sources[key] for key in fixed if key in old.sources}}
    refused = [
        f"{key} was changed ({new.sources.get(key, 'default')}), which needs a restart"
        for key in fixed
        if _differs(old, new, key)
    ]
    return msgspec.structs.replace(new, **kept, sources=sources), refused


def read_again(old: Config, load: Callable[[], Config], log: Logs) -> Config:
    """What holds from now on; `old` if what there is now cannot be read. Never raises for that. Blocks as `load` does."""
    try:
        new = load()
    except ConfigError as error:
        log("error", "the configuration stays as it was", error=str(error))
        return old
    applied, refused = changes(old, new)
    for sentence in refused:
        log("warning", "not changed", key=sentence.partition(" ")[0], text=sentence)
    log("info", "configuration read again", file=applied.file)
    return applied


def unread(old: Config, load: Callable[[], Config]) -> list[str]:
    """The keys, and the agents as `agents.NAME`, of which the configuration says something else than `old`. Of
    `[agents.native]` only whether it is there: what stands in it our own agent reads itself. Empty where it cannot be read:
    whoever has written it is told by what they start. Blocks as `load` does.
    """
    try:
        new = load()
    except ConfigError:
        return []
    keys = [key for key in (*_TOP, *WANTED) if _differs(old, new, key)]
    ours, theirs = old.agents.programs, new.agents.programs
    keys += [f"agents.{name}" for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    return keys + [SECTION] * ((old.agents.native is None) != (new.agents.native is None))


def wants_restart(key: str) -> bool:
    """Whether a change of this key holds only after a restart."""
    section, _, name = key.partition(".")
    return key in _TOP or name in FIXED.get(section, ())


def _differs(old: Config, new: Config, key: str) -> bool:
    return _at(old, key) != _at(new, key)


def _at(config: Config, key: str) -> object:
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value
