"""The two handshakes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

import acpd
from acpd import announce
from acpd.agents import capabilities
from acpd.attachment import ClientCapabilities
from acpd.recall.tools import TOOLS
from acpd.wire import messages
from tests.core.world import dumps
from tests.support.store import Json

ALL = ClientCapabilities(terminal_login=True)


def answer(said: object, name: str = "agent") -> Json:
    found: Json = json.loads(announce.initialize_answer(capabilities.parse(dumps(said)), name, ALL))
    return found


def test_without_an_agent() -> None:
    """An agent that does not start is no reason not to answer: acpd's own capabilities, no login."""
    found = json.loads(announce.initialize_answer(None, "", ALL))
    sessions: Json = {key: {} for key in ("list", "resume", "close", "delete", "fork")}
    assert (1, [], "acpd", acpd.__version__) == (
        found["protocolVersion"],
        found["authMethods"],
        found["agentInfo"]["name"],
        found["agentInfo"]["version"],
    )
    attach = {"role": ["controller", "observer"], "replay": ["full", "none"]}
    assert {
        "loadSession": True,
        "sessionCapabilities": sessions,
        "_meta": {"acpd.dev/attach": attach},
    } == found["agentCapabilities"]


def test_the_agents_own_abilities_and_acpds() -> None:
    """Prompt and MCP capabilities and auth are the agent's, byte for byte; sessions are acpd's, whatever the agent can."""
    prompts = {"image": True, "x": 1.50}
    found = answer(
        {
            "protocolVersion": 1,
            "agentInfo": {"name": "a", "version": "1", "title": "The Agent"},
            "agentCapabilities": {
                "loadSession": False,
                "promptCapabilities": prompts,
                "mcpCapabilities": {"http": True},
                "auth": {"logout": {}},
                "sessionCapabilities": {"additionalDirectories": {}, "systemPrompt": None, "fork": True},
                "_meta": {"own": 1},
            },
        }
    )
    able = found["agentCapabilities"]
    assert (True, prompts, {"http": True}, {"logout": {}}) == (
        able["loadSession"],
        able["promptCapabilities"],
        able["mcpCapabilities"],
        able["auth"],
    )
    assert {"list", "resume", "close", "delete", "fork", "additionalDirectories"} == able["sessionCapabilities"].keys()
    assert "The Agent (acpd)" == found["agentInfo"]["title"]


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "x",
        {},
        {"agentCapabilities": None, "agentInfo": None, "authMethods": None},
        {"agentCapabilities": 7, "agentInfo": [], "authMethods": {}},
        {"agentCapabilities": {"promptCapabilities": None, "sessionCapabilities": None}},
    ],
)
def test_malformed_members_count_as_absent(said: object) -> None:
    """Whatever an agent says, the answer to the client is a valid one."""
    found = answer(said)
    assert ([], {"loadSession", "sessionCapabilities", "_meta"}) == (found["authMethods"], found["agentCapabilities"].keys())


def test_one_malformed_member_takes_no_other_with_it() -> None:
    """A version that is a number, a null for a flag: the rest counts."""
    said: Json = {
        "agentInfo": {"name": "a", "version": 3},
        "agentCapabilities": {"loadSession": None, "promptCapabilities": {"image": True}},
    }
    parsed = capabilities.parse(dumps(said))
    assert ("a", False) == (parsed.agentInfo.name, parsed.agentCapabilities.loadSession)
    assert {"image": True} == answer(said)["agentCapabilities"]["promptCapabilities"]


@pytest.mark.parametrize(("said", "version"), [(1, 1), ("1", 1), (2, 2), ("2025-01-01", 0), (None, 0), (1.5, 0), (True, 0)])
def test_versions(said: object, version: int) -> None:
    """A version as text is understood, what is none is 0, none said is 1."""
    assert version == capabilities.parse(dumps({"protocolVersion": said})).protocolVersion
    assert 1 == capabilities.parse(b"{}").protocolVersion


def test_terminal_logins_run_acpd_again() -> None:
    """ACPD_LOGIN=1 is added to a terminal login's environment, beside what is there; other methods are untouched."""
    methods: list[Json] = [
        {"id": "a", "name": "A"},
        {"id": "t", "name": "T", "type": "terminal", "args": ["--login"], "env": {"X": "1"}},
        {"id": "u", "name": "U", "type": "terminal", "env": None},
    ]
    found = answer({"authMethods": methods})["authMethods"]
    less = announce.initialize_answer(capabilities.parse(dumps({"authMethods": methods})), "a", ClientCapabilities())
    assert methods[:1] == json.loads(less)["authMethods"]  # to a client without a terminal
    assert methods[0] == found[0]
    assert methods[1] | {"env": {"X": "1", "ACPD_LOGIN": "1"}} == found[1]
    assert {"ACPD_LOGIN": "1"} == found[2]["env"]


OURS: Json = {"acpd.dev/state": {}, "acpd.dev/tools": ["search", "list", "history", "memory"]}


def test_what_an_agent_is_told() -> None:
    """Version 1, the client's own capabilities and name, byte for byte, but for subagents; and what acpd can do for it."""
    raw = b'{"fs":{"readTextFile":true},  "session":{"compaction":{"a":1.50}}}'
    said = messages.Initialize(protocolVersion=7, clientCapabilities=Raw(raw), clientInfo=Raw(b'{"name":"n","version":"1"}'))
    told = b'%b,"_meta":%b}' % (raw[:-1], dumps(OURS))
    whole = b'{"protocolVersion":1,"clientCapabilities":%b,"clientInfo":{"name":"n","version":"1"}}' % told
    assert whole == announce.for_agent(said)
    able = capabilities_for_agent(b'{"subagents":{"a":1},"terminal":true}')
    assert {"subagents": None, "terminal": True, "_meta": OURS}.items() <= able.items()
    for meta, kept in ((b'{"a":1}', {"a": 1}), (b"null", {}), (b"5", {})):
        assert {**kept, **OURS} == capabilities_for_agent(b'{"_meta":%b}' % meta)["_meta"]


@pytest.mark.parametrize("session", [None, {}, {"notices": {}}, {"compaction": None}, {"compaction": False, "x": 1}, 7])
def test_every_agent_may_compact(session: Any) -> None:
    """An agent is told that compactions are understood, whatever the client says of that; the rest stays."""
    raw = json.dumps({"terminal": True, **({} if session is None else {"session": session})}).encode()
    before = session if isinstance(session, dict) else {}
    told = {"terminal": True, "session": {**before, "compaction": {}}, "_meta": OURS}
    assert told == capabilities_for_agent(raw)
    nothing = json.loads(announce.for_agent(messages.Initialize(protocolVersion=1)))["clientCapabilities"]
    assert {"session": {"compaction": {}}, "_meta": OURS} == nothing


def capabilities_for_agent(raw: bytes) -> Any:
    said = messages.Initialize(protocolVersion=1, clientCapabilities=Raw(raw))
    return json.loads(announce.for_agent(said))["clientCapabilities"]


def test_a_client_without_a_name() -> None:
    """What a client does not say is not made up."""
    assert UNSET is messages.Initialize(protocolVersion=1).clientInfo


@pytest.mark.parametrize("meta", [{}, {"own": 1}, {"acpd.dev/tools": ["what a client says of it"]}, None, "text"])
def test_tools_are_announced_beside_what_a_client_says(meta: object) -> None:
    """An agent learns which tools acpd has, whatever the client's own `_meta` is; that stays. They are those of the table."""
    said = messages.Initialize(protocolVersion=1, clientCapabilities=Raw(dumps({"_meta": meta, "terminal": True})))
    told = json.loads(announce.for_agent(said))["clientCapabilities"]
    offered = list(dict.fromkeys(tool.offered for tool in TOOLS))
    own = {"own": 1} if meta == {"own": 1} else {}
    assert {**own, "acpd.dev/state": {}, "acpd.dev/tools": offered} == told["_meta"]
    assert told["terminal"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, ClientCapabilities()),
        ({}, ClientCapabilities()),
        ({"fs": {"readTextFile": True}}, ClientCapabilities(read_text_file=True)),
        ({"fs": {"writeTextFile": True}, "terminal": True}, ClientCapabilities(write_text_file=True, terminal=True)),
        ({"elicitation": {"form": {}, "url": None}}, ClientCapabilities(elicitation=frozenset({"form"}))),
        ({"elicitation": {"form": True, "url": {}}}, ClientCapabilities(elicitation=frozenset({"url"}))),
        ({"fs": None, "terminal": False, "elicitation": None}, ClientCapabilities()),
        ({"terminal": "yes"}, ClientCapabilities()),
        (7, ClientCapabilities()),
    ],
)
def test_what_acpd_knows_of_a_client(said: Any, expected: ClientCapabilities) -> None:
    """Anything malformed counts as absent; an elicitation mode is an object."""
    found = capabilities.of_client(None if said is None else dumps(said))
    assert expected[:4] == found[:4]
