"""`acpd` as the agent of an editor; and `acpd run` on a terminal, which becomes the agent itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from acpd.cli import output
from acpd.config import AgentChoice, Config, Flags, Paths
from acpd.errors import AgentNotFound, ConfigError


def serve(flags: Flags, env: Mapping[str, str], agent: str | None) -> int:
    """Serve a configured agent on stdin and stdout until stdin ends."""
    paths = Paths.find(env)
    config = Config.load(paths, env, flags)
    return _serve(config, paths, config.choose(agent))


def run(flags: Flags, env: Mapping[str, str], name: str | None, command: Sequence[str], *, at_terminal: bool) -> int:
    """Serve the agent of this command; on a terminal become it, so that its own login and its own screen work."""
    if not command:
        raise ConfigError("acpd run has no command", hint="acpd run -- COMMAND ARG...")
    choice = AgentChoice(name or "", tuple(command))
    if at_terminal:
        become(choice, env, ())
    paths = Paths.find(env)
    return _serve(Config.load(paths, env, flags), paths, choice)


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
