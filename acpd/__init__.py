"""acpd makes the sessions of coding agents durable. Empty on purpose: importing it must cost nothing."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("acpd")
    raise AttributeError(f"module 'acpd' has no attribute {name!r}")
