"""What became of a request to a model: whether to try again, what the user reads, how the turn ends.

| what happened | the turn |
|---|---|
| refused, filtered | `refusal`; the model forgets the prompt and what followed it |
| the answer reached the limit of tokens | `max_tokens` |
| the conversation is too long for the model | `max_tokens` |
| the turn's limit of requests | `max_turn_requests` |
| the key is missing, wrong or not allowed (401, 403) | error -32000 (authentication required) |
| no such model (404), any other 4xx | error -32603 |
| 429, 5xx, no connection, no answer in time: tried again before the first token, then | error -32603 |
| the stream broke off | error -32603; what was said stays |

Every text names the cause and the next step. None of them has a stack trace, and no key: what a provider wrote is shown in
part only, and with every key that the environment has taken out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from acpd.errors import AUTH_REQUIRED, INTERNAL_ERROR

if TYPE_CHECKING:
    from acpd.native.models import Chosen

Stop = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal"]
QUOTE = 300
"""Characters of a provider's own words that are shown."""
HIDDEN = "***"


class Limits(NamedTuple):
    """`requests` of a turn; `attempts` of one request; `patience`, `first`, `silence` in seconds: the longest wait before
    another attempt, until the first sign of an answer, between two signs.
    """

    requests: int = 100
    attempts: int = 5
    patience: float = 60.0
    first: float = 600.0
    silence: float = 300.0


class StreamCut(Exception):
    """An answer broke off before its end."""


class Outcome(NamedTuple):
    """`stop` None: the prompt is answered with the error `code`. `forget`: the model shall not see this prompt again."""

    text: str
    stop: Stop | None = None
    code: int = INTERNAL_ERROR
    forget: bool = False


def wait_before(error: Exception, attempt: int, limits: Limits) -> float | None:
    """Seconds until another attempt of a request that failed for the `attempt`th time, counted from 1; None: give up.

    A provider that asks for more than `limits.patience` is not waited for.
    """
    from pydantic_ai import exceptions as known

    passing = (known.ModelRateLimitError, known.ModelServerError, known.ModelUnavailableError, known.ModelConnectionError)
    if attempt >= limits.attempts or not (isinstance(error, passing) or _is_conflict(error)):
        return None
    asked: float | None = getattr(error, "retry_after", None)
    if asked is not None:
        return asked if asked <= limits.patience else None
    longest = min(float(2**attempt), limits.patience)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  so that many agents do not come back at once


def _is_conflict(error: Exception) -> bool:
    return getattr(error, "status_code", 0) in {408, 409, 425}


def brief(error: Exception) -> str:
    """What happened, in some words: for a notice."""
    status = getattr(error, "status_code", None)
    from pydantic_ai import exceptions as known

    if isinstance(error, known.ModelRateLimitError):
        return f"too many requests (HTTP {status or 429})"
    if isinstance(error, known.ModelUnavailableError):
        return "the provider is overloaded" + (f" (HTTP {status})" if status else "")
    if isinstance(error, known.ModelTimeoutError | known.ModelRequestTimeout):
        return "the provider did not answer in time"
    if isinstance(error, known.ModelConnectionError):
        return "the provider cannot be reached"
    return f"the provider failed (HTTP {status})" if status else "the provider failed"


def outcome(error: Exception, chosen: Chosen, secrets: Sequence[str] = ()) -> Outcome:
    """How a turn ends whose request has failed for good."""
    from pydantic_ai import exceptions as known

    if isinstance(error, StreamCut):
        return Outcome(
            f"The answer of {chosen.id} broke off before its end. What was said so far is kept: say `go on`, or ask again."
        )
    if isinstance(error, known.ContentFilterError):
        return refused(chosen, "")
    if isinstance(error, known.ModelAPIError):
        return _of_provider(error, chosen, _quoted(error, secrets))
    if isinstance(error, known.UnexpectedModelBehavior):
        return Outcome(f"{chosen.id} gave an answer that cannot be read: {without(error.message, secrets)[:QUOTE]}. Ask again.")
    if isinstance(error, known.UserError):
        return Outcome(f"{chosen.id} cannot be asked this: {without(error.message, secrets)[:QUOTE]}")
    return Outcome(
        f"acpd-agent failed while it talked to {chosen.id} ({type(error).__name__}); its stderr says where. What was said so far is kept."
    )


def _of_provider(error: Exception, chosen: Chosen, said: str) -> Outcome:
    from pydantic_ai import exceptions as known

    status = getattr(error, "status_code", None)
    number = f" (HTTP {status})" if status else ""
    if isinstance(error, known.ModelAuthenticationError):
        return Outcome(
            f"{chosen.title} did not accept the key{number}. Set the right one, or run: acpd-agent --setup", code=AUTH_REQUIRED
        )
    if isinstance(error, known.ModelNotFoundError):
        return Outcome(
            f"{chosen.title} has no model {chosen.name}{number}, or its address is wrong. Choose another model.{said}"
        )
    if isinstance(error, known.ModelContextWindowExceededError):
        return Outcome(
            f"The conversation is too long for {chosen.id}{number}. This prompt was left out of what the model remembers: "
            "go on with a shorter one, choose a model with a larger context, or begin a new session.",
            stop="max_tokens",
            forget=True,
        )
    if isinstance(error, known.ModelQuotaExceededError):
        return Outcome(
            f"The account at {chosen.title} has no credit or quota left{number}. Top it up, or choose another model.{said}"
        )
    if isinstance(error, known.ModelRateLimitError):
        return Outcome(
            f"{chosen.title} takes no more requests at the moment{number}{_after(error)}. Your prompt is kept: say `go on`.{said}"
        )
    if isinstance(error, known.ModelRequestRejectedError):
        return Outcome(f"{chosen.title} rejected the request{number}.{said}")
    words = brief(error)
    return Outcome(
        f"{words[0].upper()}{words[1:]}: {chosen.id} gave no answer. Your prompt is kept: say `go on` in a while.{said}"
    )


def _after(error: Exception) -> str:
    seconds: float | None = getattr(error, "retry_after", None)
    return "" if seconds is None else f"; it asks to wait {seconds:.0f} s"


def refused(chosen: Chosen, said: str) -> Outcome:
    """`said`: the provider's explanation, or ""."""
    why = f": {said[:QUOTE]}" if said else ""
    return Outcome(
        f"{chosen.id} refused to answer{why}. This prompt was left out of what the model remembers.",
        stop="refusal",
        forget=True,
    )


def too_long(chosen: Chosen) -> Outcome:
    return Outcome(f"The answer of {chosen.id} was cut at its limit of tokens: say `go on`.", stop="max_tokens")


def too_many(limits: Limits) -> Outcome:
    return Outcome(
        f"The model was asked {limits.requests} times in this turn, which is the limit: say `go on`.", stop="max_turn_requests"
    )


def _quoted(error: Exception, secrets: Sequence[str]) -> str:
    """The provider's own words, where it has some."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message") if isinstance(inner, dict) else inner
    if not isinstance(body, str) or not body.strip():
        return ""
    return f" It said: {without(body.strip(), secrets)[:QUOTE]}"


def without(text: str, secrets: Sequence[str]) -> str:
    """The text without the keys; longer ones first, because one may be part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
