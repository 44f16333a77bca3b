"""Big payloads, and a client that is slower than its agent: whole, once, in order, in bounded memory."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from tests.support import commands, proc, store
from tests.support.scripted import Stage, failing, prompt_params, until
from tests.support.walk import below

pytestmark = pytest.mark.e2e

KIB, MIB = 1 << 10, 1 << 20


def blobs(play: Stage) -> list[Path]:
    return [path for path in below(play.home, "*.blobs/*") if path.is_file()]


def test_an_image_of_a_mebibyte_passes_both_ways_and_is_stored_once(play: Stage) -> None:
    """In a prompt and in an update; the log names a blob, the client and the replay have every byte."""
    data = "QUJD" * (MIB // 4)
    client = play.start()
    session = client.new(play.cwd)
    blocks = [{"type": "image", "mimeType": "image/png", "data": data}, {"type": "text", "text": f"image {MIB}\nimage {MIB}"}]
    assert {"stopReason": "end_turn"} == client.call("session/prompt", {"sessionId": session, "prompt": blocks})
    shown = [line.update["content"]["data"] for line in client.updates("agent_message_chunk", session)]
    assert ["A" * MIB] * 2 == shown
    assert play.agent_got("session/prompt")[0]["params"]["prompt"][0]["data"] == data
    live = [store.frame_update(line.raw) for line in client.updates(session=session)]
    log = play.finish(client)[session]
    assert 64 * KIB > log.path.stat().st_size
    assert 2 == len(blobs(play)), "the image of the user, and the agent's one, which came twice"
    client = play.start()
    client.load(session, play.cwd)
    assert data == client.updates("user_message_chunk")[0].update["content"]["data"]
    assert live == [store.frame_update(line.raw) for line in client.updates("agent_message_chunk", session)]
    play.finish(client)


def test_order_holds_around_a_blob(play: Stage) -> None:
    """What the agent says behind a big payload comes behind it, also the turn's answer and the next turn."""
    client = play.start()
    session = client.new(play.cwd)
    script = f"say a\nimage {4 * MIB}\nsay b\nbig {200 * KIB}\ntool x\nimage {100 * KIB}"
    ident = client.start_prompt(session, script)
    assert {"stopReason": "end_turn"} == client.result(ident)
    kinds = [line.update["content"]["type"] for line in client.updates("agent_message_chunk", session)]
    assert ["text", "image", "text", "text", "image"] == kinds
    assert client.lines[-1].is_answer
    seqs = [line.seq or 0 for line in client.updates(session=session)]
    assert seqs == sorted(seqs)
    play.finish(client)


def test_a_payload_over_30_mib_is_shortened_the_same_live_and_in_the_replay(play: Stage) -> None:
    """Its largest string is replaced by a text that names the blob; the log has all of it; 24 MiB pass whole."""
    client = play.start()
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, f"big {24 * MIB}\nsay x\nimage {31 * MIB}", within=60)
    whole, _, cut = client.updates("agent_message_chunk", session)
    assert "b" * (24 * MIB) == whole.update["content"]["text"]
    words = cut.update["content"]["data"]
    found = re.fullmatch(r"\[acpd keeps (\d+) bytes of this as blob ([0-9a-f]{64})\]", words)
    assert found is not None, words[:200]
    assert 31 * MIB == int(found[1])
    assert [31 * MIB] == [path.stat().st_size for path in blobs(play) if path.name == found[2]]
    play.finish(client)
    client = play.start()
    client.load(session, play.cwd, within=60)
    assert cut.raw == client.updates("agent_message_chunk", session)[-1].raw
    play.finish(client)


def test_a_line_over_64_mib_is_one_error_and_the_connection_lives(play: Stage) -> None:
    """From the client: -32600 with id null; from the agent: skipped, and its turn goes on."""
    client = play.start()
    session = client.new(play.cwd)
    line = b'{"jsonrpc":"2.0","id":"x","method":"session/prompt","params":{"text":"%b"}}\n' % (b"x" * (64 * MIB))
    client.send_bytes(line)
    answer = client.answer(None, within=60).message
    assert -32600 == answer["error"]["code"]
    assert str(len(line) - 1) in answer["error"]["message"]
    assert "end_turn" == client.prompt(session, f"noise {'y' * 100}\nbig {65 * MIB}\nsay on", within=60)
    assert "on" == client.text(session)
    play.finish(client)


def test_a_client_that_does_not_read_gets_everything_later_once(play: Stage) -> None:
    """The agent streams on and its turn ends; then the client reads: each chunk once, in order, then the answer."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "say warm")
    client.pause_reading()
    count = 4000
    ident = client.start_prompt(session, f"say {'x' * 1000}\nchunks {count}\nsay {'y' * 2000}")
    until("the end of the turn in the log", lambda: len(store.log(play.home, session, torn=True).of("turn")) == 4)
    client.resume_reading()
    assert {"stopReason": "end_turn"} == client.result(ident)
    text = client.text(session)
    assert "".join(f"c{n} " for n in range(count)) == re.sub(r"^warmx+|y+$", "", text)
    seqs = [line.seq or 0 for line in client.updates("agent_message_chunk", session)]
    assert seqs == sorted(set(seqs))
    assert client.lines[-1].is_answer
    play.finish(client)


def test_a_slow_client_costs_no_memory_and_nobody_else(play: Stage) -> None:
    """50 MB streamed at a client that does not read: acpd grows by less than 16 MiB, and answers another session's agent."""
    client = play.start()
    session, other = client.new(play.cwd), client.new(play.cwd)
    client.prompt(session, "big 60000\n" * 20)
    client.prompt(other, "say warm")
    before = proc.rss(client.pid)
    client.pause_reading()
    lines = "\n".join(["big 50000"] * 1000)
    ident = client.start_prompt(session, lines)
    second = client.start_prompt(other, "say on")
    peak = before
    end = time.monotonic() + 120
    while time.monotonic() < end:
        peak = max(peak, proc.rss(client.pid))
        log = below(play.home, f"{session}.log.jsonl")[0]
        if log.stat().st_size > 50_000_000 and b'"stopReason"' in log.read_bytes()[-400:]:
            break
    until("the other's turn", lambda: any(e.get("stopReason") for e in store.log(play.home, other, torn=True).of("turn")[2:]))
    assert peak - before < 16 * MIB, f"{(peak - before) / MIB:.1f} MiB"
    client.resume_reading()
    assert {"stopReason": "end_turn"} == client.result(ident, within=60)
    assert {"stopReason": "end_turn"} == client.result(second)
    assert 20 * 60000 + 1000 * 50000 == len(client.text(session))
    seqs = [line.seq or 0 for line in client.updates("agent_message_chunk", session)]
    assert seqs == sorted(set(seqs))
    play.finish(client)


def test_a_load_cancelled_half_way_leaves_a_session_that_works(play: Stage) -> None:
    """The client stopped reading, cancelled, and reads again: one answer; a prompt is answered; a new load replays all."""
    client = play.start()
    session = client.new(play.cwd)
    client.prompt(session, "\n".join(f"tool {n}{'x' * 3000}" for n in range(600)))
    play.finish(client)
    client = play.start()
    client.pause_reading()
    ident = client.request("session/load", {"sessionId": session, "cwd": str(play.cwd), "mcpServers": []})
    until("the pipe is full", lambda: client.unread() > 64 * KIB)
    client.notify("$/cancel_request", {"requestId": ident})
    prompt = client.start_prompt(session, "say after")
    until("the prompt in the log", lambda: len(store.log(play.home, session, torn=True).of("prompt")) == 2)
    client.resume_reading()
    assert -32800 == client.answer(ident).message["error"]["code"]
    assert {"stopReason": "end_turn"} == client.result(prompt)
    assert "after" in client.text(session)
    seen = len(client.lines)
    client.load(session, play.cwd)
    assert 600 == len({line.update["toolCallId"] for line in client.lines[seen:] if "tool_call" in line.kind})
    play.finish(client)


def test_requests_by_thousands_without_reading_are_all_answered(play: Stage) -> None:
    """10,000 requests in one go from a client that does not read meanwhile: one answer each, in bounded memory."""
    client = play.start("--no-list")
    session = client.new(play.cwd)
    client.prompt(session, "say x")
    before = proc.rss(client.pid)
    client.pause_reading()
    for start in range(0, 10_000, 100):
        lines = [
            json.dumps({"jsonrpc": "2.0", "id": f"r{n}", "method": "session/close", "params": {"sessionId": "none"}}) + "\n"
            for n in range(start, start + 100)
        ]
        client.send_bytes("".join(lines).encode())
    until("the pipe is full", lambda: client.unread() > 64 * KIB)
    client.resume_reading()
    client.wait_settled([f"r{n}" for n in (0, 9_999)])
    client.wait("all answers", lambda: sum(str(line.message.get("id", "")).startswith("r") for line in client.lines) == 10_000)
    assert proc.rss(client.pid) - before < 32 * MIB
    assert "end_turn" == client.prompt(session, "say y")
    play.finish(client)


@pytest.mark.parametrize("size", [1000, MIB])
def test_an_id_of_any_length_comes_back(size: int, play: Stage) -> None:
    """Of a request and of a prompt, as text and as a long number."""
    client = play.start()
    session = client.new(play.cwd)
    assert {} == client.result(client.request("session/close", {"sessionId": "x"}, id="i" * size))
    assert {"stopReason": "end_turn"} == client.result(
        client.request("session/prompt", prompt_params(session, "say x"), id="p" * size)
    )
    number = "9" * 300
    client.send_bytes(b'{"jsonrpc":"2.0","id":%b,"method":"session/close","params":{"sessionId":"x"}}\n' % number.encode())
    client.wait("the number", lambda: any(b'"id":' + number.encode() in line.raw for line in client.lines))
    assert -32002 == failing(client, "session/load", {"sessionId": "s" * size, "cwd": "/", "mcpServers": []}).code
    play.finish(client)


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"$SESSION","update":'
        + '{"a":' * 600
        + "1"
        + "}" * 600
        + "}}",
        '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"$SESSION","update":{"sessionUpdate":"tool_call",'
        '"toolCallId":"t","title":"T","rawInput":' + "[" * 2000 + "]" * 2000 + "}}}",
        '{"jsonrpc":"2.0","id":5,"method":"_x/y","params":' + "[" * 900 + "]" * 900 + "}",
        '{"jsonrpc":"2.0","id":6,"result":' + "[" * 900 + "]" * 900 + "}",
        '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"$SESSION","update":{"sessionUpdate":"usage_update",'
        '"used":' + "9" * 4000 + ',"size":1}}}',
    ],
    ids=["update", "rawInput", "request", "answer", "number"],
)
def test_deep_and_long_json_of_an_agent_harms_nobody(line: str, play: Stage) -> None:
    """It is dropped, stored or passed; the next update and the next prompt work, the client's lines stay readable."""
    client = play.start()
    session = client.new(play.cwd)
    assert "end_turn" == client.prompt(session, f"raw {line}\nsay on")
    assert "on" == client.text(session)
    play.finish(client)
    client = play.start()
    client.load(session, play.cwd)
    assert "on" == client.text(session)
    play.finish(client)


def flood_agent(play: Stage, count: int, method: str, params: str) -> list[str]:
    """An agent that asks so often in a turn, without waiting, and then ends the turn."""
    path = play.tmp / "answers.json"
    asks = [f'{{"jsonrpc":"2.0","id":"f{n}","method":"{method}","params":{params}}}' for n in range(count)]
    path.write_text(json.dumps({"before session/prompt": asks}))
    return commands.acpd("run", "--", sys.executable, str(Path(__file__).parents[1] / "support" / "canned.py"), str(path))


OPTIONS = '"options":[{"optionId":"y","name":"Y","kind":"allow_once"}]'


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/request_permission", '{"sessionId":"s1","toolCall":{"toolCallId":"t"},' + OPTIONS + "}"),
        ("fs/read_text_file", '{"sessionId":"s1","path":"/x"}'),
        ("_x/y", "{}"),
    ],
)
def test_a_flood_of_questions_is_bounded(method: str, params: str, play: Stage) -> None:
    """3,000 at once at a client that answers none and reads none: bounded memory; each is answered or ended with the turn."""
    client = play.start(command=flood_agent(play, 3000, method, params), policy=None)
    session = client.new(play.cwd)
    before = proc.rss(client.pid)
    client.pause_reading()
    ident = client.start_prompt(session, "go")
    until("the end of the turn", lambda: len(store.log(play.home, session, torn=True).of("turn")) == 2)
    client.resume_reading()
    assert {"stopReason": "end_turn"} == client.result(ident, within=40)
    assert proc.rss(client.pid) - before < 32 * MIB
    asked = sum(line.method == method for line in client.lines)
    assert asked <= 1000
    play.finish(client)
