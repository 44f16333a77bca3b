"""One attempt to reach a daemon: connect, say who this shim is, and hear that it is welcome."""

import _socket
import os
import sys

from acpd.where import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION = 1
ANSWER_SECONDS = 10.0
"""How long a daemon may take to answer a hello."""
_ANSWER = 64 * 1024


class NoDaemon(Exception):
    """Nobody answers at the socket, for a reason that may pass: `str()` says which.

    The errors here are no AcpdErrors: `acpd.errors` would be imported at every start, for nothing.
    """


class Silent(NoDaemon):
    """There is one, which does not answer: another one would not get its store."""


class Refused(Exception):
    """A daemon does not serve this shim. `code`: of the mistake that the user made; None: it is none, another may serve."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(text)
        self.code = code


class Link:
    """Where the daemon is, and the part of the hello that is always the same. `socket` is the connection, once there is one."""

    def __init__(self, path: str, arguments: "Sequence[str]") -> None:
        """Raises OSError if the current folder is gone."""
        self.path = path
        self.rest = b""
        """What followed the answer in the same packet."""
        self._token = os.urandom(16).hex().encode()
        self._fixed = [b"arg=" + os.fsencode(word) for word in arguments]
        self._fixed += [b"cwd=" + os.getcwdb(), b"runs=1"]
        self._fixed += [b"env=%b=%b" % item for item in os.environb.items()]

    def open(self, state: "Iterable[bytes]") -> _socket.socket:
        """A connection on which this shim was welcomed; it never blocks. `state`: the other items of the hello.

        Raises NoDaemon, Refused, or another OSError: this process may not connect there at all.
        """
        body = b"\0".join([*self._fixed, *state])
        made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            made.settimeout(ANSWER_SECONDS)
            _connect(made, self.path)
            try:
                made.sendall(b"acpd-shim %d %b %d\n%b" % (VERSION, self._token, len(body), body))
                self._hear(made)
            except TimeoutError:
                raise Silent(f"the daemon at {self.path} has not answered for {ANSWER_SECONDS:.0f} s") from None
            except OSError as error:
                raise NoDaemon(f"the daemon at {self.path} does not answer: {error}") from None
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        return made

    def _hear(self, made: _socket.socket) -> None:
        """Raises NoDaemon, Refused, OSError."""
        said = b""
        while b"\n" not in said:
            data = made.recv(_ANSWER)
            said += data
            if not data or len(said) > 2 * _ANSWER:
                raise NoDaemon(f"the daemon at {self.path} broke off")
        line, _, self.rest = said.partition(b"\n")
        words = line.split(b" ", 4)
        if words[:1] != [b"acpd-daemon"] or len(words) < 3:
            raise Refused(None, f"who answers at {self.path} is no acpd")
        if words[2] != b"ok":
            code = words[3] if len(words) > 3 else b"-"
            text = b" ".join(words[4:]).decode(errors="replace")
            raise Refused(int(code) if code.isdigit() else None, text or "the daemon does not serve this")


def _connect(made: _socket.socket, path: str) -> None:
    """Raises NoDaemon where there may be one later, OSError where this process may not connect."""
    folder = -1
    try:
        reached, folder = address(path)
        made.connect(reached)
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoDaemon(f"nobody listens at {path}") from None
    except BlockingIOError:  # Linux: too many wait to be taken
        raise NoDaemon(f"the daemon at {path} is too busy") from None
    finally:
        if folder >= 0:
            os.close(folder)


def complain(text: str) -> None:
    """One line on stderr."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    sys.stderr.write(f"acpd: {clean}\n")
