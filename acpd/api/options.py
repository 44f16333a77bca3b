"""A session's options and mode as ACP has them (session-config-options, session-modes)."""

from __future__ import annotations

from collections.abc import Sequence

from acpd.api.shapes import Choice, Option

MODE = "mode"
"""The category whose option is the session's mode as well."""


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
