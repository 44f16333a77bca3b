"""Every exception that acpd raises on purpose.

    AcpdError
    +-- ConfigError             a config file, variable or flag is wrong
    +-- QueryError              a search says nothing that can be looked for
    +-- LocalProtocolError      our bug: we tried to do what the protocol forbids
    +-- RequestError            answers one request with a JSON-RPC error; everything else goes on
    |   +-- Unanswered          the stream ended before the peer answered ours
    |   +-- Refused             the word of an agent that is written on acpd.api
    +-- FileFailed              a file could not be read or written for an agent
    +-- TerminalFailed          a command could not be run, watched or ended for an agent
    +-- ConnectionBroken        the byte stream is gone; nothing can be answered
    +-- AgentError              an agent program failed
    |   +-- AgentNotFound       its command does not exist
    |   +-- AgentTimeout        it did not answer in time
    |   +-- AgentExited         it ended
    +-- StoreError              storage failed
        +-- SessionNotFound     no such session
        +-- EntryNotFound       no such entry in a session, or more than one
        +-- SessionBusy         another process holds its lease
        +-- SessionReadOnly     written by a newer version, or damaged where we may not write
        +-- StateUnreadable     a state module cannot be read; a copy was put aside
        +-- StateTooBig         an agent wants to keep more than a session may have

Messages name the object and the cause; `hint` names the next step. None of them carries a secret.
"""

from __future__ import annotations

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REQUEST_CANCELLED = -32800
AUTH_REQUIRED = -32000
RESOURCE_NOT_FOUND = -32002


class AcpdError(Exception):
    """A failure that a person can understand: what, on which object, why, and what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(AcpdError):
    """A config file, environment variable or flag has a wrong value; the message names it."""


class QueryError(AcpdError):
    """The text of a search is no query."""

    def __init__(self, cause: str, *, hint: str = "") -> None:
        super().__init__(f"cannot search for this: {cause}", hint=hint)


class LocalProtocolError(AcpdError):
    """The rules of JSON-RPC or ACP were broken, by us: a bug."""


class RequestError(AcpdError):
    """The answer to one request is this JSON-RPC error.

    `data` is a JSON value or None; `raw`, when given, is the agent's own error object, passed on byte for byte.
    """

    def __init__(self, code: int, message: str, data: object = None, *, raw: bytes | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data
        self.raw = raw


class Unanswered(RequestError):
    """The stream ended before the peer answered a request of ours: this is not the peer's word."""

    def __init__(self, message: str) -> None:
        super().__init__(INTERNAL_ERROR, message)


class Refused(RequestError):
    """Raised by an agent's own code: the request is answered with this error, and nothing else happens."""


class FileFailed(AcpdError):
    """A file could not be read or written; the text says why, also to a model."""


class TerminalFailed(AcpdError):
    """A command could not be run, watched or ended; the text says why, also to a model."""


class ConnectionBroken(AcpdError):
    """The byte stream has ended; waiting requests end with it."""


class AgentError(AcpdError):
    """An agent program failed."""


class AgentNotFound(AgentError):
    """The command of an agent was not found; the message says which PATH was searched."""


class AgentTimeout(AgentError):
    """An agent did not answer within its limit."""


class AgentExited(AgentError):
    """An agent ended; the message has its exit code and the tail of its stderr."""


class StoreError(AcpdError):
    """Storage failed: `operation` on `target`, and whether trying again can help."""

    def __init__(self, operation: str, target: str, *, cause: str = "", hint: str = "", retryable: bool = False) -> None:
        super().__init__(f"cannot {operation} {target}" + (f": {cause}" if cause else ""), hint=hint)
        self.operation = operation
        self.target = target
        self.retryable = retryable


class SessionNotFound(StoreError):
    """There is no such session."""

    def __init__(self, session_id: str) -> None:
        plain, at, entry = session_id.partition("@")
        entry_too = f"a session, and no entry of it, is meant here: {plain}, without @{entry}"
        super().__init__("find", f"session {session_id}", hint=entry_too if at else "'acpd ls --all' lists what there is")
        self.session_id = session_id


class EntryNotFound(StoreError):
    """A session has no such entry, or (`cause`) several that are meant."""

    def __init__(self, session_id: str, entry: str, cause: str = "") -> None:
        self.entry = entry
        operation = "tell which entry is" if cause else "find entry"
        super().__init__(
            operation, f"{entry} of session {session_id}", cause=cause, hint=f"'acpd tree {session_id}' lists them"
        )


class SessionBusy(StoreError):
    """Another process holds the lease; `pid` is None when it cannot be told. `what`: is known of it."""

    def __init__(
        self, session_id: str, pid: int | None, what: str = "", *, hint: str = "close it there, then try again"
    ) -> None:
        where = (f"open in pid {pid}" if pid else "open in another process") + (f", {what}" if what else "")
        super().__init__("open", f"session {session_id}", cause=where, hint=hint, retryable=True)
        self.session_id = session_id
        self.pid = pid


class SessionReadOnly(StoreError):
    """The log may be read but not written: a newer format version, or no usable header."""


class StateUnreadable(StoreError):
    """A state module cannot be read; the unreadable bytes were copied aside and left in place."""


class StateTooBig(StoreError):
    """An agent wants to keep more than the values of a session may have; the earlier value stays."""
