"""What a service manager says to a daemon and hears from it: three small protocols of environment variables and a socket.

sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3). Without the variables nothing here does anything.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping

from acpd.errors import ConfigError

FIRST = 3
"""The descriptors that are passed begin behind the standard ones."""
LISTENING = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
OURS = (*LISTENING, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Said to acpd alone: a program that it starts must not speak in its name."""


def notify(state: str, env: Mapping[str, str] | None = None) -> bool:
    """Tell the service manager `READY=1`, `STOPPING=1`, `WATCHDOG=1`, `STATUS=...`, several on lines of their own.

    Never blocks and never raises. Whether it was taken: False without a manager, or when its queue is full, in which case
    telling it again later helps. `env`: os.environ if None.
    """
    address = (os.environ if env is None else env).get("NOTIFY_SOCKET", "")
    if address[:1] not in {"/", "@"}:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
            speaker.setblocking(False)
            speaker.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
    except OSError:
        return False
    return True


def watchdog_interval(env: Mapping[str, str], pid: int) -> float | None:
    """Seconds between two `WATCHDOG=1`: half of what the manager waits for before it kills us. None: it does not watch us."""
    if env.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    microseconds = _number(env.get("WATCHDOG_USEC", ""))
    return microseconds / 2e6 if microseconds else None


def listen_fds(env: MutableMapping[str, str], pid: int) -> list[int]:
    """The listening sockets that this process was started with. No program that it starts inherits them.

    The variables are taken out of `env`, also when they are meant for another process. Raises ConfigError if a descriptor is
    not a listening Unix stream socket: what else it is acpd does not serve.
    """
    said_pid, count, names = (env.pop(name, "") for name in LISTENING)
    if said_pid != str(pid):
        return []
    labels = names.split(":")
    fds: list[int] = []
    for at in range(_number(count)):
        _check(FIRST + at, labels[at] if at < len(labels) else "")
        os.set_inheritable(FIRST + at, False)
        fds.append(FIRST + at)
    return fds


def is_journal(fd: int, env: Mapping[str, str]) -> bool:
    """Whether what is written to this descriptor goes to the journal; JOURNAL_STREAM of systemd.exec(5)."""
    try:
        there = os.fstat(fd)
    except OSError:
        return False
    return env.get("JOURNAL_STREAM") == f"{there.st_dev}:{there.st_ino}"


def without_ours(env: Mapping[str, str]) -> dict[str, str]:
    """The environment as programs may have it that acpd starts."""
    return {name: value for name, value in env.items() if name not in OURS}


def _check(fd: int, label: str) -> None:
    try:
        listener = socket.socket(fileno=fd)
    except OSError as error:
        raise _wrong(fd, label, f"is no socket: {error.strerror}") from None
    try:
        if (listener.family, listener.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
            raise _wrong(fd, label, "is not a Unix stream socket")
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise _wrong(fd, label, "does not listen")
    finally:
        listener.detach()


def _wrong(fd: int, label: str, what: str) -> ConfigError:
    name = f" ({label})" if label else ""
    hint = "in the socket unit: ListenStream= with a path, and Accept=no"
    return ConfigError(f"descriptor {fd}{name} that acpd was started with {what}", hint=hint)


def _number(text: str) -> int:
    """0 for what is none. Of a service's descriptors and microseconds none has more than 15 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
