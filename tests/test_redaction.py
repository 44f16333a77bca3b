"""Secrets out of what is logged."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from acpd.redaction import LIMIT, masked, redacted

SECRET = "Zm9vYmFyMTIzNDU2Nzg5MDEy"


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer {}",
        "authorization={}",
        '{{"Authorization": "Basic {}"}}',
        "headers: {{'x-api-key': '{}'}}",
        "Cookie: session={}; other={}",
        "got Bearer {} from the client",
        "OPENAI_API_KEY={} codex",
        "export GITHUB_TOKEN='{}'",
        '{{"password": "{}", "user": "me"}}',
        "GET https://api.example/v1?api_key={}&q=1",
        "codex-acp --api-key {} --fast",
        "codex-acp --auth-token={}",
        "git clone https://me:{}@example.org/x",
        "invalid key sk-{}",
        "gho_{}",
        "xoxb-{}",
        "eyJhbGciOiJIUzI1NiJ9.{}.{}",
    ],
)
def test_secrets_in_texts(text: str) -> None:
    """In headers, variables, JSON, addresses, arguments, and in the forms that keys are known by."""
    said = text.format(*[SECRET] * text.count("{}"))
    assert SECRET in said
    assert SECRET not in masked(said)
    assert "***" in masked(said)


@pytest.mark.parametrize(
    "text",
    [
        "stopping took too long",
        "unexpected token: }",
        "storage.path: the key needs a restart",
        "cannot open session 01a22c91-e7c1-708c-8806-70a0b2c3d4e5: open in pid 7",
        "no such program: /usr/bin/desk-accessory-builder",
        "basic authentication is not supported",
        "/home/me/.local/share/acpd/agents/codex/sessions/01a22c91.log.jsonl",
        "https://example.org/a?b=c",
    ],
)
def test_other_texts_stay(text: str) -> None:
    """What people need to find out what is wrong is not masked."""
    assert text == masked(text)


def test_values_by_their_names() -> None:
    """Whatever it is: a value that is named like a secret; all values of environments and headers."""
    event = redacted(
        None,
        "",
        {
            "api_key": [1, 2],
            "auth_token": SECRET,
            "env": {"HOME": "/me", "X": SECRET},
            "headers": [{"name": "X-Mine", "value": SECRET}],
            "params": {"mcp": [{"password": SECRET, "url": "http://a"}]},
            "key": "storage.path",
            "session": "s1",
            "count": 3,
            "tokens": 50_000,
            "error": ValueError(f"token={SECRET}"),
        },
    )
    assert SECRET not in repr(event)
    assert {"HOME": "***", "X": "***"} == event["env"]
    assert ("***", "***", "***") == (event["api_key"], event["auth_token"], event["headers"])
    assert ("storage.path", "s1", 3, 50_000) == tuple(event[key] for key in ("key", "session", "count", "tokens"))
    assert {"mcp": [{"password": "***", "url": "http://a"}]} == event["params"]


@given(some.text(alphabet=list("keytokn=:-_ sk/@'\"\n\\Aa1."), max_size=300))
def test_masking_ends_for_every_text(text: str) -> None:
    """It grows by three characters for each secret at most."""
    assert len(masked(text)) <= len(text) + 3 * masked(text).count("***")


_LONG = ["token", "--key ", "a.token=", "://", "-key", "eyJaaaaaaaa-", "cookie ", "basic 1", "sk-"]


@pytest.mark.parametrize("text", _LONG)
def test_long_texts_cost_little(text: str) -> None:
    """What is behind the limit is cut off first, and the rest costs linear time: no text keeps the log from going on."""
    start = time.process_time()
    assert len(masked(text * 100_000)) <= 3 * LIMIT
    assert time.process_time() - start < 1
