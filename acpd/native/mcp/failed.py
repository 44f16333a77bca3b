"""Why a server is of no use."""

ENDED = "it ended"


class ServerFailed(Exception):
    """A server could not be started or reached, or its connection has ended. The message may hold values: hide them first."""


class ServerFlooded(ServerFailed):
    """It said too much. It is not connected again by itself."""
