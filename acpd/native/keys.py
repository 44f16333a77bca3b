"""Where the key of a model comes from: a variable of the environment, else `keys.toml`, a file for its owner alone.

`keys.toml` stands in the folder of the configuration and has lines `VARIABLE = "the key"`; a variable that is set wins. A key
is in memory only where it is used: it goes into no command line, no log, no other file, no error.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from acpd.config import Paths
from acpd.errors import AUTH_REQUIRED, ConfigError

if TYPE_CHECKING:
    from acpd.native.settings import Settings

FILE_NAME = "keys.toml"
HEADERS = "ANTHROPIC_CUSTOM_HEADERS"
"""What Anthropic's SDK sends with each request, wherever that goes: often a key."""


class KeyMissing(ConfigError):
    """The variable that was named for a key holds none. `code`: of the answer to the prompt."""

    code = AUTH_REQUIRED


def path(environ: Mapping[str, str]) -> str:
    """Where the file of keys is, or would be. Raises ConfigError as `Paths.find`."""
    return os.path.join(Paths.find(environ).config, FILE_NAME)


def stored(environ: Mapping[str, str]) -> dict[str, str]:
    """The keys in the file, by the names of their variables; none if there is no file. Blocks.

    Raises ConfigError, which shows nothing of what is in it: it can be read by others or is not ours, or it is not such a file.
    """
    file = path(environ)
    try:
        with open(file, "rb", opener=_at_once) as opened:
            about = os.fstat(opened.fileno())
            data = opened.read() if stat.S_ISREG(about.st_mode) else b""
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
        raise ConfigError(f"{file} belongs to somebody else: no key is taken from it", hint="make one of your own")
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise ConfigError(f"{file} can be read by others: no key is taken from it", hint=f"chmod 600 {file}")
    return _parsed(file, data)


def _at_once(file: str, flags: int) -> int:
    """Nobody waits at a FIFO."""
    return os.open(file, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _parsed(file: str, data: bytes) -> dict[str, str]:
    import tomllib

    hint = 'its lines are VARIABLE = "the key"'
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        raise ConfigError(f"{file} is not TOML", hint=hint) from None  # the cause could show a part of a key
    for name, key in table.items():
        if not isinstance(key, str) or not is_key(key):
            where = name if name.isidentifier() else "one of its members"
            raise ConfigError(f"{file}: {where} is no key", hint=hint)
    return table


def is_key(text: str) -> bool:
    """Whether it can be sent in a header: visible ASCII."""
    return bool(text) and all("!" <= letter <= "~" for letter in text)


def environment(settings: Settings, environ: Mapping[str, str], usual: Sequence[str]) -> dict[str, str]:
    """The environment as the choice of a model is to see it: with the stored keys, and no key for whom it was not made.

    `usual`: the variables in which the provider of `settings.model` looks for its key. With `api_key_env` only that one's key
    is the provider's; with a `base_url` and no `api_key_env` there is none, so that no server gets a key that another one gave
    out. Blanks around a value, as of a file that ends with a newline, are no part of it.

    Blocks. Raises ConfigError, KeyMissing.
    """
    found = {**stored(environ), **{name: value.strip() for name, value in environ.items() if value.strip()}}
    if not settings.base_url and not settings.api_key_env:
        return found
    if settings.model and not usual:  # its library would look in places of its own, and ask a server of its own
        raise ConfigError(
            f"base_url and api_key_env work only with the providers that acpd-agent knows; {settings.model} is of none of them",
            hint="openai:NAME is any server that speaks chat completions",
        )
    key = found.get(settings.api_key_env, "")
    if settings.api_key_env and not is_key(key):
        raise KeyMissing(
            f"there is no key: {settings.api_key_env}, which api_key_env names, is neither set nor in {FILE_NAME}",
            hint="set it where acpd-agent is started, or run: acpd-agent --setup",
        )
    withheld = {*usual, HEADERS} if settings.base_url else usual
    found = {name: value for name, value in found.items() if name not in withheld}
    return {**found, usual[0]: key} if key and usual else found
