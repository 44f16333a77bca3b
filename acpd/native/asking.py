"""One request to a model, as a stream that leaves nothing open, whatever ends it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from acpd.native.answers import SEEN

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

    from acpd.native.models import Loaded
    from acpd.native.outcomes import Limits


@contextlib.asynccontextmanager
async def streamed(
    loaded: Loaded,
    messages: Sequence[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    answers: list[httpx2.Response] | None = None,
) -> AsyncGenerator[StreamedResponse]:
    """The model's answer as it comes. Raises what the SDKs raise. Cancelling it ends the request at the provider too.

    `answers` gets the HTTP answers.
    """
    from pydantic_ai.direct import model_request_stream

    answers = [] if answers is None else answers
    SEEN.set(answers)
    try:
        async with model_request_stream(
            loaded.model,
            messages,
            model_settings=settings,
            model_request_parameters=parameters,
            instrument=False,
        ) as stream:
            yield stream
    finally:
        for answer in answers:
            await answer.aclose()


def patient(limits: Limits) -> ModelSettings:
    """How long is waited; retries are told and bounded by who asks."""
    return {"max_retries": 0, "timeout": limits.silence, "first_event_timeout": limits.first}
