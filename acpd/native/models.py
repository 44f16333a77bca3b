"""Which model a session talks to, and how it is reached.

Choosing is cheap and imports nothing: what was configured, else the provider whose key is in the
environment, else an Ollama that answers on this machine. `load` is what costs: it imports pydantic_ai and the SDK of the one
chosen provider, 0.6 to 2.6 seconds, and belongs into a thread.

A model is named PROVIDER:NAME. A key is read from the environment where it is used; it is never part of a `Chosen`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from acpd.errors import AUTH_REQUIRED, INTERNAL_ERROR, AcpdError
from acpd.native.answers import client, lean
from acpd.native.keys import HEADERS
from acpd.native.words import INSTALL
from acpd.ownagent import OTHER_NAMES

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

OLLAMA_PORT = 11434
QUICKLY = 0.3
"""Seconds that an Ollama on this machine has to answer. One that is there answers in a few milliseconds."""
NO_KEY = "no-key"
"""Stands for the key of a server that wants none: the SDKs insist on one."""


class ModelUnusable(AcpdError):
    """A model cannot be talked to before something is changed; `code`: of the answer to the prompt."""

    def __init__(self, message: str, *, hint: str = "", code: int = INTERNAL_ERROR) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Provider(NamedTuple):
    """`keys`, `urls`: variables, the first that is set counts. `model`: the one to use where nobody has named one."""

    title: str
    keys: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    model: str = ""


PROVIDERS: dict[str, Provider] = {
    "openai": Provider("OpenAI", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",), "gpt-5.6-terra"),
    "anthropic": Provider("Anthropic", ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL",), "claude-sonnet-5-5"),
    "google": Provider("Google", ("GOOGLE_API_KEY", "GEMINI_API_KEY"), ("GOOGLE_GEMINI_BASE_URL",), "gemini-3.8-flash"),
    "openrouter": Provider("OpenRouter", ("OPENROUTER_API_KEY",), (), "anthropic/claude-sonnet-5.5"),
    "deepseek": Provider("DeepSeek", ("DEEPSEEK_API_KEY",), (), "deepseek-v4-pro"),
    "dashscope": Provider("DashScope", ("DASHSCOPE_API_KEY",), ("DASHSCOPE_BASE_URL",), "qwen3-coder-plus"),
    "ollama": Provider("Ollama", ("OLLAMA_API_KEY",), ("OLLAMA_BASE_URL",)),
    "openai-chat": Provider("OpenAI (chat completions)", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",)),
    "openai-responses": Provider("OpenAI (responses)", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",)),
}
"""In the order in which their keys are looked for. The last two say which of OpenAI's two interfaces a server has."""
_OWN_HOSTS = {"openai": ".openai.com", "anthropic": ".anthropic.com", "google": ".googleapis.com", "dashscope": ".aliyuncs.com"}
NEEDS_FINISH_REASON = {"openai_chat_streaming_requires_finish_reason": True}
"""Without it a chat stream that breaks off looks like one that is complete."""


class Chosen(Struct, frozen=True):
    """A model that was chosen. `base_url` "": the provider's own. Two that are equal are reached in the same way."""

    provider: str
    name: str
    base_url: str = ""

    @property
    def id(self) -> str:
        """As a person names it, and as the option `model` has it."""
        return f"{self.provider}:{self.name}"

    @property
    def title(self) -> str:
        """Who is talked to: the provider, or the host of another address than its own."""
        known = PROVIDERS.get(self.provider)
        if self.base_url and self.provider != "ollama":
            from urllib.parse import urlsplit

            where = urlsplit(self.base_url)
            own = (where.hostname or "").endswith(_OWN_HOSTS.get(self.provider.partition("-")[0], " "))
            if where.hostname and not own:
                return where.netloc.rpartition("@")[2]
        return known.title if known is not None else self.provider


def choose(env: Mapping[str, str], model: str = "", base_url: str = "") -> Chosen | None:
    """The model that is configured (`[agents.native]`), or whose provider's key is there; None: none is.

    Raises ModelUnusable if what was named is no PROVIDER:NAME.
    """
    if model:
        return parse(model, env, base_url)
    for provider, known in PROVIDERS.items():
        if known.model and key_of(provider, env):
            return Chosen(provider, known.model, _url_of(provider, env))
    return None


def parse(model: str, env: Mapping[str, str], base_url: str = "") -> Chosen:
    """A model as a person names it. With only a provider's name: that one's usual model. Raises ModelUnusable."""
    provider, colon, name = model.partition(":")
    provider = OTHER_NAMES.get(provider, provider)
    known = PROVIDERS.get(provider)
    if not colon and known is not None:
        name = known.model
    if not provider or not name or any(letter.isspace() for letter in model):
        raise ModelUnusable(
            f"{model!r} names no model: it must be PROVIDER:NAME, such as openai:{PROVIDERS['openai'].model}",
            hint=f"providers: {', '.join(PROVIDERS)}",
        )
    if known is None:
        raise ModelUnusable(f"there is no provider {provider!r}", hint=f"providers: {', '.join(PROVIDERS)}")
    return Chosen(provider, name, base_url or _url_of(provider, env))


def key_names(model: str) -> tuple[str, ...]:
    """The variables in which the provider of PROVIDER:NAME looks for its key."""
    provider = model.partition(":")[0]
    known = PROVIDERS.get(OTHER_NAMES.get(provider, provider))
    return known.keys if known is not None else ()


def key_of(provider: str, env: Mapping[str, str]) -> str:
    """The key, or ""."""
    known = PROVIDERS.get(provider)
    return next((env[name] for name in known.keys if env.get(name)), "") if known is not None else ""


def keys_in(env: Mapping[str, str]) -> tuple[str, ...]:
    """Every key that the environment has, so that none of them is ever shown."""
    names = {name for provider in PROVIDERS.values() for name in provider.keys}
    names |= {name for name in env if name.endswith(("_API_KEY", "_TOKEN", "_SECRET"))}
    return tuple(env[name] for name in sorted(names) if len(env.get(name, "")) >= 4)


def _url_of(provider: str, env: Mapping[str, str]) -> str:
    if provider == "ollama" and not env.get("OLLAMA_BASE_URL"):
        return f"{ollama_at(env)}/v1"
    known = PROVIDERS.get(provider)
    return next((env[name] for name in known.urls if env.get(name)), "") if known is not None else ""


# -- an Ollama on this machine


def ollama_at(env: Mapping[str, str]) -> str:
    """Where Ollama is, as its own programs are told by OLLAMA_HOST: a host, host:port, or a URL."""
    from urllib.parse import urlsplit  # 5 ms

    said = env.get("OLLAMA_HOST", "").strip()
    parts = urlsplit(said if "//" in said else f"http://{said}")
    host = parts.hostname or "127.0.0.1"
    if host in {"0.0.0.0", "::"}:  # noqa: S104  what a server listens on is not where a client connects to
        host = "127.0.0.1"
    try:
        port = parts.port or OLLAMA_PORT
    except ValueError:
        port = OLLAMA_PORT
    return f"{parts.scheme or 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class _Tag(Struct):
    name: str


class _Tags(Struct):
    models: list[_Tag] = []


async def find_ollama(env: Mapping[str, str]) -> tuple[Chosen, ...]:
    """The models of an Ollama on this machine, the one that was used last first; () if none answers within `QUICKLY`."""
    from urllib.parse import urlsplit

    url = urlsplit(ollama_at(env))
    if url.scheme != "http" or url.hostname not in {"127.0.0.1", "localhost", "::1"}:
        return ()
    try:
        async with asyncio.timeout(QUICKLY):
            body = await _get(url.hostname, url.port or OLLAMA_PORT, "/api/tags")
        tags = msgspec.json.decode(body, type=_Tags).models
    except (OSError, TimeoutError, EOFError, ValueError):
        return ()
    return tuple(Chosen("ollama", tag.name, f"{url.geturl()}/v1") for tag in tags)


async def _get(host: str, port: int, path: str) -> bytes:
    """The body of a plain HTTP answer of at most 1 MiB; an HTTP library would cost more than the whole search."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: application/json\r\n\r\n".encode())
        head, _, body = (await reader.read(1 << 20)).partition(b"\r\n\r\n")
        while len(body) < 1 << 20 and (more := await reader.read(1 << 16)):
            body += more
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise EOFError
        return body
    finally:
        writer.close()


# -- reaching it


class Loaded(NamedTuple):
    """A model that can be asked. `window`: tokens of its context, 0 if nobody knows. `http` has the connections to it."""

    chosen: Chosen
    model: Model
    window: int
    http: httpx2.AsyncClient


def load(chosen: Chosen, env: Mapping[str, str]) -> Loaded:
    """Import what is needed and make the model; asks nobody. Takes seconds, blocks: call it in a thread.

    Raises ModelUnusable: no such provider, no key, or a package that is not installed.
    """
    try:
        importlib.import_module("pydantic_ai.direct")
        from pydantic_ai.exceptions import UserError
    except ImportError:
        raise ModelUnusable("acpd-agent has no model library", hint=INSTALL) from None
    try:
        http = client()
        model = _made(chosen, env, http)
    except ImportError as error:
        raise ModelUnusable(
            f"the SDK for {chosen.provider} is not installed ({error.name or 'unknown module'})",
            hint=INSTALL,
        ) from None
    except UserError as error:  # its texts name variables and models, not values
        raise ModelUnusable(f"{chosen.id} cannot be used: {error.message}") from None
    return Loaded(chosen, model, model.context_window or 0, http)


def _made(chosen: Chosen, env: Mapping[str, str], http: httpx2.AsyncClient) -> Model:
    known, key = PROVIDERS.get(chosen.provider), key_of(chosen.provider, env)
    if known is None:
        raise ModelUnusable(f"there is no provider {chosen.provider!r}", hint=f"providers: {', '.join(PROVIDERS)}")
    if not key and not chosen.base_url:
        raise ModelUnusable(
            f"there is no key for {known.title}: {known.keys[0]} is not set",
            hint="set it where the editor starts acpd-agent, or run: acpd-agent --setup",
            code=AUTH_REQUIRED,
        )
    from urllib.parse import urlsplit

    if chosen.provider == "anthropic":
        return _anthropic(chosen, key or NO_KEY, env, http)
    make = {"google": _google, "openai-responses": _responses}.get(chosen.provider, _openai)
    if chosen.provider == "openai" and (not chosen.base_url or urlsplit(chosen.base_url).hostname == "api.openai.com"):
        make = _responses
    return make(chosen, key or NO_KEY, http)


def _anthropic(chosen: Chosen, key: str, env: Mapping[str, str], http: httpx2.AsyncClient) -> Model:
    import os

    from anthropic import AsyncAnthropic, Omit
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    lines = "" if HEADERS in env else os.environ.get(HEADERS, "")  # the SDK looks there, whatever it is told
    names = [line.partition(":")[0].strip() for line in lines.split("\n") if ":" in line]
    headers: Any = {name: key if name.lower() == "x-api-key" else Omit() for name in names}
    sdk = AsyncAnthropic(api_key=key, base_url=chosen.base_url or None, http_client=http, default_headers=headers)
    return AnthropicModel(chosen.name, provider=AnthropicProvider(anthropic_client=sdk))


def _google(chosen: Chosen, key: str, http: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key=key, base_url=chosen.base_url or None, http_client=http)
    return GoogleModel(chosen.name, provider=provider)


def _responses(chosen: Chosen, key: str, http: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    _build_events()
    provider = OpenAIProvider(api_key=key, base_url=chosen.base_url or None, http_client=http)
    profile: Any = _thinks(chosen)
    return OpenAIResponsesModel(chosen.name, provider=provider, profile=profile or None)


def _build_events() -> None:
    """What the SDK would do while the first answer comes: 1.5 s in which the event loop does nothing else."""
    from typing import get_args

    from openai.types.responses import ResponseStreamEvent

    for event in get_args(get_args(ResponseStreamEvent)[0]):
        event.model_rebuild()
        for field in event.model_fields.values():
            if hasattr(field.annotation, "model_rebuild"):
                field.annotation.model_rebuild()


def _thinks(chosen: Chosen) -> dict[str, bool]:
    """What is known of models at another address than their provider's: nothing, by whatever name. So a level of thinking that
    somebody has chosen is sent (`reasoning_effort`), and the server says whether it takes that. Where none was chosen none is.
    """
    elsewhere = chosen.provider == "ollama" or chosen.title != PROVIDERS[chosen.provider].title
    return {"supports_thinking": True} if elsewhere else {}


def _openai(chosen: Chosen, key: str, http: httpx2.AsyncClient) -> Model:
    """Chat completions, which every server that calls itself OpenAI-compatible has."""
    from pydantic_ai.models.openai import OpenAIChatModel

    profile: Any = {**NEEDS_FINISH_REASON, **_thinks(chosen)}
    if chosen.provider == "ollama":
        from pydantic_ai.models.ollama import OllamaModel
        from pydantic_ai.providers.ollama import OllamaProvider

        return lean(
            OllamaModel(
                chosen.name,
                provider=OllamaProvider(base_url=chosen.base_url, api_key=key, http_client=http),
                profile=profile,
            )
        )
    if chosen.provider == "openrouter" and not chosen.base_url:
        from pydantic_ai.models.openrouter import OpenRouterModel
        from pydantic_ai.providers.openrouter import OpenRouterProvider

        return lean(OpenRouterModel(chosen.name, provider=OpenRouterProvider(api_key=key, http_client=http), profile=profile))
    return lean(OpenAIChatModel(chosen.name, provider=_chat_provider(chosen, key, http), profile=profile))


def _chat_provider(chosen: Chosen, key: str, http: httpx2.AsyncClient) -> Any:
    if chosen.provider == "dashscope":
        from pydantic_ai.providers.alibaba import AlibabaProvider

        return AlibabaProvider(api_key=key, base_url=chosen.base_url or None, http_client=http)
    if chosen.base_url:
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        return OpenAICompatibleProvider(chosen.provider, base_url=chosen.base_url, api_key=key, http_client=http)
    if chosen.provider == "deepseek":
        from pydantic_ai.providers.deepseek import DeepSeekProvider

        return DeepSeekProvider(api_key=key, http_client=http)
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIProvider(api_key=key, http_client=http)
