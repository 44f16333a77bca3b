"""acpd makes the sessions of coding agents durable. Nothing is imported here: importing it must cost nothing."""

__version__ = "0.1.0"
