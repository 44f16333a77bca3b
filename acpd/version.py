"""The version, for acpd and for what builds its wheel. Not importlib.metadata: that import costs 20 ms."""

__version__ = "0.1.0"
