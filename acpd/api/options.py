"""A session's options and mode as ACP has them (session-config-options, session-modes)."""

from __future__ import annotations

from collections.abc import Sequence

from acpd.api.shapes import Choice, Option
from acpd.errors import INVALID_PARAMS, Refused

MODE = "mode"
"""The category whose option is the session's mode as well."""
VALUES = 20
"""Values of an option that an error names."""


def mode_of(options: Sequence[Option]) -> Option | None:
    return next((option for option in options if option.category == MODE), None)


def setup(options: Sequence[Option]) -> dict[str, object]:
    """Modes and options as session/new, load and resume answer them; empty if there are none."""
    if not options:
        return {}
    found: dict[str, object] = {"configOptions": rendered(options)}
    mode = mode_of(options)
    if mode is not None:
        modes = [{"id": each.value, **_named(each)} for each in mode.choices]
        found["modes"] = {"currentModeId": mode.value, "availableModes": modes}
    return found


def rendered(options: Sequence[Option]) -> list[dict[str, object]]:
    """The complete list, which is the only one that is ever sent."""
    return [_option(option) for option in options]


def _option(option: Option) -> dict[str, object]:
    found: dict[str, object] = {"id": option.id, "name": option.name, "type": "select", "currentValue": option.value}
    if option.category:
        found["category"] = option.category
    if option.description:
        found["description"] = option.description
    return {**found, "options": [{"value": each.value, **_named(each)} for each in option.choices]}


def _named(choice: Choice) -> dict[str, object]:
    return {"name": choice.name, "description": choice.description} if choice.description else {"name": choice.name}


def refusal(found: Sequence[Option], option: str, value: str) -> Refused:
    """Why this option cannot have this value: names what there is instead."""
    known = {each.id: [choice.value for choice in each.choices] for each in found}
    if option not in known:
        there = f"there are {', '.join(known)}" if known else "there is none"
        return Refused(INVALID_PARAMS, f"there is no option {option[:100]}: {there}")
    values = known[option]
    more = f" and {len(values) - VALUES} more" if len(values) > VALUES else ""
    shown = ", ".join(values[:VALUES])
    return Refused(INVALID_PARAMS, f"the option {option} cannot be {value[:100]}: it may be {shown}{more}")
