"""From the arguments to a command; and from an exception to one line and an exit code."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from acpd.cli import output
from acpd.cli.call import Call
from acpd.config import NO_FLAGS, Config, Flags, Paths
from acpd.errors import AcpdError, ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

T = TypeVar("T")
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def program(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one command. Never raises; a reader that has seen enough (`| head`) is no failure."""
    try:
        return _run(arguments, env)
    except BrokenPipeError:
        output.give_up_stdout()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except ConfigError as error:
        output.complain(error)
        return USAGE
    except AcpdError as error:
        output.complain(error)
        return FAILED


def _run(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    if not arguments and not _login(env) and not os.isatty(0):
        from acpd.cli import serve  # what an editor starts; it does not wait for argparse

        return serve.serve(NO_FLAGS, env, None)
    from acpd.cli import arguments as command_line

    if _login(env):
        known, extra = command_line.login().parse_known_args(arguments)
        if extra[:1] != ["run"]:
            from acpd.cli import serve

            return serve.login(command_line.flags_of(known), env, known.agent, extra)
    before, after = command_line.split(arguments)
    parser = command_line.parser()
    values, unknown = parser.parse_known_args(before)
    if unknown and values.command == "run":
        raise ConfigError(f"acpd run does not know {unknown[0]}", hint="put -- before the agent: acpd run -- COMMAND ARG...")
    if unknown and values.command == "label" and values.text is not None and not any(word.startswith("-") for word in unknown):
        text = shlex.quote(" ".join([values.text, *unknown]))
        raise ConfigError("a label of several words stands in quotes", hint=f"acpd label {shlex.quote(values.place)} {text}")
    if values.command == "search":
        values.words_to_find += [*(word for word in unknown if not word.startswith("--")), *after]
        unknown, after = [word for word in unknown if word.startswith("--")], []
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if after and values.command != "run":
        raise ConfigError("only 'acpd run' takes a command after --", hint="acpd run -- COMMAND ARG...")
    values.words = [*getattr(values, "words", []), *after]
    return _command(values, command_line.flags_of(values), env)


def _login(env: Mapping[str, str]) -> bool:
    return env.get("ACPD_LOGIN") == "1"


def _command(values: Namespace, flags: Flags, env: Mapping[str, str]) -> int:
    at_terminal = os.isatty(0)
    if flags.standalone and values.command in {"serve", "status", "service"}:
        raise ConfigError(f"acpd {values.command} is about the daemon, and cannot be standalone", hint="leave that away")
    if values.command == "run" and not values.version:
        from acpd.cli import serve

        return serve.run(flags, env, values.name, values.words, at_terminal=_login(env) or at_terminal)
    if values.command == "serve" and not values.version:
        from acpd.cli import serve

        return serve.daemon(flags, env, values.idle_exit)
    if values.command is None and not values.version and not at_terminal:
        from acpd.cli import serve

        return serve.serve(flags, env, values.agent)
    try:
        output.tell_encoding()
        out = output.Output()
        code = _tell(out, values, flags, env)
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:  # a folder that is gone, a full disk behind stdout: name and cause say it all
        output.give_up_stdout()
        what = error.filename or ("the current folder" if error.errno == errno.ENOENT else "stdout")
        raise AcpdError(f"{what}: {error.strerror or error}") from None
    return code or DONE


def _tell(out: output.Output, values: Namespace, flags: Flags, env: Mapping[str, str]) -> int | None:
    """The exit code, None: all is well."""
    if values.version:
        from acpd import __version__

        out.say(f"acpd {__version__}")
    elif values.command is None:
        from acpd.cli.arguments import parser

        out.say(parser().format_help().rstrip())
    else:
        paths = Paths.find(env)
        try:
            call = Call(out, Config.load(paths, env, flags), paths, env, values)
        except ConfigError as broken:
            if values.command != "status":
                raise
            from acpd.cli import status

            status.despite(Call(out, Config(), paths, env, values), broken)
            return None
        return _with_daemon(call) if values.command in {"status", "attach", "stop"} else _offline(call)
    return None


def _offline(call: Call) -> int | None:
    """The commands that read: they take no lease and start nothing."""
    match call.values.command:
        case "paths":
            from acpd.cli import settings

            settings.paths(call)
        case "config":
            from acpd.cli import settings

            settings.config(call)
        case "ls":
            from acpd.cli import listing

            _wait(listing.ls(call))
        case "show":
            from acpd.cli import showing

            _wait(showing.show(call))
        case "search":
            from acpd.cli import search

            _wait(search.search(call))
        case "mcp":
            from acpd.cli import recalling

            _wait(recalling.mcp(call))
        case "tree":
            from acpd.cli import branches

            _wait(branches.tree(call))
        case "branch" | "label" | "fork":
            from acpd.cli import changing

            _wait(getattr(changing, call.values.command)(call))
        case "logs":
            from acpd.cli import logs

            logs.logs(call)
        case _:
            return _care(call)
    return None


def _with_daemon(call: Call) -> int | None:
    """The commands that are about the daemon: the exit code."""
    if call.values.command == "attach":
        from acpd.cli import attach

        return attach.attach(call)
    if call.values.command == "stop":
        from acpd.cli import stopping

        return _wait(stopping.stop(call))
    from acpd.cli import status

    return status.status(call)


def _care(call: Call) -> int | None:
    """The commands that look after a store: the exit code."""
    match call.values.command:
        case "fsck":
            from acpd.cli import checking

            return _wait(checking.fsck(call))
        case "rm":
            from acpd.cli import removing

            return _wait(removing.rm(call))
        case "gc":
            from acpd.cli import removing

            return _wait(removing.gc(call))
        case "service":
            from acpd.cli import service

            return service.service(call)
        case "cwd":
            from acpd.cli import moving

            return _wait(moving.cwd(call))
        case _:
            from acpd.cli import migrating

            return _wait(migrating.migrate(call))


def _wait(work: Coroutine[None, None, T]) -> T:
    import asyncio

    return asyncio.run(work)
