"""Why a server is of no use."""

ENDED = "it ended"


class ServerFailed(Exception):
    """A server could not be started or reached, or its connection has ended. The message may hold values: hide them first.

    `unsent`: the server was not reached, so what it was asked last was not done.
    """

    def __init__(self, message: str, *, unsent: bool = False) -> None:
        super().__init__(message)
        self.unsent = unsent
