"""A strict validator of what crosses the wire, against ACP's published JSON schema. It shares no code with acpd.

A message is validated against the definition of *its method* (`x-method`, and an `x-side` that fits the direction); a response
against the result type of the request that it answers. Never against the root, whose `anyOf` accepts nearly anything.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import fastjsonschema
import jsonschema.exceptions
import jsonschema.validators

from tests.support.paths import SHARED

PATH = SHARED / "acp-schema" / "schema.unstable.json"

Json = Any
KINDS = ("Request", "Notification", "Response")
BOTH_WAYS = frozenset({"mcp/message"})  # ACP v1: MCP over ACP, whoever has the server


@functools.cache
def definitions() -> dict[str, Json]:
    loaded: dict[str, Json] = json.loads(PATH.read_text())["$defs"]
    return loaded


@functools.cache
def methods() -> dict[tuple[str, str], tuple[str, str]]:
    """(method, "Request" | "Notification" | "Response") -> (definition, side)."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for name, definition in definitions().items():
        if "x-method" in definition:
            kind = next(kind for kind in KINDS if name.endswith(kind))
            found[definition["x-method"], kind] = (name, definition["x-side"])
    return found


@functools.cache
def _compiled(name: str) -> Callable[[Json], Json]:
    schema = {"$ref": f"#/$defs/{name}", "$defs": definitions()}
    compiled: Callable[[Json], Json] = fastjsonschema.compile(schema, use_default=False, use_formats=False)
    return compiled


@functools.cache
def _explaining(name: str) -> jsonschema.validators.Draft202012Validator:
    return jsonschema.validators.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions()})


def check(name: str, value: Json) -> None:
    """Raises AssertionError with the path of what does not fit the definition of this name."""
    try:
        _compiled(name)(value)
    except fastjsonschema.JsonSchemaException as quick:
        best = jsonschema.exceptions.best_match(_explaining(name).iter_errors(value))
        detail = f"{best.json_path}: {best.message}" if best else str(quick)
        raise AssertionError(f"{name}: {detail[:600]}") from None


def fits(name: str, value: Json) -> bool:
    """Whether the value fits the definition of this name."""
    try:
        _compiled(name)(value)
    except fastjsonschema.JsonSchemaException:
        return False
    return True


class _Open:
    """Requests in one direction that have no answer yet: id -> methods, oldest first."""

    def __init__(self) -> None:
        self.methods: dict[str, list[str]] = {}

    def ask(self, key: str, method: str) -> None:
        self.methods.setdefault(key, []).append(method)

    def __contains__(self, key: str) -> bool:
        return bool(self.methods.get(key))

    def close(self, key: str, result: Json, failed: bool) -> str | None:
        """The method that this answer is of, now closed; None if nothing with this id is open.

        A peer may have used one id twice; the result then tells which one is answered, and an error answers the newest.
        """
        waiting = self.methods.get(key)
        if not waiting:
            return None
        index = len(waiting) - 1
        if not failed:
            index = next((at for at, method in enumerate(waiting) if _result_fits(method, result)), index)
        return waiting.pop(index)


def _result_fits(method: str, result: Json) -> bool:
    found = methods().get((method, "Response"))
    return found is None or fits(found[0], result)


class WireCheck:
    """Both sides of acpd on one client connection and one agent process; everything that acpd sends must be right.

    `sent_*` validate and raise AssertionError; `seen_*` only take note of what peers ask and answer: they may be as wrong as
    they like. Use one instance for each pair of connections, since a new connection has ids of its own.
    """

    def __init__(self) -> None:
        self.by_client, self.by_agent = _Open(), _Open()
        self.to_client, self.to_agent = _Open(), _Open()
        self.sent = 0
        """Lines that acpd sent and that were checked."""

    def seen_from_client(self, line: bytes | str) -> None:
        self._seen(line, self.by_client, self.to_client)

    def seen_from_agent(self, line: bytes | str) -> None:
        self._seen(line, self.by_agent, self.to_agent)

    def sent_by_acpd_to_client(self, line: bytes | str) -> None:
        self._sent(line, "client", asked=self.by_client, asking=self.to_client)

    def sent_by_acpd_to_agent(self, line: bytes | str) -> None:
        self._sent(line, "agent", asked=self.by_agent, asking=self.to_agent)

    def _seen(self, line: bytes | str, asking: _Open, asked: _Open) -> None:
        try:
            message = json.loads(line, parse_int=_short)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict) or "id" not in message:
            return
        key = json.dumps(message["id"])
        method = message.get("method")
        if "method" in message:
            asking.ask(key, method if isinstance(method, str) else "")  # no text: still a request, with an id to answer to
        else:
            asked.close(key, message.get("result"), "error" in message)

    def _sent(self, line: bytes | str, side: str, *, asked: _Open, asking: _Open) -> None:
        text = line.decode() if isinstance(line, bytes) else line
        shown = f"to {side}: {text[:400]}"
        try:
            self._check(_parsed(text), side, asked, asking)
        except AssertionError as error:
            raise AssertionError(f"{error}\n  {shown}") from None
        self.sent += 1

    def _check(self, message: dict[str, Json], side: str, asked: _Open, asking: _Open) -> None:
        assert message.get("jsonrpc") == "2.0", "jsonrpc is not '2.0'"
        if "id" in message:
            identifier = message["id"]
            assert identifier is None or (isinstance(identifier, str | int) and not isinstance(identifier, bool)), (
                f"id {identifier!r} is no string, integer or null"
            )
        if "method" in message:
            _check_call(message, side)
            if "id" in message:
                key = json.dumps(message["id"])
                assert key not in asking, f"id {key} is used for a request while another with it is open"
                asking.ask(key, message["method"])
        else:
            _check_answer(message, asked)


def _parsed(text: str) -> dict[str, Json]:
    assert "\n" not in text.removesuffix("\n"), "a newline inside of a message"
    try:
        message = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise AssertionError(f"no JSON: {error}") from None
    assert isinstance(message, dict), "a message must be an object"
    return message


def _short(digits: str) -> int:
    """An integer of any length, which int() refuses above 4,300 digits; only its being one matters."""
    return int(digits[:4000])


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON")


def _check_call(message: dict[str, Json], side: str) -> None:
    """A request or notification that goes to `side`."""
    assert not {"result", "error"} & message.keys(), "a request with a result or an error"
    method = message["method"]
    assert isinstance(method, str), "method is no string"
    if "params" in message:
        assert isinstance(message["params"], dict | list) or message["params"] is None, "params are neither object nor array"
    if method.startswith("_"):
        return
    kind = "Request" if "id" in message else "Notification"
    found = methods().get((method, kind))
    assert found is not None, f"{method} is no {kind.lower()} of the protocol"
    name, meant_for = found
    assert meant_for in {side, "both", "protocol"} or method in BOTH_WAYS, f"{method} is for the {meant_for}, not the {side}"
    check(name, message.get("params", {}))


def _check_answer(message: dict[str, Json], asked: _Open) -> None:
    assert "id" in message, "neither a method nor an id"
    assert ("result" in message) != ("error" in message), "an answer has either a result or an error"
    failed = "error" in message
    if failed:
        error = message["error"]
        assert isinstance(error, dict), "error is no object"
        assert type(error.get("code")) is int, "error.code is no integer"
        assert isinstance(error.get("message"), str), "error.message is no string"
    key = json.dumps(message["id"])
    method = asked.close(key, message.get("result"), failed)
    if method is None:
        # JSON-RPC 2.0 section 5: what cannot be read has no id that could be given back
        unreadable = key == "null" and failed and message["error"]["code"] in {-32700, -32600}
        assert unreadable, f"an answer to id {key}, which is not open"
        return
    found = methods().get((method, "Response"))
    if not failed and found is not None:
        check(found[0], message["result"])
