"""What `acpd-agent` is told: `[agents.native]` of acpd.toml < ACPD_AGENTS_NATIVE_* variables < its own arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from acpd import configfile, ownagent
from acpd.config import Flags, Paths, file_to_read, variable
from acpd.errors import ConfigError
from acpd.native import keys

FLAGS = {
    "--model": "model",
    "--base-url": "base_url",
    "--key-env": "api_key_env",
    "--thinking": "thinking",
    "--mode": "mode",
}
"""The arguments that stand for a key of `[agents.native]`."""
SWITCHES = ("--offline", "--until-setup", "--setup", "--key-stdin", "--untested")
"""The arguments without a value; the last two are the setup's own."""
REPLACED = ("model", "base_url", "api_key_env")
"""The keys that the setup writes anew: what was wrong in them does not keep it from doing so."""
HELP_HINT = "acpd-agent --help shows what there is"


class Settings(ownagent.Native, frozen=True, kw_only=True):
    """`[agents.native]`. `offline`: no model, whatever is configured. `file`: the acpd.toml that is read; it need not exist."""

    offline: bool = False
    file: str = ""


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """`argv` without the program's name. Raises ConfigError, which names the argument, the variable or the line of the file.

    tomllib (9 ms) is imported only if the file speaks of us.
    """
    said = dict(arguments(argv))
    paths = Paths.find(environ)
    file = file_to_read(paths, environ, Flags(config=said.pop("config", None)))
    told = ownagent.Told({})
    if file and _speaks_of_us(file):
        table, source = configfile.parse(file)
        _add_file(told, table, source, REPLACED if "--setup" in said else ())
    for name in ownagent.WANTED:
        word = variable(f"{ownagent.SECTION}.{name}")
        if value := environ.get(word):
            told.put(name, value, word, word, strict=False)
    for flag, name in FLAGS.items():
        if flag in said:
            told.put(name, said[flag], flag, flag, strict=False)
    native = told.native() or ownagent.Native()
    if native.base_url and not native.model:
        raise ConfigError(
            f"{ownagent.SECTION}.base_url needs {ownagent.SECTION}.model beside it", hint='model = "PROVIDER:MODEL"'
        )
    return Settings(**msgspec.structs.asdict(native), offline="--offline" in said, file=file or paths.config_file)


def stamp(settings: Settings, environ: Mapping[str, str]) -> tuple[object, ...]:
    """Something else once acpd.toml or the file of keys is another one: two calls of stat."""
    found: list[object] = []
    for file in (settings.file, keys.path(environ)):
        try:
            about = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((about.st_mtime_ns, about.st_size, about.st_ino, about.st_mode))
    return tuple(found)


def arguments(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flag and value, `--config` as `config`. By hand: argparse takes 8 ms."""
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if word in SWITCHES:
            yield word, ""
        elif flag == "--config" or flag in FLAGS:
            value = value if equals else next(words, "")
            if not value:
                raise ConfigError(f"{flag} needs a value", hint=HELP_HINT)
            yield flag.removeprefix("--") if flag == "--config" else flag, value
        else:
            raise ConfigError(f"unknown argument {word.partition('=')[0]}", hint=HELP_HINT)


def _speaks_of_us(file: str) -> bool:
    try:
        with open(file, "rb") as opened:
            return ownagent.NATIVE.encode() in opened.read()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {os.strerror(error.errno or 0)}") from None


def _add_file(told: ownagent.Told, table: Mapping[str, Any], source: configfile.Source, but: Sequence[str]) -> None:
    """Only our own table, but for these keys: what else is wrong in the file is acpd's to say."""
    agents = table.get("agents")
    members = agents.get(ownagent.NATIVE) if isinstance(agents, dict) else None
    if isinstance(members, dict):
        told.add_table(source, {name: value for name, value in members.items() if name not in but})
    elif members is not None:
        raise ConfigError(f"{source.at('agents', ownagent.NATIVE)}: {ownagent.SECTION} must be a table")
