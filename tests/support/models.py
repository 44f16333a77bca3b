"""A model server for tests: the shared scripted one in all its dialects, canned answers in front of it, and a strict look at
every request: what a real provider refuses is an error here too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import re
import select
import threading
from collections.abc import Callable, Generator, Iterable
from http.server import ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from tests.support.paths import SHARED

Json = dict[str, Any]
DIALECTS = ("chat", "responses", "anthropic", "gemini")


def _shared() -> Any:
    spec = importlib.util.spec_from_file_location("fake_model", SHARED / "peers" / "fake_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ARGS = SimpleNamespace(model="fake-model", log=None)  # type: ignore[attr-defined]
    return module


_Handler: Any = _shared().Handler


class ModelServer:
    """`canned`: raw answers to the next POSTs, `b""` for a connection that is closed without one; then the script's turn.

    `bodies`: of all POSTs. `wrong`: what a strict provider would have refused.
    """

    def __init__(self) -> None:
        self.canned: list[bytes] = []
        self.answering: Callable[[Json], bytes] | None = None
        """Makes the answer to a body, where none is canned."""
        self.bodies: list[Json] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.wrong: list[str] = []
        self.silent = False
        """It does not say which models it has."""
        self.stalled = threading.Event()
        """Set while an answer is held back, see STALL."""
        self.go_on = threading.Event()
        self.left = threading.Event()
        """The client has closed the connection while its answer was held back."""
        posted, got = self._post, self._get
        methods = {"do_POST": lambda request: posted(request), "do_GET": lambda request: got(request)}  # noqa: PLW0108  to be bound
        handler: Any = type("Handler", (_Handler,), methods)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def _post(self, handler: Any) -> None:
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self.bodies.append(json.loads(raw or b"{}"))
        self.paths.append(handler.path)
        self.headers.append({name.lower(): value for name, value in handler.headers.items()})
        if raw:  # a request that was cancelled while it was sent has none
            self.wrong += list(faults(handler.path, self.bodies[-1]))
        if not self.canned and self.answering is None:
            handler.rfile = io.BytesIO(raw)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                _Handler.do_POST(handler)
            return
        answer = self.canned.pop(0) if self.canned or self.answering is None else self.answering(self.bodies[-1])
        handler.close_connection = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            before, stall, after = answer.partition(STALL)
            handler.wfile.write(before)
            if stall:
                self.stalled.set()
                while not self.go_on.is_set():
                    if select.select([handler.connection], [], [], 0.01)[0]:
                        self.left.set()
                        return
                handler.wfile.write(after)

    def _get(self, handler: Any) -> None:
        if self.silent:
            handler.send_json({"error": {"message": "not found"}}, 404)
        else:
            _Handler.do_GET(handler)

    def close(self) -> None:
        self.go_on.set()
        self._http.shutdown()
        self._http.server_close()


STALL = b"\0stall\0"
"""In a canned answer: wait here until `go_on` is set."""


@contextlib.contextmanager
def model_server() -> Generator[ModelServer]:
    server = ModelServer()
    try:
        yield server
    finally:
        server.close()


# -- a strict provider

_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")


def faults(path: str, body: Json) -> Iterable[str]:
    """What is wrong with the calls, the results and the texts of a request."""
    if _SURROGATE.search(json.dumps(body, ensure_ascii=False)):
        yield "half a surrogate pair"
    if path.endswith("/chat/completions"):
        messages = body["messages"]
        steps = [(_chat_calls(m), [m["tool_call_id"]] if m["role"] == "tool" else []) for m in messages]
        yield from _in_turns([m["role"] for m in messages if m["role"] not in {"system", "developer", "tool"}])
    elif path.endswith("/responses"):
        steps = [_responses_step(item) for item in body["input"]]
    elif path.endswith("/messages"):
        steps = [_anthropic_step(m) for m in body["messages"]]
        yield from _in_turns([m["role"] for m in body["messages"]])
        for number, message in enumerate(body["messages"]):
            yield from (f"message {number}: {wrong}" for wrong in _anthropic_blocks(message))
    elif "enerateContent" in path:
        steps = [_gemini_step(m) for m in body["contents"]]
        spoken = [m for m in body["contents"] if not all("functionResponse" in part for part in m["parts"])]
        yield from _in_turns([m["role"] for m in spoken])
    else:
        return
    yield from _pairs(steps)
    if "enerateContent" not in path:
        yield from _ids([call for calls, _ in steps for call in calls])


def _ids(calls: list[str]) -> Iterable[str]:
    if len(set(calls)) != len(calls):
        yield f"two calls of one id: {calls}"
    yield from (f"an id that no provider takes: {call}" for call in calls if not _NAME.fullmatch(call))


def _anthropic_blocks(message: Json) -> Iterable[str]:
    """Texts must not be blank, thoughts not the last, names of tools plain."""
    blocks = message["content"] if isinstance(message["content"], list) else [{"type": "text", "text": message["content"]}]
    contents: list[Any] = [block["content"] for block in blocks if isinstance(block.get("content"), list)]
    if any(each["type"] == "text" and not each["text"].strip() for part in (blocks, *contents) for each in part):
        yield "a blank text"
    if not blocks or blocks[-1]["type"] == "thinking":
        yield "no content, or thoughts at its end"
    yield from (
        f"a tool {block['name']}" for block in blocks if block["type"] == "tool_use" and not _NAME.fullmatch(block["name"])
    )


def _pairs(steps: list[tuple[list[str], list[str]]]) -> Iterable[str]:
    open_calls: list[str] = []
    for number, (calls, results) in enumerate(steps):
        for result in results:
            if result not in open_calls:
                yield f"step {number}: a result without a call: {result}"
            else:
                open_calls.remove(result)
        if open_calls and not results and not calls:
            yield f"step {number}: calls without results: {open_calls}"
        open_calls += calls
    if open_calls:
        yield f"at the end: calls without results: {open_calls}"


def _in_turns(roles: list[str]) -> Iterable[str]:
    """Users and models speak in turns; a model may speak twice with results between, which are no role of their own in chat."""
    for number, (one, other) in enumerate(itertools.pairwise(roles)):
        if one == other == "user":
            yield f"message {number}: two messages of the user after one another: {roles}"


def _chat_calls(message: Json) -> list[str]:
    for call in message.get("tool_calls") or []:
        json.loads(call["function"]["arguments"])
    return [call["id"] for call in message.get("tool_calls") or []]


def _responses_step(item: Json) -> tuple[list[str], list[str]]:
    if item.get("type") == "function_call":
        json.loads(item["arguments"])
        return [item["call_id"]], []
    return [], [item["call_id"]] if item.get("type") == "function_call_output" else []


def _anthropic_step(message: Json) -> tuple[list[str], list[str]]:
    blocks = message["content"] if isinstance(message["content"], list) else []
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return calls, [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]


def _gemini_step(message: Json) -> tuple[list[str], list[str]]:
    calls = [part["functionCall"]["name"] for part in message["parts"] if "functionCall" in part]
    results = [part["functionResponse"]["name"] for part in message["parts"] if "functionResponse" in part]
    return [f"{name}#{index}" for index, name in enumerate(calls)], [f"{name}#{index}" for index, name in enumerate(results)]


# -- canned answers


def http(status: int, body: Json, **headers: str) -> bytes:
    """An answer that is no stream. `headers`: retry_after is Retry-After."""
    raw = json.dumps(body).encode()
    given = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n{given}"
    return f"{head}Connection: close\r\n\r\n".encode() + raw


SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def sse(*events: Json | str) -> bytes:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
        lines.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return SSE + "".join(lines).encode()


def answer(
    dialect: str, text: str = "", calls: Iterable[tuple[str, str, Json]] = (), *, finish: str = "", thought: str = ""
) -> bytes:
    """A stream that says `text`, then makes `calls` (id, name, arguments). `finish`: the dialect's word, "": the usual one."""
    make = {"chat": _chat, "responses": _responses, "anthropic": _anthropic, "gemini": _gemini}[dialect]
    return make(text, list(calls), finish, thought)


def _chat(text: str, calls: list[tuple[str, str, Json]], finish: str, thought: str) -> bytes:
    def chunk(delta: Json, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "c1", "created": 1, "model": "m", "object": "chat.completion.chunk", "choices": [choice]}

    events: list[Json | str] = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"reasoning_content": thought})] if thought else []
    events += [chunk({"content": text})] if text else []
    for index, (identifier, name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": json.dumps(arguments)}
        events.append(chunk({"tool_calls": [{"index": index, "id": identifier, "type": "function", "function": function}]}))
    events.append(chunk({}, finish or ("tool_calls" if calls else "stop")))
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    events.append({**chunk({}), "choices": [], "usage": usage})
    return sse(*events, "[DONE]")


def _responses(text: str, calls: list[tuple[str, str, Json]], finish: str, thought: str) -> bytes:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message: Json = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    items = [message] if text else []
    for number, (identifier, name, arguments) in enumerate(calls):
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": identifier, "name": name, "status": "completed"}
        items.append({**item, "arguments": json.dumps(arguments)})
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18, **details}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": items}
    response |= {"usage": usage, "error": None}
    end = "response.completed"
    if finish:
        end, response = "response.incomplete", {**response, "status": "incomplete", "incomplete_details": {"reason": finish}}
    events: list[Json] = [{"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}]
    for index, item in enumerate(items):
        empty: Json = {"content": []} if item["type"] == "message" else {"arguments": ""}
        events.append(
            {"type": "response.output_item.added", "output_index": index, "item": {**item, **empty, "status": "in_progress"}}
        )
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            events.append({"type": "response.output_text.delta", **place, "delta": text})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": end, "response": response})
    return sse(*({**event, "sequence_number": number} for number, event in enumerate(events)))


def _anthropic(text: str, calls: list[tuple[str, str, Json]], finish: str, thought: str) -> bytes:
    usage = {"input_tokens": 11, "output_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    events: list[Json] = [{"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage}}]

    def block(start: Json, *deltas: Json) -> None:
        index = sum(event["type"] == "content_block_start" for event in events)
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        events.append({"type": "content_block_stop", "index": index})

    if thought:
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        block({"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": thought}, signed)
    if text:
        block({"type": "text", "text": ""}, {"type": "text_delta", "text": text})
    for identifier, name, arguments in calls:
        given = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        block({"type": "tool_use", "id": identifier, "name": name, "input": {}}, given)
    reason = finish or ("tool_use" if calls else "end_turn")
    events.append(
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 7}}
    )
    return sse(*events, {"type": "message_stop"})


def _gemini(text: str, calls: list[tuple[str, str, Json]], finish: str, thought: str) -> bytes:
    def chunk(parts: list[Json], reason: str = "") -> Json:
        candidate = {"content": {"role": "model", "parts": parts}, "index": 0} | ({"finishReason": reason} if reason else {})
        usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r"}

    events = [chunk([{"text": thought, "thought": True}])] if thought else []
    events += [chunk([{"text": text}])] if text else []
    made = [{"functionCall": {"name": name, "args": arguments}} for _, name, arguments in calls]
    return sse(*events, chunk(made or [{"text": ""}], finish or "STOP"))
