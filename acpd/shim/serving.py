"""The shim as a whole: whether it is wanted, its first connection, and what follows when one is lost."""

from acpd.shim.words import for_shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Mapping, Sequence

    from acpd.shim.link import Link
    from acpd.shim.pump import Pump

FAILED, INTERRUPTED = 1, 130
AGAIN_SECONDS = 30.0
"""How long a daemon is looked for that was lost."""
_PAUSES = (0.05, 1.0)
"""Seconds between two attempts: to connect, and to start one."""


def serve(arguments: "Sequence[str]", env: "Mapping[str, str]") -> int | None:
    """Serve the editor by a daemon until it has enough: the exit code. None: this is for the ordinary way, in this process.

    Then nothing was read of stdin, and stderr says why if a daemon should have served.
    """
    try:
        flags = for_shim(arguments, env)
        return None if flags is None else _serve(arguments, flags, env)
    except KeyboardInterrupt:
        return INTERRUPTED


def _serve(arguments: "Sequence[str]", flags: dict[str, str], env: "Mapping[str, str]") -> int | None:
    from acpd.shim.ledger import Ledger
    from acpd.shim.link import Link, NoDaemon, Refused, complain
    from acpd.shim.pump import Broken, Pump
    from acpd.where import runtime, socket_path

    try:
        link = Link(socket_path(runtime(env), flags, env), arguments)
    except OSError:
        return None  # the current folder is gone
    shim = Shim(link, Pump(Ledger()), flags, env)
    try:
        why = shim.first()
        if why is None:
            return shim.run()
        if why:
            complain(f"no daemon ({why}): this process serves alone")
    except Refused as refused:
        complain(str(refused))
        return refused.code or FAILED
    except (NoDaemon, Broken) as error:
        complain(str(error))
        return FAILED
    return None


class Shim:
    """One editor's. `flags` are those of its command line that `for_shim` found."""

    def __init__(self, link: "Link", pump: "Pump", flags: dict[str, str], env: "Mapping[str, str]") -> None:
        self._link = link
        self._pump = pump
        self._flags = flags
        self._env = env

    def first(self) -> str | None:
        """Connect for the first time. A text: there is no daemon, why; "" if that is as the user wants it.

        Raises Refused for a mistake of the user's.
        """
        from acpd.shim.link import NoDaemon, Refused, Silent

        try:
            try:
                self._join(self._open())
            except Silent as silent:
                return str(silent)
            except NoDaemon:
                return self._start()
        except Refused as refused:
            if refused.code is not None:
                raise
            return str(refused)
        except NoDaemon as none:
            return str(none)
        except OSError as error:
            return f"{self._link.path}: {error.strerror or error}"
        return None

    def run(self) -> int:
        """The exit code. Raises NoDaemon, Refused, Broken."""
        try:
            return self._run()
        finally:
            self._pump.close()

    def _run(self) -> int:
        self._pump.run()
        while not (self._pump.gone or self._pump.ended):
            self._again()
            self._pump.run()
        if self._pump.done:
            return 0
        from acpd.shim.link import complain

        complain("the daemon was lost before it had all of stdin")
        return FAILED

    def _open(self) -> "_socket.socket":
        return self._link.open(self._pump.ledger.hello())

    def _join(self, sock: "_socket.socket") -> None:
        self._pump.join(sock, self._link.rest)

    def _start(self) -> str | None:
        """As `first`, with a daemon that is started unless somebody else has just done so. Raises as `Link.open`."""
        from acpd.shim import starting
        from acpd.shim.link import NoDaemon

        try:
            if not starting.may_start(self._flags, self._env):
                return ""
            with starting.only_one(self._link.path, starting.START_SECONDS):
                try:
                    sock = self._open()
                except NoDaemon:
                    starting.start(self._link.path, self._flags, self._env)
                    sock = self._open()
        except starting.CannotStart as error:
            return str(error)
        self._join(sock)
        return None

    def _again(self) -> None:
        """A new connection for one that was lost, unless the editor goes away meanwhile.

        Raises NoDaemon after 30 s, Refused for a mistake of the user's.
        """
        import time

        from acpd.shim.link import NoDaemon, Refused

        end = time.monotonic() + AGAIN_SECONDS
        why: str | None = ""
        while not self._pump.gone:
            pause = _PAUSES[0]
            try:
                try:
                    return self._join(self._open())
                except NoDaemon:
                    why = self._start()
                    if why is None:
                        return None
                    pause = _PAUSES[bool(why)]
            except Refused as refused:
                if refused.code is not None:
                    raise
                why = str(refused)
            except (NoDaemon, OSError) as error:
                why = str(error)
            if time.monotonic() > end:
                raise NoDaemon(
                    f"the daemon was lost, and for {AGAIN_SECONDS:.0f} s there was no other: {why or 'none is running'}"
                )
            self._pump.look(pause)
        return None
