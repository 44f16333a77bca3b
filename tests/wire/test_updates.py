"""One look at an update: what it is, whether it can be sent, how it is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acpd.wire.updates import FACTS, allowed_kinds, look, stored_as
from tests.support.schema import check, definitions, fits
from tests.wire.shapes import INVALID, JUNK, fullest, mended, mutated, spoilt, valid

UPDATE = {"$ref": "#/$defs/SessionUpdate"}
KINDS = [arm["properties"]["sessionUpdate"]["const"] for arm in definitions()["SessionUpdate"]["oneOf"]]
SELDOM = {"subagent_update", "session_message", "session_message_chunk", "compaction_update", "compaction_summary_chunk"}
"""Kinds with many members that few agents send: with `make e2e`."""
DECLARED = b'{"plan":{},"session":{"notices":{},"compaction":{}},"subagents":{}}'
TEXT = {"type": "text", "text": "hello"}
SPELLINGS = st.sampled_from(
    [{"separators": (",", ":")}, {"indent": 1}, {"separators": (" , ", " : ")}, {"ensure_ascii": False}]
)
WIDE = settings(
    max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
)


def encoded(value: Any, spelling: dict[str, Any] | None = None) -> bytes:
    return json.dumps(value, **(spelling or {"separators": (",", ":")})).encode()


def same(one: Any, other: Any) -> bool:
    """Equality that tells 1 from 1.0 and True."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@WIDE
@given(valid("SessionUpdate"), SPELLINGS)
def test_a_valid_update_is_sent_as_it_came(value: Any, spelling: dict[str, Any]) -> None:
    """An update that the schema allows is sendable: the same object, without a warning."""
    check("SessionUpdate", value)
    text = encoded(value, spelling)
    seen = look(text)
    assert text is seen.sendable
    assert ("", value["sessionUpdate"]) == (seen.warning, seen.kind)


def agrees_with_the_schema(value: Any, text: bytes, arm: Any = UPDATE, name: str = "SessionUpdate") -> None:
    seen = look(text)
    wanted = mended(arm, value)
    if wanted is INVALID:
        assert seen.sendable is None
        assert seen.warning
        return
    assert seen.sendable is not None
    got = json.loads(seen.sendable)
    check(name, got)
    assert same(wanted, got)
    assert same(value, got) == (seen.warning == "")
    assert same(value, got) == (seen.sendable is text)


@WIDE
@given(mutated("SessionUpdate"), SPELLINGS)
def test_what_is_sendable_validates_and_is_what_the_schemas_hints_make_of_it(value: Any, spelling: dict[str, Any]) -> None:
    """A malformed optional member counts as absent, malformed items are dropped, the rest stays; else it cannot be sent."""
    agrees_with_the_schema(value, encoded(value, spelling))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.e2e] * (kind in SELDOM)) for kind in KINDS])
def test_each_single_fault_is_treated_as_the_schema_says(kind: str) -> None:
    """Every member and item of every kind, missing or with a value of every wrong type: dropped, mended or not sent."""
    arm = definitions()["SessionUpdate"]["oneOf"][KINDS.index(kind)]
    name = arm["allOf"][0]["$ref"].rsplit("/", 1)[1]
    for value in fullest(arm):
        check("SessionUpdate", value)
        for bad in (value, *spoilt(value)):
            if bad.get("sessionUpdate") == kind:
                agrees_with_the_schema(bad, encoded(bad), arm, name)


@WIDE
@given(
    st.sampled_from(KINDS), st.dictionaries(st.sampled_from(["content", "entries", "plan", "title", "used"]), JUNK), st.data()
)
def test_junk_of_a_known_kind_is_never_sent_unless_it_validates(
    kind: str, members: dict[str, Any], data: st.DataObject
) -> None:
    """Whatever an agent puts into an update, what leaves for a client fits SessionNotification."""
    seen = look(
        encoded({"sessionUpdate": kind, **members, **data.draw(st.dictionaries(st.text(max_size=3), JUNK, max_size=2))})
    )
    assert kind == seen.kind
    if seen.sendable is not None:
        check("SessionNotification", {"sessionId": "s", "update": json.loads(seen.sendable)})


@given(JUNK)
def test_any_json_can_be_looked_at(value: Any) -> None:
    """Nothing leaves `look` as an exception, and what is no update of a known kind is not sendable."""
    seen = look(encoded(value))
    assert seen.sendable is None
    assert seen.warning


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_the_schema_is_known(kind: str) -> None:
    """A kind that the schema has is known, and a client can declare that it takes it."""
    assert kind in allowed_kinds(DECLARED)
    assert look(encoded({"sessionUpdate": kind})).kind == kind
    assert "unknown" not in look(encoded({"sessionUpdate": kind})).warning


def test_an_unknown_kind_is_named_but_not_sent() -> None:
    """v1 clients may fail to parse a variant that they do not know; the log keeps it."""
    seen = look(encoded({"sessionUpdate": "state_update", "state": "idle"}))
    assert ("state_update", None, "update") == (seen.kind, seen.sendable, stored_as(seen))
    assert "state_update" in seen.warning
    assert len(look(encoded({"sessionUpdate": "x" * 5000})).warning) < 100


@pytest.mark.parametrize("kind", ["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"])
@pytest.mark.parametrize(
    ("members", "plain"),
    [
        ({"content": TEXT}, True),
        ({"content": TEXT, "messageId": "m"}, True),
        ({"content": TEXT, "messageId": None}, True),
        ({"content": TEXT, "_meta": {}}, False),
        ({"content": TEXT, "_meta": None}, False),
        ({"content": TEXT, "extra": 1}, False),
        ({"content": {**TEXT, "annotations": None}}, False),
        ({"content": {**TEXT, "_meta": {}}}, False),
        ({"content": {**TEXT, "extra": 1}}, False),
        ({"content": {"type": "image", "data": "", "mimeType": "image/png"}}, False),
        ({"content": {"type": "resource", "resource": {"uri": "a:b", "blob": ""}}}, False),
    ],
)
def test_only_text_without_anything_else_is_plain(kind: str, members: dict[str, Any], plain: bool) -> None:
    """A chunk may be joined with its neighbours if it has text, a messageId and nothing else, in any order."""
    for value in ({"sessionUpdate": kind, **members}, {**members, "sessionUpdate": kind}):
        seen = look(encoded(value))
        assert (plain, kind, members.get("messageId") or "") == (seen.plain, seen.kind, seen.message_id)
        assert seen.text == ("hello" if plain else "")
        assert seen.sendable is not None


def test_a_kind_that_comes_late_is_plain_as_well() -> None:
    """The order of members does not decide whether chunks are joined."""
    seen = look(encoded({"content": {"type": "text", "text": "x" * 500}, "sessionUpdate": "agent_message_chunk"}))
    assert (True, "x" * 500) == (seen.plain, seen.text)


@pytest.mark.parametrize(("kind", "more"), [("tool_call", {"title": "x"}), ("tool_call_update", {})])
def test_tool_calls_name_their_call(kind: str, more: dict[str, Any]) -> None:
    """The id of a tool call is known also where another member had to be repaired; ids of other kinds are not tool calls'."""
    value = {"sessionUpdate": kind, "toolCallId": "call_1", **more}
    assert look(encoded(value)).tool == "call_1"
    assert look(encoded({**value, "status": "cancelled"})).tool == "call_1"
    assert not look(encoded({"sessionUpdate": "plan", "entries": [], "toolCallId": "x"})).tool


def test_repair_leaves_every_other_byte() -> None:
    """Key order, white space, number spelling, escapes and unknown members stay as the agent wrote them."""
    head, name = b'{ "sessionUpdate" : "tool_call",', b'"toolCallId":"t\\u0031", "title":"\xc3\xa9" , '
    last, rest = b'{"path":"/b","x":1.50e1}],', b'"rawInput":{"n":1E2, "n":3},"extra":[ 1,2 ]'
    before = (
        head
        + b'"kind":"dance" ,\n'
        + name
        + b'"locations":[ {"path":"/a","line":-1} , 5,'
        + last
        + rest
        + b', "status":"odd" }'
    )
    after = head + name + b'"locations":[ {"path":"/a"} , ' + last + rest + b" }"
    seen = look(before)
    assert after == seen.sendable
    assert "kind" in seen.warning
    assert "locations[1]" in seen.warning


def test_the_last_of_several_members_counts() -> None:
    """A member that stands twice is sent once, with the value that JSON readers take."""
    seen = look(b'{"sessionUpdate":"tool_call_update","toolCallId":5,"toolCallId":"t","title":"x"}')
    assert (b'{"sessionUpdate":"tool_call_update","toolCallId":"t","title":"x"}', "t") == (seen.sendable, seen.tool)


def test_the_documents_mode_id_becomes_the_schemas() -> None:
    """The protocol's documentation once had `modeId`; the schema's `currentModeId` wins where both are right."""
    seen = look(b'{"sessionUpdate":"current_mode_update","modeId":"ask","_meta":{"a":1}}')
    assert seen.sendable is not None
    assert {"sessionUpdate": "current_mode_update", "currentModeId": "ask", "_meta": {"a": 1}} == json.loads(seen.sendable)
    assert "modeId" in seen.warning
    wrong = look(b'{"sessionUpdate":"current_mode_update","currentModeId":null,"modeId":"ask"}')
    assert wrong.sendable == b'{"sessionUpdate":"current_mode_update","currentModeId":"ask"}'
    both = b'{"sessionUpdate":"current_mode_update","currentModeId":"a","modeId":"b"}'
    assert look(both).sendable is both
    assert look(b'{"sessionUpdate":"current_mode_update","modeId":5}').sendable is None


def test_options_in_groups_are_as_good_as_flat_ones() -> None:
    """A select's options are a list of values or of groups; a mixture is neither, so that option is left out."""
    flat = [{"value": "a", "name": "A"}]
    groups = [{"group": "g", "name": "G", "options": flat}]
    select = {"type": "select", "id": "m", "name": "M", "currentValue": "a"}
    right = encoded({"sessionUpdate": "config_option_update", "configOptions": [{**select, "options": groups}]})
    assert look(right).sendable is right
    mixed = encoded({"sessionUpdate": "config_option_update", "configOptions": [{**select, "options": flat + groups}]})
    assert look(mixed).sendable == b'{"sessionUpdate":"config_option_update","configOptions":[]}'


def test_numbers_that_no_reader_takes_are_not_sent() -> None:
    """Counts above 64 bits and numbers above a double do not reach a client."""
    assert look(b'{"sessionUpdate":"usage_update","used":18446744073709551615,"size":0}').sendable is not None
    assert look(b'{"sessionUpdate":"usage_update","used":18446744073709551616,"size":0}').sendable is None
    cost = look(b'{"sessionUpdate":"usage_update","used":1,"size":2,"cost":{"amount":1e999,"currency":"EUR"}}')
    assert cost.sendable == b'{"sessionUpdate":"usage_update","used":1,"size":2}'


def test_a_warning_names_the_member_and_no_value() -> None:
    """What an agent wrote does not get into warnings, however long it is."""
    secret = "s3cret" * 50
    for value in (
        {"content": {"type": secret}},
        {"content": {**TEXT, "text": [secret]}},
        {"content": TEXT, "messageId": {secret: 1}},
    ):
        assert secret not in look(encoded({"sessionUpdate": "agent_message_chunk", **value})).warning
    assert look(b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text"}}').warning == (
        "agent_message_chunk: content.text is missing"
    )


def test_a_deep_update_is_an_update() -> None:
    """Depth below a member that acpd does not look into neither raises nor is it slow."""
    deep = b"[" * 200_000 + b"]" * 200_000
    assert look(b'{"sessionUpdate":"tool_call","toolCallId":"t","title":"x","rawInput":%b}' % deep).kind in {"", "tool_call"}


@pytest.mark.parametrize(
    ("capabilities", "more"),
    [
        (None, set()),
        (b"{}", set()),
        (b"null", set()),
        (b"[]", set()),
        (b'{"plan":{}}', {"plan_update", "plan_removed"}),
        (b'{"plan":{"_meta":{}}}', {"plan_update", "plan_removed"}),
        (b'{"plan":null,"session":null}', set()),
        (b'{"plan":true,"session":5}', set()),
        (b'{"session":{"notices":{}}}', {"notice"}),
        (b'{"session":{"compaction":{},"notices":true}}', {"compaction_update", "compaction_summary_chunk"}),
        (b'{"subagents":{}}', {"subagent_update", "session_message", "session_message_chunk"}),
    ],
)
def test_a_client_gets_the_kinds_that_it_declared(capabilities: bytes | None, more: set[str]) -> None:
    """Kinds beyond the baseline need the client's capability; what is malformed counts as not declared."""
    baseline = allowed_kinds(None)
    assert {"agent_message_chunk", "tool_call", "plan", "usage_update"} <= baseline
    assert baseline | more == allowed_kinds(capabilities)


def test_no_client_gets_an_unknown_kind() -> None:
    """Whatever it declared, it gets the kinds of the schema and no other."""
    assert set(KINDS) == allowed_kinds(DECLARED)


def test_facts_are_kept_as_facts_and_notices_not_at_all() -> None:
    """Each kind that is a fact is one of its own type; a notice is never stored."""
    assert sorted(set(FACTS.values())) == ["commands", "config", "info", "usage"]
    assert stored_as(look(b'{"sessionUpdate":"session_info_update","title":"x"}')) == "info"
    assert stored_as(look(b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""}}')) == "update"
    assert stored_as(look(b'{"sessionUpdate":"notice","severity":"info","title":"x"}')) is None
    assert stored_as(look(b'{"sessionUpdate":"notice"}')) is None


def test_a_broken_fact_does_not_take_the_place_of_a_good_one() -> None:
    """The last fact of its kind wins, so what cannot be sent is kept as an entry instead."""
    assert stored_as(look(b'{"sessionUpdate":"current_mode_update"}')) == "update"


@pytest.mark.parametrize(
    ("status", "summary", "kept"),
    [
        ("completed", [TEXT], "compaction"),
        ("completed", [TEXT, {}], "compaction"),
        ("completed", [], "update"),
        ("completed", None, "update"),
        ("completed", "x", "update"),
        ("in_progress", [TEXT], "update"),
    ],
)
def test_a_finished_compaction_with_a_summary_is_a_compaction(status: str, summary: Any, kept: str) -> None:
    """Only a compaction that says what remains can prime an agent later."""
    value = {"sessionUpdate": "compaction_update", "compactionId": "c", "status": status, "summary": summary}
    assert stored_as(look(encoded(value))) == kept


def test_the_reference_is_the_schemas() -> None:
    """What the tests' own reading of the hints calls right without a change is what the schema allows."""
    assert mended(UPDATE, {"sessionUpdate": "plan", "entries": []}) == {"sessionUpdate": "plan", "entries": []}
    assert mended(UPDATE, {"sessionUpdate": "plan"}) is INVALID
    assert not fits("SessionUpdate", {"sessionUpdate": "plan"})
