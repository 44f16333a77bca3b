"""Which models a provider has, as it says itself. One request, in a thread: the list is an offer, not needed for anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from acpd.native.models import Chosen, key_of

PATIENCE = 5.0
"""Seconds."""
LARGEST = 8 << 20
"""Bytes of an answer."""
OWN_URLS = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
    "openrouter": "https://openrouter.ai/api/v1",
    "deepseek": "https://api.deepseek.com",
    "dashscope": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
}
OTHER_USES = (
    *("audio", "babbage", "computer-use", "dall-e", "davinci", "embed", "image", "imagen", "live", "moderation", "ocr"),
    *("realtime", "rerank", "search", "sora", "speech", "transcribe", "tts", "veo", "whisper"),
)
"""Words in the names of models that hold no conversation."""


def listed(like: Chosen, env: Mapping[str, str]) -> tuple[Chosen, ...]:
    """All models where `like` is, by name; () if it does not say within PATIENCE. Blocks."""
    import http.client
    import urllib.request

    url, headers = _request(like, key_of(like.provider, env))
    if not url.startswith(("http://", "https://")):
        return ()
    try:
        request = urllib.request.Request(url)  # noqa: S310  looked at above
        for name, value in headers.items():
            request.add_unredirected_header(name, value)  # the key is for this server only
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            names = _names(msgspec.json.decode(answer.read(LARGEST)))
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        return ()
    talks = [name for name in names if not any(word in name.lower() for word in OTHER_USES)]
    return tuple(Chosen(like.provider, name, like.base_url) for name in sorted(set(talks)))


def _request(like: Chosen, key: str) -> tuple[str, dict[str, str]]:
    provider = like.provider.removesuffix("-chat").removesuffix("-responses")
    base = (like.base_url or OWN_URLS.get(provider, "")).rstrip("/")
    if provider == "anthropic":
        return f"{base}/v1/models?limit=1000", {"x-api-key": key, "anthropic-version": "2023-06-01"}
    if provider == "google":
        return f"{base}/v1beta/models?pageSize=1000", {"x-goog-api-key": key}
    return f"{base}/models", {"Authorization": f"Bearer {key}"} if key else {}


def _names(answer: Any) -> Sequence[str]:
    """Of any of the dialects. Raises TypeError if it is none."""
    found = (answer.get("data") or answer.get("models")) if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise TypeError("no list of models")
    models = [each for each in found if isinstance(each, dict)]
    asked = [each for each in models if "generateContent" in each.get("supportedGenerationMethods", ["generateContent"])]
    names = [each.get("id") or each.get("name") for each in asked]
    return [name.removeprefix("models/") for name in names if isinstance(name, str)]
