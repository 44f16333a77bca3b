"""The verbs of the scriptable agent: one a line, in the *last* text block of a prompt.

Earlier text blocks are only context (`context` says them). Any other line is answered "echo: LINE". Times are in
milliseconds. A turn that is cancelled ends at its next step, with its open tool calls failed.

    say TEXT · think TEXT · chunks N [with-id] · slow N MS · sleep MS · big BYTES · image [BYTES] · late MS TEXT
    plan A|B|C · tool NAME · parallel N · commands · title TEXT · mode ID · config ID VALUE · usage N
    ask [two|four|diff|bare] · withdraw MS · elicit [form|url] · read PATH · write PATH TEXT · run CMD
    state NAME JSON · counter · ext METHOD JSON · note METHOD JSON · update JSON · unknown [KIND] · raw JSON ($SESSION in it)
    noise TEXT · stderr TEXT · stop REASON · fail CODE TEXT · die CODE [after N] · hang · deaf · forget · child SECONDS
    recall METHOD JSON · context · history · caps · servers · notes · env NAME · where · pid

| verb | what it does |
|---|---|
| chunks N with-id | N chunks of one message with one messageId |
| late MS TEXT | sends TEXT, MS after the answer of the turn |
| ask four / diff / bare | all kinds of options / a diff in the tool call / without a tool_call before it |
| withdraw MS | asks, then sends `$/cancel_request` for that after MS |
| state, counter | `_acpd/state`; counter adds one to what `_meta["acpd.dev/state"]` brought back |
| update JSON | this text, byte for byte, as the update |
| deaf | from here on the turn ignores session/cancel |
| forget | load, resume, fork and list know no session any more; prompts still do |
| child SECONDS | leaves a process behind, in the agent's process group, and says its pid |
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tests.support.agent import Agent, Session

Json = dict[str, Any]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
KINDS = {"yes": "allow_once", "no": "reject_once", "always": "allow_always", "never": "reject_always"}


class Refused(Exception):
    """The answer to one request is this error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message} | ({} if data is None else {"data": data})


class Cancelled(Exception):
    """session/cancel came and the turn is not deaf."""


class Turn:
    """One prompt at work, in a thread of its own."""

    def __init__(self, agent: Agent, session: Session, request: str | int, blocks: list[Json]) -> None:
        self.agent = agent
        self.session = session
        self.request = request
        texts = [block.get("text", "") for block in blocks if block.get("type") == "text"]
        self.context, self.script = texts[:-1], texts[-1] if texts else ""
        self.cancelled = threading.Event()
        self.ended = threading.Event()
        self.deaf = False
        self.stop = "end_turn"
        self.calls = 0
        self.open_calls: list[str] = []

    def run(self) -> None:
        """The script, then the answer: exactly one, after every update."""
        try:
            for line in self.script.splitlines() or [""]:
                word, _, rest = line.strip().partition(" ")
                self.check()
                VERBS.get(word, echo)(self, rest if word in VERBS else line)
            self.check()
            answer: Json = {"result": {"stopReason": self.stop}}
        except Cancelled:
            for call in self.open_calls:
                self.agent.update(self.session, {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "failed"})
            answer = {"result": {"stopReason": "cancelled"}}
        except Refused as refused:
            answer = {"error": refused.error}
        except (ValueError, IndexError, KeyError) as error:
            answer = {"error": {"code": -32602, "message": f"bad script: {error!r}"}}
        self.session.turn = None
        self.agent.wire.send({"id": self.request, **answer})
        self.ended.set()

    def check(self) -> None:
        if self.cancelled.is_set() and not self.deaf:
            raise Cancelled

    def pause(self, ms: float | None) -> None:
        """Wait so long (None: for ever). A cancel ends it, unless the turn is deaf."""
        (threading.Event() if self.deaf else self.cancelled).wait(None if ms is None else ms / 1000)
        self.check()

    def update(self, variant: str, /, **members: object) -> None:
        self.check()
        self.agent.update(self.session, {"sessionUpdate": variant, **members})

    def say(self, text: str, kind: str = "agent_message_chunk", message_id: str | None = None) -> None:
        update: Json = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
        self.check()
        self.agent.update(self.session, update if message_id is None else update | {"messageId": message_id})

    def call(self, method: str, **members: object) -> Json:
        return self.agent.wire.call(method, {"sessionId": self.session.id, **members})

    def result(self, method: str, **members: object) -> Json:
        """The result of a request to the client; an error is said and ends the turn as an error."""
        answer = self.call(method, **members)
        if "error" in answer:
            raise Refused(-32603, f"{method}: {answer['error'].get('code')} {answer['error'].get('message')}")
        return answer.get("result") or {}

    def open_call(self, title: str, kind: str = "read", **members: object) -> str:
        self.calls += 1
        call = f"call-{self.session.id}-{len(self.session.log)}-{self.calls}"
        self.update("tool_call", toolCallId=call, title=title, kind=kind, status="pending", **members)
        self.open_calls.append(call)
        return call

    def move_call(self, call: str, status: str, text: str = "", **members: object) -> None:
        if text:
            members["content"] = [{"type": "content", "content": {"type": "text", "text": text}}]
        self.update("tool_call_update", toolCallId=call, status=status, **members)
        if status in ("completed", "failed"):
            self.open_calls.remove(call)


def echo(turn: Turn, line: str) -> None:
    turn.say(f"echo: {line}")


def chunks(turn: Turn, rest: str) -> None:
    count, *mark = rest.split()
    message_id = f"m-{len(turn.session.log)}" if mark == ["with-id"] else None
    for number in range(int(count)):
        turn.say(f"c{number} ", message_id=message_id)


def slow(turn: Turn, rest: str) -> None:
    count, ms = rest.split()
    for number in range(int(count)):
        turn.pause(float(ms))
        turn.say(f"c{number} ")


def image(turn: Turn, rest: str) -> None:
    data = "A" * (int(rest) // 4 * 4) if rest else PIXEL
    turn.update("agent_message_chunk", content={"type": "image", "mimeType": "image/png", "data": data})


def late(turn: Turn, rest: str) -> None:
    ms, _, text = rest.partition(" ")
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}

    def afterwards() -> None:
        turn.ended.wait()
        time.sleep(float(ms) / 1000)
        turn.agent.update(turn.session, update)

    threading.Thread(target=afterwards, daemon=True).start()


def plan(turn: Turn, rest: str) -> None:
    steps = rest.split("|")
    for done in range(len(steps) + 1):
        states = ["completed"] * done + ["in_progress"] + ["pending"] * len(steps)
        entries = [{"content": step, "priority": "medium", "status": state} for step, state in zip(steps, states, strict=False)]
        turn.update("plan", entries=entries)


def tool(turn: Turn, name: str) -> None:
    call = turn.open_call(f"Read {name}", rawInput={"path": name}, locations=[{"path": f"/{name}", "line": 1}])
    turn.move_call(call, "in_progress")
    turn.move_call(call, "completed", f"out of {name}", rawOutput={"bytes": len(name)})


def parallel(turn: Turn, rest: str) -> None:
    calls = [turn.open_call(f"Step {number}", "search") for number in range(int(rest))]
    for call in calls:
        turn.move_call(call, "in_progress")
    for number, call in reversed(list(enumerate(calls))):
        turn.move_call(call, "completed", f"found {number}")


def commands(turn: Turn, rest: str) -> None:
    found = [{"name": name, "description": f"Does {name}"} for name in rest.split() or ["compact", "go"]]
    turn.update("available_commands_update", availableCommands=found)


def title(turn: Turn, rest: str) -> None:
    turn.agent.store.record("set", turn.session.id, "title", rest)
    turn.update("session_info_update", title=rest)


def mode(turn: Turn, rest: str) -> None:
    turn.agent.store.record("set", turn.session.id, "mode", rest)
    turn.update("current_mode_update", currentModeId=rest)


def config(turn: Turn, rest: str) -> None:
    option, value = rest.split()
    turn.agent.choose(turn.session, option, {"true": True, "false": False}.get(value, value))
    turn.update("config_option_update", configOptions=turn.agent.options_of(turn.session))


def usage(turn: Turn, rest: str) -> None:
    turn.update("usage_update", used=int(rest), size=200_000, cost={"amount": int(rest) / 1000, "currency": "USD"})


def outcome(answer: Json) -> str:
    if "error" in answer:
        return f"error {answer['error'].get('code')}"
    chosen = (answer.get("result") or {}).get("outcome") or {}
    return f"chose {chosen.get('optionId')}" if chosen.get("outcome") == "selected" else str(chosen.get("outcome"))


def ask(turn: Turn, form: str) -> None:
    names = list(KINDS) if form == "four" else ["yes", "no"]
    options = [{"optionId": name, "name": name.title(), "kind": KINDS[name]} for name in names]
    body: Json = {}
    if form == "diff":
        body["content"] = [{"type": "diff", "path": "/tmp/a.txt", "oldText": "a", "newText": "b"}]
    if form == "bare":
        outright: Json = {"toolCallId": f"bare-{len(turn.session.log)}", "title": "Write a.txt"}
        turn.say(outcome(turn.call("session/request_permission", toolCall=outright, options=options)))
        return
    call = turn.open_call("Write a.txt", "edit", **body)
    said = outcome(turn.call("session/request_permission", toolCall={"toolCallId": call, **body}, options=options))
    turn.move_call(call, "completed" if said in ("chose yes", "chose always") else "failed")
    turn.say(said)


def withdraw(turn: Turn, rest: str) -> None:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    params = {"sessionId": turn.session.id, "toolCall": {"toolCallId": turn.open_call("Wait")}, "options": options}
    identifier, done, answer = turn.agent.wire.begin("session/request_permission", params)
    turn.pause(float(rest))
    turn.agent.wire.send({"method": "$/cancel_request", "params": {"requestId": identifier}})
    done.wait()
    turn.move_call(turn.open_calls[-1], "failed")
    turn.say(outcome(answer))


def elicit(turn: Turn, form: str) -> None:
    form = form or "form"
    if form not in (turn.agent.client.get("elicitation") or {}):
        return turn.say(f"no elicitation by {form}")
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    how: Json = {"requestedSchema": schema} if form == "form" else {"elicitationId": "e-1", "url": "https://example.org/e"}
    answer = turn.result("elicitation/create", mode=form, message="Who are you?", **how)
    if form == "url":
        turn.agent.wire.send({"method": "elicitation/complete", "params": {"elicitationId": "e-1"}})
    return turn.say(f"{answer['action']} {json.dumps(answer.get('content'))}")


def read(turn: Turn, path: str) -> None:
    if not (turn.agent.client.get("fs") or {}).get("readTextFile"):
        return turn.say("no fs")
    return turn.say(turn.result("fs/read_text_file", path=path)["content"])


def write(turn: Turn, rest: str) -> None:
    path, _, text = rest.partition(" ")
    if not (turn.agent.client.get("fs") or {}).get("writeTextFile"):
        return turn.say("no fs")
    turn.result("fs/write_text_file", path=path, content=text)
    return turn.say(f"wrote {path}")


def run(turn: Turn, command: str) -> None:
    if not turn.agent.client.get("terminal"):
        return turn.say("no terminal")
    terminal = turn.result("terminal/create", command="/bin/sh", args=["-c", command])["terminalId"]
    shown = [{"type": "terminal", "terminalId": terminal}]
    call = turn.open_call(command, "execute", content=shown)
    _, done, answer = turn.agent.wire.begin("terminal/wait_for_exit", {"sessionId": turn.session.id, "terminalId": terminal})
    while not done.wait(0.02):
        if turn.cancelled.is_set() and not turn.deaf:
            turn.call("terminal/kill", terminalId=terminal)
            turn.call("terminal/release", terminalId=terminal)
            raise Cancelled
    output = turn.result("terminal/output", terminalId=terminal)
    turn.result("terminal/release", terminalId=terminal)
    turn.move_call(call, "completed")
    return turn.say(f"exit {(answer.get('result') or {}).get('exitCode')}: {output['output'].strip()}")


def keep(turn: Turn, name: str, value: object) -> str:
    answer = turn.call("_acpd/state", name=name, value=value)
    if "error" in answer:
        return f"error {answer['error'].get('code')}"
    turn.session.kept[name] = value
    return "kept"


def state(turn: Turn, rest: str) -> None:
    name, _, text = rest.partition(" ")
    turn.say(f"{name} {keep(turn, name, json.loads(text))}")


def counter(turn: Turn, _: str) -> None:
    count = turn.session.kept.get("counter", 0) + 1
    turn.say(f"counter {count} {keep(turn, 'counter', count)}")


def ext(turn: Turn, rest: str) -> None:
    method, _, text = rest.partition(" ")
    answer = turn.agent.wire.call(method, json.loads(text) if text else {})
    turn.say(json.dumps(answer["result"]) if "result" in answer else f"error {answer['error'].get('code')}")


def recall(turn: Turn, rest: str) -> None:
    method, _, text = rest.partition(" ")
    answer = turn.call(f"_acpd/{method}", arguments=json.loads(text) if text else {})
    turn.say(
        answer["result"]["text"] if "result" in answer else f"error {answer['error']['code']} {answer['error']['message']}"
    )


def note(turn: Turn, rest: str) -> None:
    method, _, text = rest.partition(" ")
    turn.agent.wire.send({"method": method, "params": json.loads(text) if text else {}})


def unknown(turn: Turn, kind: str) -> None:
    text = f'{{"sessionUpdate":"{kind or "from_the_future"}","what":{{"is":[1,2.50,1e3,null]}}}}'
    turn.agent.update_text(turn.session, text)


def fail(turn: Turn, rest: str) -> NoReturn:
    code, _, text = rest.partition(" ")
    raise Refused(int(code or -32603), text or "scripted failure")


def die(turn: Turn, rest: str) -> NoReturn:
    code, _, after = rest.partition(" ")
    if after:
        chunks(turn, after.removeprefix("after "))
    os._exit(int(code or 1))


def deaf(turn: Turn, _: str) -> None:
    turn.deaf = True


def stop(turn: Turn, reason: str) -> None:
    turn.stop = reason


def child(turn: Turn, seconds: str) -> None:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(["sleep", seconds], stdin=quiet, stdout=quiet, stderr=quiet)
    turn.say(f"child {process.pid}")


def stderr(_: Turn, text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


Verb = Callable[[Turn, str], object]
_named: list[Verb] = [chunks, slow, image, late, plan, tool, parallel, commands, title, mode, config, usage, ask, withdraw]
_named += [elicit, read, write, run, state, counter, ext, recall, note, unknown, fail, die, deaf, stop, child, stderr]
VERBS: dict[str, Verb] = {verb.__name__: verb for verb in _named} | {
    "say": Turn.say,
    "think": lambda turn, text: turn.say(text, "agent_thought_chunk"),
    "sleep": lambda turn, ms: turn.pause(float(ms)),
    "hang": lambda turn, _: turn.pause(None),
    "big": lambda turn, size: turn.say("b" * int(size)),
    "raw": lambda turn, text: turn.agent.wire.line(text.replace("$SESSION", turn.session.id)),
    "noise": lambda turn, text: turn.agent.wire.line(text),
    "update": lambda turn, text: turn.agent.update_text(turn.session, text),
    "forget": lambda turn, _: turn.agent.store.record("forget"),
    "context": lambda turn, _: turn.say(f"context {json.dumps(turn.context)}"),
    "history": lambda turn, _: turn.say(f"history {len(turn.session.log)}"),
    "caps": lambda turn, _: turn.say(json.dumps(turn.agent.client, sort_keys=True)),
    "servers": lambda turn, _: turn.say(f"servers {' '.join(turn.session.servers)}"),
    "notes": lambda turn, _: turn.say("; ".join(turn.agent.notes)),
    "env": lambda turn, name: turn.say(f"{name}={os.environ.get(name)}"),
    "where": lambda turn, _: turn.say(f"process {os.getcwd()} session {turn.session.cwd}"),
    "pid": lambda turn, _: turn.say(f"pid {os.getpid()} group {os.getpgrp()}"),
}
