"""What the agent wrote is what the client gets, byte for byte but for the changes that are listed (docs/protocol.md)."""

from __future__ import annotations

import json
import re

import pytest

from tests.support import commands, store
from tests.support.client import Client, RpcError
from tests.support.scripted import AGENT, EVERYTHING, Stage, after, until

pytestmark = pytest.mark.e2e

ODD = [
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"plain"}}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"own"},"messageId":"mine"}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"null"},"messageId":null}',
    '{ "content" : { "text" : "spaces" ,"type":"text" } , "sessionUpdate" : "agent_message_chunk" }',
    r'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\u0041\/\ud83d\ude00\u2028"}}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"raw \u00a0 ☃ \U0001f600"}}',
    '{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"","annotations":{"priority":1e-2}}}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"m"},"_meta":{"x":1e2,"acpd.dev/seq":"no"}}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"1"},"content":{"type":"text","text":"2"}}',
    '{"sessionUpdate":"tool_call","toolCallId":"t1","title":"T","rawInput":{"n":1e2,"big":123456789012345678901234567890,"z":-0.0}}',
    '{"toolCallId":"t1","sessionUpdate":"tool_call_update","status":"completed","rawOutput":[1.0,1.50,1E+3,{"a":1,"a":2}]}',
    '{"sessionUpdate":"plan","entries":[{"priority":"high","content":"c","status":"pending","extra":{"deep":[[[]]]}}]}',
    '{"sessionUpdate":"session_info_update","title":"T","_meta":{"y":null}}',
    '{"sessionUpdate":"usage_update","used":18446744073709551615,"size":0,"cost":{"amount":1e-7,"currency":"EUR"}}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"AAAA","mimeType":"image/png","uri":null}}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"resource","resource":{"uri":"file:///x","text":"t"}}}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"resource_link","name":"n","uri":"u","size":9007199254740993}}',
    '{"sessionUpdate":"agent_message_chunk","messageId":"\\u006dine","content":{"type":"text","text":"escaped id"}}',
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"' + "long" * 5000 + '"}}',
]


def with_given_id(wrote: bytes, got: bytes) -> bytes:
    """What a client must get for this text of the agent: the same, with a messageId of acpd's where a chunk has none."""
    said, given = json.loads(wrote), json.loads(got).get("messageId", "")
    if not said["sessionUpdate"].endswith("_chunk") or said.get("messageId"):
        return wrote
    assert re.fullmatch(r"[0-9a-f-]{36}", given)
    member = b'"messageId":"%b"' % given.encode()
    return wrote.replace(b'"messageId":null', member) if "messageId" in said else b"%b,%b}" % (wrote[:-1], member)


def test_each_payload_is_the_agents_own_bytes(play: Stage) -> None:
    """Spaces, key order, escapes, numbers, names twice, deep members, `_meta`: live as the agent wrote it, in the log too."""
    client = play.start()
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "\n".join(f"update {text}" for text in ODD))
    shown = [store.frame_update(line.raw) for line in client.updates(session=session)]
    assert len(ODD) == len(shown)
    for wrote, got in zip(ODD, shown, strict=True):
        assert with_given_id(wrote.encode(), got) == got
    log = play.finish(client)[session]
    for wrote in ODD:
        assert any(b'"update":' + wrote.encode() in line for line in log.lines), wrote


def test_params_beside_the_update_are_kept_and_extended(play: Stage) -> None:
    """`_meta` of the agent stays before acpd's own members; odd spellings of params too; a faked seq is replaced."""
    lines = [
        '{"sessionId":"$SESSION","update":U,"_meta":{"mine":1e2}}',
        '{ "_meta" : null , "update" : U , "sessionId" : "$SESSION" }',
        '{"sessionId":"$SESSION","update":U,"_meta":{"acpd.dev/seq":99999,"acpd.dev/at":"x","k":[1]}}',
        '{"sessionId":"other","sessionId":"$SESSION","update":U,"traceparent":"00-1"}',
        '{"\\u0073essionId":"$SESSION","update":U}',
    ]
    update = '{"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"type":"text","text":"x"}}'
    client = play.start()
    session = client.new(play.cwd)
    raw = [f'raw {{"jsonrpc":"2.0","method":"session/update","params":{line.replace("U", update)}}}' for line in lines]
    assert "end_turn" == client.prompt(session, "\n".join(raw))
    got = client.updates(session=session)
    assert len(lines) == len(got)
    assert [update.encode()] * len(lines) == [store.frame_update(line.raw) for line in got]
    assert b'"_meta":{"mine":1e2,"acpd.dev/seq":' in got[0].raw
    assert [1] == got[2].params["_meta"]["k"]
    assert b"other" not in got[3].raw
    assert "00-1" == got[3].params["traceparent"]
    seqs = [line.seq for line in got]
    assert seqs == sorted(seqs, key=lambda seq: seq or 0)
    assert 99999 not in seqs
    play.finish(client)


def test_a_replay_has_the_same_bytes_as_the_live_view(play: Stage) -> None:
    """What is not folded comes again byte for byte, ids and all, with the same seq."""
    single = [text for text in ODD if '"image' in text or '"plan"' in text or '"resource' in text]
    client = play.start()
    session = client.new(play.cwd)
    for text in single:
        client.prompt(session, f"update {text}")
    live = {line.seq: line.raw for line in client.updates(session=session)}
    play.finish(client)
    client = play.start()
    client.load(session, play.cwd)
    replayed = {line.seq: line.raw for line in client.updates(session=session)}
    assert live == {seq: raw for seq, raw in replayed.items() if seq in live}
    play.finish(client)


def test_a_run_of_chunks_without_ids_is_one_message_and_the_next_another(play: Stage) -> None:
    """One id a run; a tool call, a thought or a new turn begins a new one; the replay has the same ids."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "chunks 3\ntool x\nchunks 2\nthink a\nthink b\nsay c")
    client.prompt(session, "say d")
    ids = [(line.kind, line.update["messageId"]) for line in client.updates(session=session) if "chunk" in line.kind]
    runs = list(dict.fromkeys(ids))
    assert [3, 2, 2, 1, 1] == [ids.count(run) for run in runs]
    play.finish(client)
    client = play.start()
    client.load(session, play.cwd)
    replayed = [(line.kind, line.update["messageId"]) for line in client.updates(session=session) if "agent" in line.kind]
    assert runs == list(dict.fromkeys(replayed))
    users = [line.update["messageId"] for line in client.updates("user_message_chunk", session)]
    assert 2 == len(set(users)), "two turns of the user stay apart"
    play.finish(client)


def test_work_after_the_turn_is_stored_shown_and_replayed_once(play: Stage) -> None:
    """A chunk, a tool call and a question behind the answer of the turn; a prompt meanwhile works."""
    client = play.start()
    session = client.new(play.cwd)
    ident = client.start_prompt(session, "say now\nlate 30 later\nlate 60 latest")
    assert {"stopReason": "end_turn"} == client.result(ident)
    client.wait("late words", lambda: "latest" in client.text(session))
    assert "latest" in [line.update["content"]["text"] for line in after(client, client.answer(ident)) if line.kind]
    client.prompt(session, "late 0 x\nsay y")
    client.wait("x", lambda: "x" in client.text(session))
    assert sorted("nowlaterlatestyx") == sorted(client.text(session))
    logs = play.finish(client)
    client = play.start()
    client.load(session, play.cwd)
    assert "nowlaterlatest" == client.text(session)[:14]
    assert 1 == client.text(session).count("latest")
    assert 5 == len(logs[session].of("update"))
    play.finish(client)


def test_what_nobody_knows_is_stored_and_not_sent(play: Stage) -> None:
    """An update of a kind that no schema knows stays in the log, byte for byte; the client never sees it."""
    client = play.start()
    session = client.new(play.cwd)
    script = 'unknown hologram\nunknown\nupdate {"sessionUpdate":"agent_message_chunk"}\nupdate {"sessionUpdate":7}'
    script += "\nupdate {}\nsay x"
    assert "end_turn" == client.prompt(session, script)
    assert ["agent_message_chunk"] == [line.kind for line in client.updates(session=session)]
    seq = client.updates()[0].seq
    log = play.finish(client)[session]
    kept = [line for line in log.lines if b"hologram" in line and b'"type":"update"' in line]
    assert b'{"sessionUpdate":"hologram","what":{"is":[1,2.50,1e3,null]}}' in kept[0]
    assert seq is not None
    assert 5 == len(log.of("update")) - len([e for e in log.of("update") if e["seq"] == seq])
    client = play.start()
    client.load(session, play.cwd)
    assert {"agent_message_chunk", "user_message_chunk"} <= {line.kind for line in client.updates()}
    assert b"hologram" not in b"".join(line.raw for line in client.updates() if line.kind != "user_message_chunk")
    play.finish(client)


GATED = {
    "plan_update": '{"sessionUpdate":"plan_update","plan":{"type":"items","planId":"p","entries":[]}}',
    "notice": '{"sessionUpdate":"notice","severity":"info","title":"Hear"}',
    "compaction_update": '{"sessionUpdate":"compaction_update","compactionId":"c","status":"in_progress"}',
    "compaction_summary_chunk": '{"compactionId":"c","content":{"type":"text","text":"s"},'
    '"sessionUpdate":"compaction_summary_chunk"}',
    "subagent_update": '{"sessionUpdate":"subagent_update","sessionId":"child"}',
}


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not-declared"])
def test_gated_kinds_go_to_who_declared_them(declared: bool, play: Stage) -> None:
    """Live and in the replay, by the capabilities of the client that reads; a notice is never stored nor replayed."""
    capabilities = EVERYTHING if declared else {}
    client = play.start(capabilities=capabilities)
    session = client.new(play.cwd)
    client.prompt(session, "\n".join(f"update {text}" for text in GATED.values()) + "\nsay x")
    shown = {line.kind for line in client.updates(session=session)} - {"agent_message_chunk"}
    assert (set(GATED) - {"subagent_update"} if declared else set()) == shown
    log = play.finish(client)[session]
    assert 0 == sum(b'"notice"' in line for line in log.lines if b'"type":"update"' in line)
    for other, kinds in ((EVERYTHING, {"plan_update", "compaction_update"}), ({}, set[str]())):
        client = play.start(capabilities=other)
        client.load(session, play.cwd)
        again = {line.kind for line in client.updates(session=session)} & GATED.keys()
        assert kinds == again - {"compaction_summary_chunk"}
        play.finish(client)


def test_the_prompt_that_an_agent_echoes_is_not_shown_twice(play: Stage) -> None:
    """An agent that repeats the prompt as user_message_chunk: one message of the user, live none, in the replay one."""
    client = play.start("--echo-prompt")
    session = client.new(play.cwd)
    client.prompt(session, "say a")
    client.prompt(session, "say a")
    assert [] == client.updates("user_message_chunk")
    play.finish(client)
    client = play.start()
    client.load(session, play.cwd)
    assert ["say a", "say a"] == [line.update["content"]["text"] for line in client.updates("user_message_chunk")]
    play.finish(client)


def test_a_prompt_reaches_the_agent_as_the_client_wrote_it(play: Stage) -> None:
    """All but the session id: order, spaces, numbers, `_meta`, blocks of every type; and it is stored so."""
    client = play.start()
    session = client.new(play.cwd)
    blocks = (
        '[ {"type":"image","data":"AAAA","mimeType":"image/png","_meta":{"n":1e2}},'
        '{"type":"audio","data":"BBBB","mimeType":"audio/wav"},{"type":"resource","resource":{"uri":"file:///x","blob":"CCCC"}},'
        '{"name":"n","type":"resource_link","uri":"file:///y","size":1},  {"type":"text","text":"say \\u0041\\/ \u2028"} ]'
    )
    params = f'{{"prompt":{blocks},"_meta":{{"k":1e2}},"sessionId":"{session}"}}'
    client.send_bytes(f'{{"id":"p","jsonrpc":"2.0","params":{params},"method":"session/prompt"}}\n'.encode())
    assert {"stopReason": "end_turn"} == client.result("p")
    got = next(raw for raw in play.wire.read_bytes().split(b"\n") if b"session/prompt" in raw)
    assert blocks.encode() in got
    assert b'"_meta":{"k":1e2}' in got
    assert session.encode() not in got
    log = play.finish(client)[session]
    assert b'"prompt":' + blocks.encode() in log.lines[log.entries.index(log.of("prompt")[0])]
    client = play.start()
    client.load(session, play.cwd)
    sent = [store.frame_update(line.raw) for line in client.updates("user_message_chunk")]
    for block in re.findall(r"\{.*?\}(?=\s*[,\]]\s*(?:\{|$))", blocks[1:-1] + "]"):
        assert any(b'"content":' + block.strip().encode() in raw for raw in sent), block
    play.finish(client)


def canned(play: Stage, **answers: object) -> Client:
    """An acpd around an agent that answers with these texts."""
    path = play.tmp / "answers.json"
    path.write_text(json.dumps(answers))
    return play.start(command=[*commands.wrapping(AGENT.with_name("canned.py")), str(path)])


@pytest.mark.parametrize(
    "result",
    [
        '{"sessionId":"s1","modes":"bad","configOptions":[1,{"id":"m"}]}',
        '{"sessionId":"s1","modes":{"currentModeId":"a","availableModes":[{"id":"a","name":"A"},{"id":1}]},"configOptions":null}',
        '{"sessionId":"s1","modes":null,"configOptions":{}, "_meta":7}',
    ],
)
def test_a_malformed_member_of_a_new_session_is_left_out(result: str, play: Stage) -> None:
    """The answer that leaves validates; the session works and can be loaded."""
    client = canned(play, **{"session/new": f'"result":{result}'})
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, "x")
    client.load(session, play.cwd)
    play.finish(client)


@pytest.mark.parametrize("result", ["null", "[]", "{}", '{"sessionId":1}', '{"sessionId":null}', '"s1"', '{"sessionId":""}'])
def test_a_new_session_without_an_id_is_an_error(result: str, play: Stage) -> None:
    """-32603 that quotes the agent; nothing is left in the store; the connection lives."""
    client = canned(play, **{"session/new": f'"result":{result}'})
    with pytest.raises(RpcError, match="session/new"):
        client.new(play.cwd)
    assert [] == client.call("session/list", {})["sessions"]
    assert {} == play.finish(client)


@pytest.mark.parametrize(
    "result", ["null", "7", '{"stopReason":null}', '{"stopReason":"end_turn","usage":7}', '{"stopReason":1}']
)
def test_an_odd_answer_to_a_prompt_validates_or_is_an_error(result: str, play: Stage) -> None:
    """What leaves acpd is a result of the protocol or an error; the next prompt works."""
    client = canned(play, **{"session/prompt": f'"result":{result}'})
    session = client.new(play.cwd)
    for _ in range(2):
        message = client.answer(client.start_prompt(session, "x")).message
        assert "error" in message or "end_turn" == message["result"]["stopReason"]
    play.finish(client)


def test_updates_around_the_answers_keep_their_place(play: Stage) -> None:
    """Before the answer to session/new, right behind it, between turns: behind acpd's answer, in order, in the log."""

    def update(text: str) -> str:
        return (
            '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":'
            f'{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}}}}}'
        )

    client = canned(
        play,
        **{
            "before session/new": [update("a"), update("b")],
            "after session/new": [update("c")],
            "before session/prompt": [update("d")],
            "after session/prompt": [update("e"), update("f")],
        },
    )
    ident = client.request("session/new", {"cwd": str(play.cwd), "mcpServers": []})
    session = client.result(ident)["sessionId"]
    client.wait("abc", lambda: client.text(session) == "abc")
    assert [] == [line for line in client.lines[: client.answer(ident).number] if line.kind]
    client.prompt(session, "x")
    client.wait("all", lambda: client.text(session) == "abcdef")
    log = play.finish(client)[session]
    until("the log", lambda: len(log.of("update")) == 6)


def test_what_an_agent_announces_wrongly_is_left_out(play: Stage) -> None:
    """Malformed capabilities and logins count as absent; a login by terminal is not shown to who has no terminal."""
    able = '{"loadSession":1,"promptCapabilities":{"image":"yes","audio":true},"mcpCapabilities":7,"auth":{"logout":true}}'
    logins = '[7,{"id":"x"},{"id":"ok","name":"OK","n":1e2},{"type":"terminal","id":"t","name":"T","args":null}]'
    client = canned(play, initialize=f'"result":{{"protocolVersion":"1","agentCapabilities":{able},"authMethods":{logins}}}')
    said = client.answer(1)
    assert {"audio": True} == said.message["result"]["agentCapabilities"]["promptCapabilities"]
    assert ["ok", "t"] == [method["id"] for method in said.message["result"]["authMethods"]]
    assert b'{"id":"ok","name":"OK","n":1e2}' in said.raw
    assert {} == client.call("authenticate", {"methodId": "ok"})
    play.finish(client)


def test_what_an_agent_lists_wrongly_is_left_out(play: Stage) -> None:
    """A bad row costs that row; the agent's own `_meta` stays beside acpd's mark; a bad list costs the agent's rows only."""
    rows = f'[7,{{"sessionId":"a"}},{{"sessionId":"b","cwd":"{play.cwd}","title":7,"_meta":{{"k":1e2}}}}]'
    able = '"result":{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"list":{}}}}'
    client = canned(play, initialize=able, **{"session/list": f'"result":{{"sessions":{rows},"nextCursor":null}}'})
    listed = client.call("session/list", {})["sessions"]
    assert [{"sessionId": "b", "cwd": str(play.cwd), "_meta": {"k": 100.0, "acpd.dev/adopt": True}}] == listed
    assert b'{"k":1e2,"acpd.dev/adopt":true}' in client.lines[-1].raw
    play.finish(client)
