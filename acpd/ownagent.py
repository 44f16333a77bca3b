"""`[agents.native]`: what our own agent is told. Read by acpd, which checks all of it, and by the agent itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from acpd.configfile import Seconds, Source, converted, meant
from acpd.errors import ConfigError

NATIVE = "native"
SECTION = f"agents.{NATIVE}"


class Native(Struct, frozen=True, kw_only=True):
    """`model` is PROVIDER:NAME, "" what is found. `max_requests`: to the model, in one turn. `compact_*`: when a conversation
    is summarised, and how many messages stay as they are (acpd.native.cutting.Rules). A key itself never stands here."""

    model: Annotated[str, Meta(pattern=r"\A(?:[a-z0-9-]+:\S+)?\Z")] = ""
    base_url: Annotated[str, Meta(pattern=r"\A(?:https?://[^\s@?#]+)?\Z")] = ""
    api_key_env: Annotated[str, Meta(pattern=r"\A(?:[A-Za-z_][A-Za-z0-9_]*)?\Z")] = ""
    thinking: Literal["default", "off", "minimal", "low", "medium", "high", "xhigh", "max"] = "default"
    mode: Literal["ask", "code", "plan"] = "ask"
    max_requests: Annotated[int, Meta(ge=1, le=10_000)] = 100
    mcp_timeout: Seconds = 10.0
    memory: bool = True
    compact_messages: Annotated[int, Meta(ge=0, le=1_000_000)] = 50
    compact_tokens: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 80_000
    compact_keep: Annotated[int, Meta(ge=1, le=1_000_000)] = 20


WANTED = {
    "model": 'PROVIDER:MODEL, for example "openai:gpt-5.6-terra" or "ollama:qwen3"',
    "base_url": "a URL that begins with http:// or https:// and holds no password and no query",
    "api_key_env": "the name of a variable, not the key itself",
    "thinking": '"default", "off", "minimal", "low", "medium", "high", "xhigh" or "max"',
    "mode": '"ask", "code" or "plan"',
    "max_requests": "a whole number from 1 to 10000",
    "mcp_timeout": "seconds, more than 0 and at most 86400",
    "memory": "true or false",
    "compact_messages": "a whole number from 0 to 1000000",
    "compact_tokens": "a whole number from 0 to 1000000000",
    "compact_keep": "a whole number from 1 to 1000000",
}
PROVIDERS = (
    "openai",
    "anthropic",
    "google",
    "openrouter",
    "deepseek",
    "dashscope",
    "ollama",
    "openai-chat",
    "openai-responses",
)
"""Whose models there are, as acpd.native.models knows them."""
OTHER_NAMES = {"gemini": "google", "google-gla": "google", "alibaba": "dashscope", "qwen": "dashscope"}
_UNSHOWN = {"base_url", "api_key_env"}
"""Where somebody may have written a key."""
KEYS = tuple(f"{SECTION}.{name}" for name in WANTED)
"""The full names, as `Config.sources` has them."""


class Told:
    """What was said so far; later words win. `sources` is told where each value came from."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._values: dict[str, Any] | None = None
        self._sources = sources

    def native(self) -> Native | None:
        """None: there is neither the table nor a variable."""
        return None if self._values is None else Native(**self._values)

    def put(self, name: str, value: object, source: str, at: str, *, strict: bool) -> None:
        """One key of WANTED; `at` is where an error points. Raises ConfigError."""
        where, shown = f"{at}: {SECTION}.{name}", name not in _UNSHOWN
        value = converted(Native, name, value, where, WANTED[name], strict=strict, shown=shown)
        if name == "model" and isinstance(value, str) and value:
            _check_provider(value.partition(":")[0], where)
        self._values = {**(self._values or {}), name: value}
        self._sources[f"{SECTION}.{name}"] = source

    def add_table(self, source: Source, members: dict[str, object]) -> None:
        """The table of a file, which may be empty. Raises ConfigError."""
        self._values = self._values or {}
        for name, value in members.items():
            at = source.at(SECTION, name)
            if name not in WANTED:
                own = "this is acpd's own agent; give yours another name" if name in {"command", "env", "cwd"} else ""
                raise ConfigError(f"{at}: there is no {name} in [{SECTION}]", hint=own or meant(name, [*WANTED]))
            self.put(name, value, source.path, at, strict=True)


def _check_provider(provider: str, where: str) -> None:
    if provider not in PROVIDERS and provider not in OTHER_NAMES:
        raise ConfigError(
            f"{where} names a provider {provider!r}, which there is not", hint=f"providers: {', '.join(PROVIDERS)}"
        )
