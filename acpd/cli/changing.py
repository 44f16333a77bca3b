"""`acpd branch`, `label`, `fork`: what changes a session takes its lease, as every acpd does; what is said is durable.

A session that the daemon has open is changed by the daemon.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from acpd import branching
from acpd.cli import holding
from acpd.cli.call import Call
from acpd.cli.store import exists, opened, resolve
from acpd.errors import AgentError, ConfigError, SessionBusy, SessionNotFound
from acpd.needs import Link, Settings
from acpd.registry import Registry
from acpd.tasks import Tasks

if TYPE_CHECKING:
    from acpd.session import LiveSession


class _NoAgents:
    """Implements acpd.needs.Agents: a command starts none."""

    async def bring_up(self, session: LiveSession, /) -> Link:
        raise AgentError(f"no agent is started for session {session.id} by a command")


async def branch(call: Call) -> None:
    name, entry = _place(call.values.place)
    async with _registry(call) as registry:
        found = await _session(call, registry, name)
        entry = _needed(entry, "acpd branch ID@ENTRY")
        try:
            leaf = await branching.branch(await registry.open(found), entry)
        except SessionBusy as error:
            leaf = (await holding.through(call, registry.store, error, "_acpd/branch", entry=entry))["leaf"]
    call.out.say(f"session {found} goes on at {leaf}")


async def label(call: Call) -> None:
    name, entry = _place(call.values.place)
    if (call.values.text is None) != call.values.remove:
        raise ConfigError("a label is a text, or --remove", hint="acpd label ID@ENTRY TEXT, or acpd label ID@ENTRY --remove")
    async with _registry(call) as registry:
        found = await _session(call, registry, name)
        entry = _needed(entry, "acpd label ID@ENTRY TEXT")
        try:
            session = await registry.open(found)
            entry = await branching.label(session, entry, call.values.text)
            text = session.fold.labels.get(entry)
        except SessionBusy as error:
            params = {"entry": entry, "label": call.values.text}
            answer = await holding.through(call, registry.store, error, "_acpd/label", **params)
            entry, text = answer["entry"], answer["label"]
    call.out.say(f"entry {entry} of session {found} " + (f"is labelled {text}" if text else "has no label"))


async def fork(call: Call) -> None:
    """The source is only read, so it may be open. The new session's id alone is on stdout."""
    name, entry = _place(call.values.place)
    async with _registry(call) as registry:
        source = await _session(call, registry, name)
        header, _ = await registry.store.journals.peek(await registry.key_of(source))
        made = await registry.fork(source, header.cwd, header.additionalDirectories, entry)
    call.out.say(made.id)


def _place(text: str) -> tuple[str, str | None]:
    """`ID@ENTRY` or `ID`."""
    session, at, entry = text.partition("@")
    return session, entry if at else None


def _needed(entry: str | None, usage: str) -> str:
    if not entry:
        raise ConfigError("no entry is named", hint=f"{usage}; acpd tree lists them")
    return entry


async def _session(call: Call, registry: Registry, name: str) -> str:
    return (await resolve(registry.store, name, call.config.user)).session


@asynccontextmanager
async def _registry(call: Call) -> AsyncGenerator[Registry]:
    """The sessions that this command opens. They are closed, so saved, before it says that it is done."""
    if not exists(call.config):
        raise SessionNotFound(_place(call.values.place)[0])
    failed: list[BaseException] = []
    async with opened(call.config) as store:
        tasks = Tasks(lambda _name, error: failed.append(error))
        registry = Registry(store, _NoAgents(), Settings(), tasks, call.config.user)
        try:
            yield registry
        finally:
            await registry.stop(interrupt=False)
            await tasks.cancel()
    if failed:
        raise failed[0]
