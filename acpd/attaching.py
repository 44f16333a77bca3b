"""How a client attaches to a session, and what it may do then: `_meta["acpd.dev/attach"]` of session/load and session/resume.

A controller may do everything. An observer sees everything, is never asked, and steers nothing; loading or resuming the
session again changes its role. Roles keep clients out of each other's way; they are no protection against one of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import msgspec
from msgspec import UNSET, Raw, Struct

from acpd.attachment import Attachment, Client
from acpd.cursors import Cursor
from acpd.errors import INVALID_PARAMS, INVALID_REQUEST, RequestError
from acpd.session import LiveSession
from acpd.wire import messages, splice

NAME = "acpd.dev/attach"
OPTIONS = {"role": ("controller", "observer"), "replay": ("full", "none")}
"""The members, and what each may be."""
STEERING = frozenset(
    {
        "session/set_mode",
        "session/set_config_option",
        "session/close",
        "session/delete",
        "_acpd/branch",
        "_acpd/label",
    }
)
"""Requests that an observer may not make, beside session/prompt and what an agent adds to ACP."""

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class Wanted(Struct, frozen=True):
    """How a client wants to attach. `params`: those of its request, for the agent."""

    observer: bool
    replay: bool
    params: bytes
    eager: bool = True
    """Whether an agent is started for it before something needs one: see acpd.announce.starts_agents."""

    @property
    def starts(self) -> bool:
        """Whether the session gets an agent for this client now, and in its place from then on."""
        return self.eager and not self.observer


def wanted(said: messages.NewSession, params: messages.Params, *, replay: bool, eager: bool = True) -> Wanted:
    """What load or resume ask for; `replay`: what the method does by itself; `eager`: as the client said it.

    Raises RequestError(INVALID_PARAMS) that names the member.
    """
    raw = messages.passed_on(said, params)
    meta = {} if said.meta is UNSET else _decode_members(said.meta)
    if NAME not in meta:
        return Wanted(observer=False, replay=replay, params=raw, eager=eager)
    given = _options(bytes(meta[NAME]))
    raw = splice.replace(raw, "_meta", splice.remove(raw[slice(*splice.members(raw)["_meta"])], (NAME,)))
    replay = given.get("replay", "full" if replay else "none") == "full"
    return Wanted(observer=given.get("role") == "observer", replay=replay, params=raw, eager=eager)


def _options(raw: bytes) -> dict[str, str]:
    place = f'params._meta["{NAME}"]'
    try:
        members = _decode_members(raw)
    except msgspec.DecodeError:
        raise RequestError(INVALID_PARAMS, f"{place} must be an object") from None
    given: dict[str, str] = {}
    for name, value in members.items():
        if name not in OPTIONS:
            raise RequestError(INVALID_PARAMS, f"{place}: there is no {name[:100]}, only {' and '.join(OPTIONS)}")
        try:
            given[name] = _decode_text(value)
        except msgspec.DecodeError:
            given[name] = ""
        if given[name] not in OPTIONS[name]:
            allowed = " or ".join(f'"{each}"' for each in OPTIONS[name])
            raise RequestError(INVALID_PARAMS, f"{place}.{name} must be {allowed}")
    return given


async def attach(client: Client, session: LiveSession, how: Wanted, done: Cursor | None = None) -> Attachment:
    """Not live yet. `done`: what the client has got of the replay. Raises as Audience.replay."""
    setup = how.params if how.eager or session.setup is None else None
    attachment = session.attach(client, setup, observer=how.observer)
    if how.replay:
        attachment.cursor = 0
        await session.audience.replay(attachment, done)
    return attachment


@contextlib.contextmanager
def reading_on(session: LiveSession, attachment: Attachment) -> Generator[None]:
    """Whatever becomes of the request: who is attached reads along, or its prompts would never be answered."""
    try:
        yield
    except BaseException:
        if attachment in session.audience.attachments:
            session.audience.start(attachment)
        raise


def observes(session: LiveSession | None, client: Client) -> bool:
    """Whether this client is attached to the session as an observer."""
    attachment = session.audience.attachment(client) if session is not None else None
    return attachment is not None and attachment.observer


def check_steering(session: LiveSession | None, client: Client, method: str) -> None:
    """Raises RequestError(INVALID_REQUEST) if this client only observes the session."""
    if session is not None and (attachment := session.audience.attachment(client)) is not None:
        check_role(session, attachment, method)


def check_role(session: LiveSession, attachment: Attachment, method: str) -> None:
    """As `check_steering`, of a client that is attached."""
    if attachment.observer:
        hint = f'load or resume it again with _meta {{"{NAME}": {{"role": "controller"}}}} first'
        raise RequestError(INVALID_REQUEST, f"{method[:100]}: this client only observes session {session.id}: {hint}")
