"""What became of a request to a model: whether to try again, what the user reads, how the turn ends.

| what happened | the turn |
|---|---|
| refused, filtered | `refusal`; the model forgets the prompt and what followed it |
| the answer reached the limit of tokens | `max_tokens` |
| the conversation is too long for the model | again with a summary, then without older results; else `max_tokens`, forgotten |
| the turn's limit of requests | `max_turn_requests` |
| the key is wrong or not allowed (401, 403) | error -32000 (log in); the prompt is forgotten if it has no answer |
| no such model (404) | error -32603; as above |
| the request is too large (413) | as a conversation that is too long |
| the request is rejected (any other 4xx, but for those of `_NOT_THE_REQUEST`) | error -32603; the model forgets the prompt |
| 429, 5xx, no connection, no answer in time: tried again before the first token, then | error -32603 |
| the answer is none that can be read | error -32603; as above |
| the stream broke off, or has more than an answer may have | error -32603; what was said stays |

Every text names the cause and the next step. None of them has a stack trace, and no key: what a provider wrote is shown in
part only, and with every key that the environment has taken out, base64 and the like of it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from acpd.config import HIDDEN
from acpd.errors import AUTH_REQUIRED, INTERNAL_ERROR
from acpd.native.spellings import spellings

if TYPE_CHECKING:
    from acpd.api.shapes import Stop
    from acpd.native.models import Chosen

QUOTE = 300
"""Characters of a provider's own words that are shown."""


class Limits(NamedTuple):
    """`requests` of a turn; `attempts` of one request; `patience`, `first`, `silence` in seconds: the longest wait before
    another attempt, until the first sign of an answer, between two signs.
    """

    requests: int = 100
    attempts: int = 5
    patience: float = 60.0
    first: float = 600.0
    silence: float = 300.0


LIMITS = Limits()


class StreamCut(Exception):
    """An answer broke off before its end, without an error, or the model could not write it (a call that was malformed)."""


class AnswerBroken(Exception):
    """What came from the provider is no answer of its interface: its cause is what a library says to it. `status`: of HTTP."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status_code = status if status != _OK else None


class Outcome(NamedTuple):
    """`stop` None: the prompt is answered with the error `code`. `forget`: the model shall not see this prompt again.
    `mend`: the key or the model's name is wrong.
    """

    text: str
    stop: Stop | None = None
    code: int = INTERNAL_ERROR
    forget: bool = False
    mend: bool = False


class _Cause(NamedTuple):
    """`kind`: a class of pydantic_ai.exceptions, or one of ours. `text`: what is wrong; `after`: what becomes of the prompt,
    what to do. In both {provider}, {model}, {http} the status, {wait} what was asked for, {said} the provider's own words,
    {error} those of an error of ours, {then} what to do about the prompt. `passes`: it may be over in a moment. `brief`: for a
    notice. `again`: the user mends something and sends the prompt again, so that it is forgotten unless the turn had begun.
    """

    kind: str
    text: str
    after: str = ""
    stop: Stop | None = None
    code: int = INTERNAL_ERROR
    forget: bool = False
    passes: bool = False
    brief: str = ""
    again: bool = False


_KEPT = "Your prompt is kept: say `go on` in a while.{said}"
_SEND_AGAIN = "Then send your prompt again: the model does not remember it."
_GO_ON = "Then say `go on`: what was done so far is kept."
TRY_DEFAULT = " If it is about the thinking that was chosen: set Thinking to Default."
_FORGOTTEN = "This prompt was left out of what the model remembers, or every other would be rejected too.{said}"
_CAUSES = (
    _Cause(
        "ModelAuthenticationError",
        "{provider} did not accept the key{http}.",
        "Set the right one, or run: acpd-agent --setup. {then}",
        code=AUTH_REQUIRED,
        again=True,
    ),
    _Cause(
        "ModelNotFoundError",
        "{provider} has no model {name}{http}, or its address is wrong.",
        "Choose another model. {then}{said}",
        again=True,
    ),
    _Cause(
        "ModelContextWindowExceededError",
        "The conversation is too long for {model}{http}.",
        "This prompt was left out of what the model remembers: go on with a "
        "shorter one, choose a model with a larger context, or begin a new session.",
        stop="max_tokens",
        forget=True,
    ),
    _Cause(
        "ModelQuotaExceededError",
        "The account at {provider} has no credit or quota left{http}.",
        "Top it up, or choose another model; then say `go on`: your prompt is kept.{said}",
    ),
    _Cause(
        "ModelRateLimitError",
        "{provider} takes no more requests at the moment{http}{wait}.",
        _KEPT,
        passes=True,
        brief="too many requests{http}",
    ),
    _Cause("ModelUnavailableError", "{provider} is overloaded{http}.", _KEPT, passes=True, brief="overloaded{http}"),
    _Cause("ModelServerError", "{provider} failed{http}.", _KEPT, passes=True, brief="it failed{http}"),
    _Cause("ModelTimeoutError", "{provider} did not answer in time.", _KEPT, passes=True, brief="no answer in time"),
    _Cause("ModelRequestTimeout", "{provider} did not answer in time.", _KEPT),
    _Cause("ModelConnectionError", "{provider} cannot be reached.", _KEPT, passes=True, brief="it cannot be reached"),
    _Cause("ModelRequestRejectedError", "{provider} rejected the request{http}.", _FORGOTTEN, forget=True),
    _Cause("ModelAPIError", "{provider} failed{http}.", _KEPT),
    _Cause(
        "ContentFilterError",
        "{provider} refused this.",
        "The prompt was left out of what the model remembers.",
        stop="refusal",
        forget=True,
    ),
    _Cause(
        "AnswerTooLarge",
        "The answer of {model} was stopped: {error}.",
        "What was said so far is kept: say `go on`, or ask again.",
    ),
    _Cause(
        "AnswerBroken",
        "{provider} gave an answer that cannot be read{http}.",
        "Is the address right? Your prompt is kept: then say `go on`.",
        brief="it cannot be read",
    ),
    _Cause("StreamCut", "The answer of {model} ended before it began.", _KEPT, passes=True, brief="an empty answer"),
    _Cause(
        "UnexpectedModelBehavior",
        "{provider} gave an answer that cannot be read.",
        "Is the address right? " + _KEPT,
        passes=True,
        brief="an empty answer",
    ),
    _Cause("UserError", "{model} cannot be asked this.", _FORGOTTEN, forget=True),
)
"""The first whose kind an error has counts: subclasses come before their bases."""
_UNKNOWN = _Cause("", "acpd-agent failed while it talked to {model} ({class}); its stderr says where.")
_ENDED = {
    "ModelAuthenticationError",
    "ModelContextWindowExceededError",
    "ContentFilterError",
    "ModelQuotaExceededError",
    "AnswerTooLarge",
}
"""What has its own words also when the answer had begun."""
_OK = 200
_TOO_LARGE = 413
_NOT_THE_REQUEST = {401, 402, 403, 404, 408, 409, 425, 429}
"""The 4xx that another attempt, key, account or model may mend; any other says that this request is never taken."""


def _cause(error: Exception) -> _Cause:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    cause = next((cause for cause in _CAUSES if cause.kind in kinds), _UNKNOWN)
    status = getattr(error, "status_code", None) or 0
    if cause.kind in {"ModelAPIError", "ModelRequestRejectedError"} and 400 <= status < 500:
        if status == _TOO_LARGE:
            return _of_kind("ModelContextWindowExceededError")
        return _of_kind("ModelAPIError" if status in _NOT_THE_REQUEST else "ModelRequestRejectedError")
    return cause


def _of_kind(kind: str) -> _Cause:
    return next(cause for cause in _CAUSES if cause.kind == kind)


def is_known(error: Exception) -> bool:
    """Whether nobody need look at where it comes from."""
    inner = error.__cause__ if isinstance(error, AnswerBroken) else None
    return _cause(inner if isinstance(inner, Exception) else error) is not _UNKNOWN


def is_broken(error: Exception) -> bool:
    """Whether an error is about what has been answered, if anything has: libraries are not made for what is no answer."""
    cause = _cause(error)
    return cause is _UNKNOWN or (cause.kind == "ModelAPIError" and getattr(error, "status_code", None) is None)


def is_rejected(error: Exception) -> bool:
    """Whether something in the request is not to be had from this model."""
    return _cause(error).kind == "ModelRequestRejectedError"


def is_unknown_model(error: Exception) -> bool:
    """Whether the provider has no model of that name."""
    return _cause(error).kind == "ModelNotFoundError"


def is_too_long(error: Exception) -> bool:
    """Whether the conversation does not fit into the model's context."""
    return _cause(error).kind == "ModelContextWindowExceededError"


def wait_before(error: Exception, attempt: int, limits: Limits) -> float | None:
    """Seconds until another attempt of a request that failed for the `attempt`th time, counted from 1; None: give up.

    A provider that asks for more than `limits.patience` is not waited for.
    """
    if attempt >= limits.attempts or not _cause(error).passes:
        return None
    asked: float | None = getattr(error, "retry_after", None)
    if asked is not None:
        return asked if asked <= limits.patience else None
    import random  # 8 ms

    longest = min(float(2**attempt), limits.patience)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  so that many agents do not come back at once


def brief(error: Exception, chosen: Chosen) -> str:
    """What passes, in some words: for a notice."""
    return _filled(_cause(error).brief, error, chosen, ())


def outcome(
    error: Exception, chosen: Chosen, secrets: Sequence[str] = (), *, begun: bool = False, worked: bool = False
) -> Outcome:
    """How a turn ends whose request has failed for good. `begun`: after something of its answer was heard; `worked`: after
    another request of the turn was answered.
    """
    cause = _cause(error)
    text = f"{cause.text} {cause.after}".rstrip()
    if begun and cause is not _UNKNOWN and cause.kind not in _ENDED:
        why = f" ({cause.brief})" if cause.brief and cause.kind not in {"StreamCut", "UnexpectedModelBehavior"} else ""
        text = (
            f"The answer of {{model}} broke off before its end{why}. What was said so far is kept: say `go on`, or ask again."
        )
    kept = begun or worked
    text = _filled(text, error, chosen, secrets, then=_GO_ON if kept else _SEND_AGAIN)
    return Outcome(text, cause.stop, cause.code, cause.forget or (cause.again and not kept), cause.again)


def fault(error: Exception, chosen: Chosen, secrets: Sequence[str]) -> str:
    """What is wrong where there is no prompt yet. With the address, which may be it."""
    cause = _cause(error)
    said = "{said}" if "{said}" in cause.after else ""
    return _filled(cause.text + said, error, chosen, secrets, provider=chosen.base_url or chosen.title)


def _filled(text: str, error: Exception, chosen: Chosen, secrets: Sequence[str], then: str = "", provider: str = "") -> str:
    status = getattr(error, "status_code", None)
    wait: float | None = getattr(error, "retry_after", None)
    values = {
        "provider": provider or chosen.title,
        "model": chosen.id,
        "name": chosen.name,
        "http": f" (HTTP {status})" if status else "",
        "wait": "" if wait is None else f"; it asks to wait {wait:.0f} s",
        "said": _quoted(error, secrets),
        "class": type(error).__name__,
        "error": str(error),
        "then": then,
    }
    return text.format_map(values)


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


def empty(chosen: Chosen) -> Outcome:
    return Outcome(f"{chosen.id} gave an empty answer: ask again.", stop="end_turn")


def _quoted(error: Exception, secrets: Sequence[str]) -> str:
    """The provider's own words, where it has some; UserError: pydantic_ai's."""
    body: object = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message") if isinstance(inner, dict) else inner
    elif body is None and type(error).__name__ == "UserError":
        body = str(error)
    if not isinstance(body, str) or not body.strip():
        return ""
    return f" It said: {' '.join(without(body, secrets).split())[:QUOTE]}"


def without(text: str, secrets: Sequence[str]) -> str:
    """The text without the keys, however they are spelled; longer spellings first, because one may be part of another."""
    for spelling in sorted({each for secret in secrets for each in spellings(secret)}, key=len, reverse=True):
        text = text.replace(spelling, HIDDEN)
    return text
