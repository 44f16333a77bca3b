"""acpd makes the sessions of coding agents durable. Nothing is imported here: importing it must cost nothing."""


def __getattr__(name: str) -> str:
    """`__version__`, for who asks."""
    if name == "__version__":
        from acpd.version import __version__

        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
