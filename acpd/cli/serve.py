"""`acpd` as the agent of an editor; and `acpd run` on a terminal, which becomes the agent itself."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from acpd.cli import output
from acpd.config import OFFLINE, AgentChoice, Config, Flags, Paths
from acpd.errors import AcpdError, AgentNotFound, ConfigError

if TYPE_CHECKING:
    import argparse

    from acpd.server import Asked
    from acpd.transports.shimlink import Hello


def serve(flags: Flags, env: Mapping[str, str], agent: str | None) -> int:
    """Serve a configured agent on stdin and stdout until stdin ends."""
    paths = Paths.find(env)
    config = Config.load(paths, env, flags)
    return _serve(config, paths, config.choose(agent))


def run(flags: Flags, env: Mapping[str, str], name: str | None, command: Sequence[str], *, at_terminal: bool) -> int:
    """Serve the agent of this command; on a terminal become it, so that its own login and its own screen work."""
    choice = _wrapped(name, command)
    if at_terminal:
        become(choice, env, ())
    paths = Paths.find(env)
    return _serve(Config.load(paths, env, flags), paths, choice)


def _wrapped(name: str | None, command: Sequence[str]) -> AgentChoice:
    if not command:
        raise ConfigError("acpd run has no command", hint="acpd run -- COMMAND ARG...")
    return AgentChoice(name or "", tuple(command))


def daemon(flags: Flags, env: Mapping[str, str], idle_exit: float | None) -> int:
    """Serve every client that connects to the store's socket. One that a shim has started ends when nobody needs it."""
    told = _Told(env)
    try:
        paths = Paths.find(env)
        config = Config.load(paths, env, flags)
        from acpd import server, systemd, where

        if idle_exit is None and told.awaited:
            idle_exit = config.daemon.idle_exit
        words = {"config": flags.config, "storage": flags.storage, "backend": flags.backend}
        terms = server.Terms(
            path=where.socket_path(paths.runtime, words, env),
            understand=partial(_understood, paths),
            idle_exit=idle_exit,
            patient=told.awaited,
            inherited=systemd.listen_fds(os.environ, os.getpid()),
            ready=told.ready,
            prepare=_parser,
            reload=partial(Config.load, paths, env, flags),
        )
        return server.serve(config, paths, terms)
    except AcpdError as error:
        told.failed(error)
        raise


def _understood(paths: Paths, hello: Hello) -> Asked:
    """What a shim's command line means in its own environment and folder. Raises ConfigError."""
    from acpd.cli import arguments
    from acpd.server import Asked

    before, after = arguments.split(hello.arguments)
    try:
        values = _parser().parse_args(before)
    except SystemExit:  # --help: it would end this process, and everybody's sessions with it
        raise ConfigError(f"nothing to serve in {before}") from None
    flags = arguments.flags_of(values)
    for name in ("config", "storage"):
        if given := getattr(flags, name):
            flags = replace(flags, **{name: os.path.join(hello.cwd, os.path.expanduser(given))})
    config = Config.load(paths, hello.env, flags)
    if values.command in {"status", "attach"}:  # these bring no agent: whatever is configured, there is one to choose
        return Asked(config, config.choose(OFFLINE))
    if values.command != "run":
        return Asked(config, config.choose(values.agent))
    return Asked(config, _wrapped(values.name, [*values.words, *after]))


@functools.cache
def _parser() -> argparse.ArgumentParser:
    """Made once for all shims: 3 ms, and 40 for the first one, which imports argparse."""
    from acpd.cli import arguments

    return arguments.parser()


class _Told:
    """Whoever started this daemon waits for one line of it: `ready`, or `error CODE TEXT` (docs/protocol.md, "The shim")."""

    def __init__(self, env: Mapping[str, str]) -> None:
        said = env.get("ACPD_READY_FD", "")
        self._fd = int(said) if said.isdecimal() else None
        os.environ.pop("ACPD_READY_FD", None)
        if self._fd is not None:
            os.set_inheritable(self._fd, False)

    @property
    def awaited(self) -> bool:
        return self._fd is not None

    def ready(self) -> None:
        self._say(b"ready\n")

    def failed(self, error: AcpdError) -> None:
        code = 2 if isinstance(error, ConfigError) else 1
        self._say(f"error {code} {' '.join(str(error).split())}\n".encode(errors="replace"))

    def _say(self, line: bytes) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):  # nobody waits any more
                os.write(self._fd, line)
                os.close(self._fd)
            self._fd = None


def login(flags: Flags, env: Mapping[str, str], agent: str | None, extra: Sequence[str]) -> NoReturn:
    """An editor runs our own command with an agent's login arguments behind it (ACP v1 terminal authentication)."""
    config = Config.load(Paths.find(env), env, flags)
    become(config.choose(agent), env, extra)


def _serve(config: Config, paths: Paths, choice: AgentChoice) -> int:
    output.stdout()
    from acpd.daemon import serve_stdio

    return serve_stdio(config, paths, choice)


def become(choice: AgentChoice, env: Mapping[str, str], extra: Sequence[str]) -> NoReturn:
    """Replace this process by the agent's program. Raises AgentNotFound, which says where was searched."""
    from acpd.agents.process import find_program

    program, *arguments = choice.command
    inner = {**env, **choice.env}
    inner.pop("ACPD_LOGIN", None)
    found = find_program(program, inner.get("PATH", os.defpath), choice.cwd or ".")
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        if choice.cwd is not None:
            os.chdir(choice.cwd)
        os.execve(found, [program, *arguments, *extra], inner)  # noqa: S606  a program with its arguments, no shell
    except OSError as error:
        raise AgentNotFound(f"cannot start {error.filename or found}: {error.strerror}") from None
