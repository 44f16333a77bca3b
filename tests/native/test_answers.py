"""What a provider's answer may cost, and what becomes of one that is none."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from acpd.native.history import History
from acpd.native.models import Chosen, load
from tests.native.turns import Told, loaded, talk
from tests.support.models import SSE, ModelServer, answer, model_server


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made
        assert [] == made.wrong


@pytest.mark.e2e
@pytest.mark.parametrize("one", ["chat", "anthropic", "gemini", "responses"])
async def test_many_pieces_cost_as_much_as_they_are_long(server: ModelServer, one: str) -> None:
    """An answer of 4,000 pieces costs about the same CPU, be it of 20 KB or of 8 MB: no piece copies those before."""
    model, spent = await loaded(one, server.url), dict[int, float]()
    for size in (5, 5, 2000):  # the first one warms up
        server.canned = [_in_pieces(one, 4000, size)]
        told, began = Told("x"), time.thread_time()
        await talk(told, model, History())
        spent[size] = time.thread_time() - began
        assert 4000 * size == len(told.texts())
    assert spent[2000] < 3 * spent[5] + 0.5


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "ollama", "openrouter", "deepseek", "dashscope"])
def test_every_model_of_chat_completions_is_lean(provider: str) -> None:
    """Whatever the provider: what its streams put together is what costs."""
    url = "http://127.0.0.1:9/v1" if provider != "openrouter" else ""
    model = load(Chosen(provider, "a/m", url), {"OPENROUTER_API_KEY": "no-key-at-all"}).model
    stream = model._streamed_response_cls  # type: ignore[attr-defined]
    assert "lean" in stream._map_text_delta.__qualname__


def _in_pieces(dialect: str, count: int, size: int) -> bytes:
    """A stream in which the piece of a text comes so often, with so many letters."""
    whole = answer(dialect, "@@@").removeprefix(SSE).split(b"\n\n")
    is_piece = {"responses": b"output_text.delta", "gemini": b"@@@", "chat": b"@@@", "anthropic": b"text_delta"}[dialect]
    events = [event.replace(b"@@@", b"y" * size) for event in whole for _ in range(count if is_piece in event else 1)]
    return SSE + b"\n\n".join(events)
