"""The command line as argparse has it. Imported only when there is something to parse (8 ms)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from acpd.config import Flags
from acpd.errors import ConfigError

EPILOG = """\
With stdin a pipe, acpd is an ACP agent for the editor that started it; on a terminal it shows this text.

Exit codes: 0 done; 1 it failed (no such session, unreadable store, agent not found), or fsck found something; 2 the
command line or the configuration is wrong. An error is one line on stderr and ends with the next step.
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, like every other error of acpd. No abbreviations: a new flag must break nobody."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, hint=f"{self.prog} --help shows what there is")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what follows the first --. By hand: Python's versions differ in what argparse makes of it."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def flags_of(values: argparse.Namespace) -> Flags:
    return Flags(**{name: getattr(values, name) for name in Flags.__struct_fields__ if hasattr(values, name)})


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _age(text: str) -> int:
    """Seconds."""
    match = re.fullmatch(r"([0-9]{1,6})([hdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; 12h, 30d, 8w are")
    seconds = int(match[1]) * {"h": 3600, "d": 86_400, "w": 604_800}[match[2]]
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} would be every session; 'acpd rm' removes single ones")
    return seconds


def common(*, standalone: bool = True) -> Parser:
    """The flags that stand before or after a command. What is not given is not set, so neither place hides the other.

    `standalone`: whether it can be of interest if there is a daemon.
    """
    parser = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = parser.add_argument_group("everywhere")
    group.add_argument("--config", metavar="FILE", help="read this acpd.toml")
    group.add_argument("--user", metavar="NAME", help="whose sessions; without it nobody's in particular")
    group.add_argument("--backend", metavar="NAME", help="workspace, json or sqlite")
    group.add_argument("--storage", metavar="PATH", help="the folder of the store")
    group.add_argument("--sync", metavar="MODE", help="power or process")
    if standalone:
        group.add_argument("--standalone", action="store_true", help="one process, no daemon")
    group.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    return parser


def login() -> Parser:
    """What is acpd's own when it stands in for an agent's program; the rest is the agent's."""
    stand_in = Parser(prog="acpd", add_help=False, parents=[common()])
    stand_in.add_argument("--agent")
    return stand_in


def parser() -> Parser:
    shared = common()
    top = Parser(
        prog="acpd",
        description="Durable sessions for every coding agent and every editor, over ACP.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[shared],
    )
    top.add_argument("--version", action="store_true", help="show the version")
    top.add_argument("--agent", metavar="NAME", help="the configured agent to serve")

    _add_commands(top, shared)
    return top


def _add_changes(commands: Any, shared: Parser) -> None:
    """The commands that change a session."""
    branch = commands.add_parser("branch", parents=[shared], help="let a session go on behind one of its entries")
    label = commands.add_parser("label", parents=[shared], help="name an entry of a session")
    fork = commands.add_parser("fork", parents=[shared], help="make a new session with the path up to an entry")
    for command in (branch, label):
        command.add_argument("place", metavar="ID@ENTRY", help="a session, and an entry's id, label, or beginning of its id")
    fork.add_argument("place", metavar="ID[@ENTRY]", help="a session, and an entry of it; without one: up to the leaf")
    label.add_argument("text", nargs="?", metavar="TEXT", help="the label, on one line")
    label.add_argument("--remove", action="store_true", help="take its label away")


def _add_commands(top: Parser, shared: Parser) -> None:
    plain = common(standalone=False)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    run = commands.add_parser("run", parents=[shared], help="serve any ACP agent: acpd run -- COMMAND ARG...")
    run.add_argument("--name", metavar="NAME", help="the name under which its sessions are kept")
    run.add_argument("words", nargs="*", metavar="COMMAND", help="the agent; put -- before it")

    serve = commands.add_parser("serve", parents=[plain], help="serve many clients on a Unix socket: the daemon")
    serve.add_argument(
        "--idle-exit", type=_number, metavar="SECONDS", help="end when there was no client and no agent for so long"
    )

    status = _add_clients(commands, shared, plain)

    ls = commands.add_parser("ls", parents=[plain], help="list the sessions of this folder, newest first")
    ls.add_argument("--all", action="store_true", help="of every folder")
    ls.add_argument("--limit", type=_number, default=50, metavar="N", help="at most N, 0: all (default 50)")

    show = commands.add_parser("show", parents=[plain], help="show the conversation of a session")
    show.add_argument("--last", type=_number, default=0, metavar="N", help="only its last N entries")
    tree = commands.add_parser("tree", parents=[plain], help="show the branches of a session")
    tree.add_argument("--all", action="store_true", help="every turn, also of long stretches")
    for command in (show, tree):
        command.add_argument("id", metavar="ID", help="a session's id, or the beginning of one")

    search = commands.add_parser("search", parents=[plain], help="find words in the sessions of this folder, newest first")
    _add_search(search)

    mcp = commands.add_parser("mcp", parents=[plain], help="an MCP server on stdio: earlier sessions, for an agent's model")
    mcp.add_argument("--session", metavar="ID", required=True, help="the session whose user and agent it is for")
    _add_care(commands, shared)
    _add_service(commands, plain)
    _add_changes(commands, shared)
    paths = commands.add_parser("paths", parents=[plain], help="show where things are")
    logs = commands.add_parser("logs", parents=[plain], help="show what agents wrote to stderr")
    logs.add_argument("id", metavar="ID", nargs="?", help="only the agent of this session")
    logs.add_argument("--lines", type=_number, default=20, metavar="N", help="the last N lines of each (default 20)")
    config = commands.add_parser("config", parents=[shared], help="show the configuration and where each value comes from")
    for command in (ls, tree, search, paths, config, status):
        command.add_argument("--json", action="store_true", help="one JSON value on stdout")
    show.add_argument("--json", action="store_true", help="one entry of the log on each line, as it is stored")


def _add_clients(commands: Any, shared: Parser, plain: Parser) -> Any:
    """The commands that are the daemon's clients. `acpd status`."""
    attach = commands.add_parser("attach", parents=[shared], help="follow a session in a terminal, and talk in it")
    attach.add_argument("id", metavar="ID", help="a session's id, or the beginning of one")
    attach.add_argument("--observe", action="store_true", help="only watch")
    attach.add_argument("--no-replay", action="store_true", help="begin with what is said from now on")
    return commands.add_parser("status", parents=[plain], help="show what the daemon does at the moment")


def _add_care(commands: Any, shared: Parser) -> None:
    """The commands that look after a store."""
    fsck = commands.add_parser("fsck", parents=[shared], help="look for damage, and repair it")
    fsck.add_argument("id", metavar="ID", nargs="?", help="only this session")
    fsck.add_argument("--repair", action="store_true", help="write repaired copies, keep the originals")
    rm = commands.add_parser("rm", parents=[shared], help="remove sessions, with all that is theirs")
    rm.add_argument("ids", metavar="ID", nargs="+", help="a session's id, or the beginning of one")
    rm.add_argument("--yes", action="store_true", help="do not ask")
    gc = commands.add_parser("gc", parents=[shared], help="remove what nobody needs; sessions only if told so")
    gc.add_argument("--older-than", type=_age, metavar="AGE", help="sessions too whose last event is older: 12h, 30d, 8w")
    gc.add_argument("--aside", action="store_true", help="also what was put aside: torn lines, damaged originals")
    gc.add_argument("--dry-run", action="store_true", help="only say what would go")
    cwd = commands.add_parser("cwd", parents=[shared], help="say where a project has moved to")
    cwd.add_argument("old", metavar="OLD", help="the folder in which it was")
    cwd.add_argument("new", metavar="NEW", help="the folder in which it is now")
    cwd.add_argument("--dry-run", action="store_true", help="only say which sessions it would concern")
    migrate = commands.add_parser("migrate", parents=[shared], help="copy everything to another backend")
    migrate.add_argument("--to", metavar="BACKEND", required=True, help="workspace, json or sqlite")
    migrate.add_argument("--dry-run", action="store_true", help="only say what it would do, and whether it can")
    for command in (fsck, gc):
        command.add_argument("--json", action="store_true", help="one JSON value on stdout")


def _add_service(commands: Any, plain: Parser) -> None:
    stop = commands.add_parser("stop", parents=[plain], help="end the daemon")
    stop.add_argument("--now", action="store_true", help="do not wait for running turns")
    service = commands.add_parser("service", parents=[plain], help="let systemd run the daemon")
    service.add_argument(
        "action", choices=("install", "uninstall"), metavar="install|uninstall", help="write or remove the units"
    )
    service.add_argument("--system", action="store_true", help="of the machine, for a user acpd; without it your own")
    service.add_argument("--dry-run", action="store_true", help="only say what would be written and run")


def _add_search(search: argparse.ArgumentParser) -> None:
    search.add_argument("words_to_find", nargs="*", metavar="WORD", help="words, '\"a phrase\"', prefix*, tool:word, 'a -b'")
    search.add_argument("--all", action="store_true", help="in every folder")
    search.add_argument("--cwd", metavar="FOLDER", help="in the sessions of this folder")
    search.add_argument("--agent", dest="agent_name", metavar="NAME", help="only sessions of this agent")
    search.add_argument("--since", metavar="TIME", help="2026-11-30, 2026-11-30T12:00, or 7d ago")
    search.add_argument("--until", metavar="TIME", help="before then")
    search.add_argument("--best", action="store_true", help="the best of the newest matches first")
    search.add_argument("--limit", type=_number, default=20, metavar="N", help="at most N hits, 0: all (default 20)")
    search.add_argument(
        "--per-session", type=_number, metavar="N", help="of one session at most N, 0: all (default 3, with --limit 0 all)"
    )
