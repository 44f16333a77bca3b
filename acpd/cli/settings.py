"""`acpd paths` and `acpd config`: where things are, and what acpd was told."""

from __future__ import annotations

import os

import msgspec

from acpd import ownagent
from acpd.cli import output
from acpd.cli.call import Call
from acpd.config import HIDDEN, OFFLINE, WANTED, Agent, Config, built_in_command, without_secrets
from acpd.errors import AcpdError
from acpd.logger import path_of
from acpd.where import socket_path

PATIENCE = 2.0
"""Seconds for the daemon's word on what it has read."""


def paths(call: Call) -> None:
    """`--json`: one object. A folder is made when something is first put there. The socket: of the daemon of this store."""
    from acpd.cli import reaching

    places = {
        "config": call.config.file or call.paths.config_file,
        "storage": call.config.storage.path,
        "data": call.paths.data,
        "runtime": call.paths.runtime,
        "log": path_of(call.config.log, call.config.storage.path),
        "socket": socket_path(call.paths.runtime, reaching.choice(call), call.env),
    }
    if call.values.json:
        call.out.json(places)
        return
    for line in output.table(
        [(name, path, "" if os.path.exists(path) else "(not there yet)") for name, path in places.items()]
    ):
        call.out.say(line)


def config(call: Call) -> None:
    """`--json`: one object, a key to its value and source. Values of `env` and of secret arguments are never shown."""
    rows = effective(call.config)
    if call.values.json:
        call.out.json({key: {"value": value, "source": source} for key, value, source in rows})
    else:
        cells = [(key, value if isinstance(value, str) else output.as_text(value), source) for key, value, source in rows]
        for line in output.table(cells):
            call.out.say(line)
    _complain_of_unread(call)


def _complain_of_unread(call: Call) -> None:
    """What a daemon that runs does not go by yet."""
    from acpd.cli import reaching, status

    try:
        value = msgspec.json.decode(reaching.ask(call, "status", status.METHOD, seconds=PATIENCE))
    except (AcpdError, OSError):
        return  # none runs, or it has troubles that `acpd status` tells; or the current folder is gone
    if value.get("unread"):
        call.out.flush()
        output.complain(status.unread(value))


def effective(config: Config) -> list[tuple[str, object, str]]:
    """Key, value as it may be shown, source."""
    rows: list[tuple[str, object, str]] = []
    for key in WANTED:
        section, name = key.split(".")
        rows.append((key, getattr(getattr(config, section), name), config.sources[key]))
    rows.append(("user", config.user or "", config.sources["user"]))
    rows.append(("standalone", config.standalone, config.sources["standalone"]))
    for name, agent in config.agents.programs.items():
        rows += _agent(config, name, agent)
    native = msgspec.structs.asdict(config.agents.native or ownagent.Native())
    rows += [(key, native[key.rpartition(".")[2]], config.sources[key]) for key in ownagent.KEYS]
    if OFFLINE not in config.agents.programs:
        rows.append((f"agents.{OFFLINE}.command", list(built_in_command("--offline")), "built in"))
    return rows


def _agent(config: Config, name: str, agent: Agent) -> list[tuple[str, object, str]]:
    shown: dict[str, object] = {
        "command": list(without_secrets(agent.command)),
        "env": dict.fromkeys(agent.env, HIDDEN),
        "cwd": agent.cwd or "",
    }
    keys = [(f"agents.{name}.{member}", value) for member, value in shown.items()]
    return [(key, value, config.sources[key]) for key, value in keys if key in config.sources]
