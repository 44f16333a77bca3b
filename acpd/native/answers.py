"""What a provider's answer may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.models import Model


def lean(model: Model) -> Model:
    """The model for chat completions, made such that an answer costs as much as it is long.

    pydantic_ai puts each piece of a text behind a copy of all that came before, for the places of citations, with which
    nothing is done here: 10,000 pieces of 500 letters took ten seconds of CPU.
    """
    kind: Any = type(model)
    usual: Any = model
    stream: Any = usual._streamed_response_cls  # to be overridden, as its docstring says

    def map_text_delta(self: Any, choice: Any) -> Any:
        self._raw_text_content = ""
        return stream._map_text_delta(self, choice)

    made = type(stream.__name__, (stream,), {"_map_text_delta": map_text_delta})
    usual.__class__ = type(kind.__name__, (kind,), {"_streamed_response_cls": made})
    return model
