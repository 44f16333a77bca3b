"""Which model is chosen, and how it is reached."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from acpd import ownagent
from acpd.native import models, words
from acpd.native.models import PROVIDERS, Chosen, ModelUnusable, choose, find_ollama, load, ollama_at, parse
from acpd.native.offers import MOST, Offers
from acpd.native.settings import Settings
from acpd.tasks import Tasks
from tests.support.paths import ROOT

KEY = "sk-12345678"


@pytest.mark.parametrize(
    ("env", "model", "wanted"),
    [
        ({}, "", None),
        ({"OPENAI_API_KEY": KEY}, "", "openai:gpt-5.6-terra"),
        ({"ANTHROPIC_API_KEY": KEY}, "", "anthropic:claude-sonnet-5-5"),
        ({"GEMINI_API_KEY": KEY}, "", "google:gemini-3.8-flash"),
        ({"GOOGLE_API_KEY": KEY}, "", "google:gemini-3.8-flash"),
        ({"OPENROUTER_API_KEY": KEY}, "", "openrouter:anthropic/claude-sonnet-5.5"),
        ({"DEEPSEEK_API_KEY": KEY}, "", "deepseek:deepseek-v4-pro"),
        ({"DASHSCOPE_API_KEY": KEY}, "", "dashscope:qwen3-coder-plus"),
        ({"DASHSCOPE_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}, "", "anthropic:claude-sonnet-5-5"),
        ({"ANTHROPIC_API_KEY": KEY}, "ollama:qwen3:8b", "ollama:qwen3:8b"),
        ({}, "gemini:gemini-3.8-flash", "google:gemini-3.8-flash"),
        ({"OPENAI_API_KEY": ""}, "", None),
    ],
)
def test_what_is_configured_comes_before_what_is_found(env: dict[str, str], model: str, wanted: str | None) -> None:
    """The configured model, else the usual one of the first provider whose key is there."""
    chosen = choose(env, model)
    assert wanted == (chosen.id if chosen is not None else None)


@pytest.mark.parametrize("name", ["x", "openai:", ":x", "open ai:x"])
def test_what_names_no_model_is_an_error(name: str) -> None:
    """Anything but PROVIDER:NAME is refused with an example."""
    with pytest.raises(ModelUnusable, match="PROVIDER:NAME"):
        parse(name, {})


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("https://ollama.example:443", "https://ollama.example:443"),
        ("http://[::1]:1234", "http://[::1]:1234"),
    ],
)
def test_ollama_is_where_its_own_variable_says(host: str, url: str) -> None:
    """OLLAMA_HOST may be a host, host:port or a URL, and what a server listens on."""
    assert url == ollama_at({"OLLAMA_HOST": host})


class _Ollama(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's name
        """Say nothing."""

    def do_GET(self) -> None:
        body = b'{"models":[{"name":"qwen3:8b","size":1},{"name":"llama4"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Ollama)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


async def test_an_ollama_on_this_machine_is_found(port: int) -> None:
    """Its models are offered, the one that was used last first."""
    found = await find_ollama({"OLLAMA_HOST": f"127.0.0.1:{port}"})
    assert ["ollama:qwen3:8b", "ollama:llama4"] == [each.id for each in found]
    assert f"http://127.0.0.1:{port}/v1" == found[0].base_url


async def test_what_is_no_ollama_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody there, somebody who is silent, and another machine: none is found, and nobody waits."""
    monkeypatch.setattr(models, "QUICKLY", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for host in ("127.0.0.1:9", f"127.0.0.1:{silent.getsockname()[1]}", "ollama.example"):
            assert () == await find_ollama({"OLLAMA_HOST": host})


@pytest.mark.parametrize(
    ("chosen", "kind"),
    [
        (Chosen("openai", "gpt-5.6-terra"), "OpenAIResponsesModel"),
        (Chosen("openai", "gpt-5.6-terra", "https://api.openai.com/v1"), "OpenAIResponsesModel"),
        (Chosen("openai", "any", "http://localhost:8000/v1"), "OpenAIChatModel"),
        (Chosen("openai-responses", "any", "http://localhost:8000/v1"), "OpenAIResponsesModel"),
        (Chosen("openai-chat", "gpt-5.6-terra"), "OpenAIChatModel"),
        (Chosen("openrouter", "openai/gpt-5.6-terra"), "OpenRouterModel"),
        (Chosen("deepseek", "deepseek-v4-pro"), "OpenAIChatModel"),
        (Chosen("dashscope", "qwen3-coder-plus"), "OpenAIChatModel"),
        (Chosen("ollama", "qwen3", "http://127.0.0.1:11434/v1"), "OllamaModel"),
        pytest.param(Chosen("anthropic", "claude-sonnet-5-5"), "AnthropicModel", marks=pytest.mark.e2e),
        pytest.param(Chosen("google", "gemini-3.8-flash", "http://localhost:1"), "GoogleModel", marks=pytest.mark.e2e),
    ],
)
async def test_each_provider_is_reached_in_its_way(chosen: Chosen, kind: str) -> None:
    """A server that calls itself OpenAI-compatible is asked by chat completions; a key goes only where it is from."""
    env = {name: f"key-of-{provider}" for provider, known in models.PROVIDERS.items() for name in known.keys}
    loaded = await asyncio.to_thread(load, chosen, env)
    assert kind == type(loaded.model).__name__
    if chosen.base_url:
        assert chosen.base_url in str(loaded.model.base_url)
    assert loaded.model.profile.get("openai_chat_streaming_requires_finish_reason", True)


async def test_a_model_without_its_key_says_which_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider's own address wants a key; a server of one's own does not."""
    with pytest.raises(ModelUnusable, match="DEEPSEEK_API_KEY"):
        await asyncio.to_thread(load, Chosen("deepseek", "deepseek-v4-pro"), {})
    assert await asyncio.to_thread(load, Chosen("openai", "x", "http://localhost:1/v1"), {})


@pytest.mark.parametrize("missing", ["pydantic_ai.direct", "pydantic_ai.models.openai"])
async def test_what_is_not_installed_says_how_a_checkout_gets_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Without the libraries, or the SDK of one provider, the hint is what the documents say."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModelUnusable) as raised:
        await asyncio.to_thread(load, Chosen("openai", "x", "http://localhost:1/v1"), {})
    assert words.INSTALL == raised.value.hint
    assert all("'.[models]'" in text for text in (words.INSTALL, (ROOT / "docs/native-agent.md").read_text()))


@pytest.mark.parametrize("name", ["nonsense:x", "groq:llama"])
async def test_a_provider_that_is_not_there_says_what_is_missing(name: str) -> None:
    """An unknown provider is an error that lists those that there are, also one that the model library knows."""
    provider, _, model = name.partition(":")
    with pytest.raises(ModelUnusable, match=r"no provider .*providers: openai"):
        await asyncio.to_thread(load, Chosen(provider, model), {"GROQ_API_KEY": KEY})
    with pytest.raises(ModelUnusable, match="no provider"):
        parse(name, {})


def test_the_configuration_knows_the_same_providers() -> None:
    """What acpd.toml may name is what there is."""
    assert ownagent.PROVIDERS == tuple(PROVIDERS)
    assert set(ownagent.OTHER_NAMES.values()) <= set(PROVIDERS)


@pytest.mark.parametrize(
    ("chosen", "title"),
    [
        (Chosen("openai", "m"), "OpenAI"),
        (Chosen("openai", "m", "https://api.openai.com/v1"), "OpenAI"),
        (Chosen("openai", "m", "http://127.0.0.1:8080/v1"), "127.0.0.1:8080"),
        (Chosen("openai-responses", "m", "https://me:pw@models.example/v1"), "models.example"),
        (Chosen("ollama", "m", "http://127.0.0.1:11434/v1"), "Ollama"),
    ],
)
def test_who_is_blamed(chosen: Chosen, title: str) -> None:
    """Texts name the provider only where it is asked; a server of one's own goes by its host, without a password."""
    assert title == chosen.title


async def test_a_model_that_is_not_offered_can_be_chosen() -> None:
    """Of a provider with very many models some are offered; what it has is accepted all the same, and nothing else."""

    class Seller(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's name
            """Say nothing."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": f"m{number:04}"} for number in range(1000)]}).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Seller)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "ACPD_HOME": "/nowhere"}
    offers = await asyncio.to_thread(Offers, Settings(model="openai:m0000"), environ, Tasks(lambda _, error: None))
    assert offers.usual is not None
    assert await offers.look(offers.usual)
    assert MOST == sum(each.name.startswith("m0") for each in offers.offered())
    assert "openai:m0999" not in [each.id for each in offers.offered()]
    assert offers.has("openai:m0999")
    assert not offers.has("openai:m1000")
    server.shutdown()
    server.server_close()


async def test_another_provider_is_asked_at_its_own_address_or_not_at_all() -> None:
    """A base_url for a provider that we do not know is an error: the conversation would go where its library wants."""
    with pytest.raises(ModelUnusable, match="no provider 'moonshotai'"):
        await asyncio.to_thread(load, Chosen("moonshotai", "x", "http://127.0.0.1:1"), {"MOONSHOTAI_API_KEY": KEY})


@pytest.mark.e2e
async def test_nothing_is_built_while_an_answer_comes() -> None:
    """What the SDK needs to read a stream is made when a model is loaded, not on the event loop."""
    await asyncio.to_thread(load, Chosen("openai", "gpt-5.6-terra"), {"OPENAI_API_KEY": KEY})
    from openai.types.responses import ResponseCompletedEvent, ResponseOutputItemAddedEvent

    assert ResponseCompletedEvent.__pydantic_complete__
    assert ResponseOutputItemAddedEvent.__pydantic_complete__
