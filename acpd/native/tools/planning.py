"""plan: what the user sees of how far the work is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from acpd.native.toolbox import ToolOutput
from acpd.native.tools.typed import Typed

if TYPE_CHECKING:
    from acpd.api.calls import ToolCall
    from acpd.api.session import Session
    from acpd.api.turn import Turn


STATE = "plan"
"""The state that keeps it: list[Step], as the model said it last."""


class Step(Struct, forbid_unknown_fields=True):
    content: Annotated[str, Meta(min_length=1, max_length=2000, description="What is to be done, in one sentence.")]
    status: Annotated[Literal["pending", "in_progress", "completed"], Meta(description="One at a time is in_progress.")] = (
        "pending"
    )
    priority: Literal["high", "medium", "low"] = "medium"


class PlanArguments(Struct, forbid_unknown_fields=True):
    steps: Annotated[list[Step], Meta(max_length=100, description="All steps, those that are done too.")]


class Plan(Typed[PlanArguments]):
    name = "plan"
    kind = "think"
    harmless = True
    arguments = PlanArguments
    description = (
        "Show the user the steps of work that has three or more, and each time one begins or is done all of them again. Not for"
        " simple tasks."
    )

    def title(self, session: Session, arguments: Mapping[str, Any]) -> str:
        steps = self.said(arguments).steps
        return f"Plan: {sum(step.status == 'completed' for step in steps)} of {len(steps)} done"

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return ""

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        from acpd.api.shapes import PlanEntry

        steps = self.said(arguments).steps
        turn.session.state.put(STATE, steps)
        await turn.plan([PlanEntry(step.content, priority=step.priority, status=step.status) for step in steps])
        left = next((step.content for step in steps if step.status != "completed"), "")
        return ToolOutput(f"The user sees it. Next: {left}" if left else "The user sees it. All is done.", shown=True)
