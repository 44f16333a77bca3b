"""A scriptable ACP v1 agent on stdio: a real program whose prompts say what it does.

    python -m tests.support.agent [OPTION ...]        or by path; standard library only

The verbs of a prompt are listed in `agent_verbs.py`. Capabilities are switched by options: all but --auth are on,
`--no-load` turns one off, `--bare` all that are not named. It is strict with its client: what is wrong by the protocol
is answered with an error, so a proxy in front of it is tested as well. Exits 0 when its input ends.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:  # run by path
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.support import agent_verbs
from tests.support.agent_verbs import Refused

Json = dict[str, Any]
SWITCHES = ("load", "resume", "fork", "list", "close", "delete", "modes", "config", "auth")
MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]}
COMMANDS = [{"name": "compact", "description": "Make room"}, {"name": "go", "description": "Go", "input": {"hint": "where"}}]


@dataclass
class Session:
    id: str
    cwd: str
    log: list[str] = field(default_factory=list)
    """Updates as JSON text, in the order sent."""
    mode: str = "ask"
    model: str = "small"
    verbose: bool = False
    title: str | None = None
    at: str = ""
    lost: bool = False
    kept: Json = field(default_factory=dict)
    """What the client keeps for this session: never in our own store."""
    servers: list[str] = field(default_factory=list)
    turn: agent_verbs.Turn | None = None


class Wire:
    """stdin and stdout as lines, each written to a journal before it is used; and requests to the client."""

    def __init__(self, journal: str | None, text_ids: bool) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if journal else None
        self._lock = threading.Lock()
        self._text_ids = text_ids
        self._made = 0
        self._open: dict[str | int, tuple[threading.Event, Json]] = {}

    def note(self, mark: bytes, line: bytes) -> None:
        if self._journal is not None:
            os.write(self._journal, mark + line + b"\n")

    def send(self, message: Json) -> None:
        self.line(dumps({"jsonrpc": "2.0", **message}))

    def line(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        with self._lock:
            self.note(b"> ", data)
            view = memoryview(data + b"\n")
            try:
                while view:
                    view = view[os.write(1, view) :]
            except OSError:
                os._exit(0)  # nobody reads any more

    def begin(self, method: str, params: Json) -> tuple[str | int, threading.Event, Json]:
        """Send a request: its id, an event that is set at its answer, and where the answer will be."""
        with self._lock:
            self._made += 1
            identifier: str | int = f"agent-{self._made}" if self._text_ids else self._made
            done, answer = self._open[identifier] = (threading.Event(), {})
        self.send({"id": identifier, "method": method, "params": params})
        return identifier, done, answer

    def call(self, method: str, params: Json) -> Json:
        """The client's answer, {"result": ...} or {"error": ...}, however long it takes."""
        _, done, answer = self.begin(method, params)
        done.wait()
        return answer

    def settle(self, message: Json) -> None:
        done, answer = self._open.pop(message.get("id", ""), (None, {}))
        if done is not None:
            answer.update(message)
            done.set()


class Store:
    """The agent's own sessions, and its file: one operation a line, so that nothing is lost when it is killed."""

    def __init__(self, path: str | None) -> None:
        self.sessions: dict[str, Session] = {}
        self.logged_in = False
        self._file: int | None = None
        if path is None:
            return
        if os.path.exists(path):
            for line in Path(path).read_bytes().splitlines():
                self._apply(*json.loads(line))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def record(self, *operation: Any) -> None:
        self._apply(*operation)
        if self._file is not None:
            os.write(self._file, dumps(operation).encode("utf-8", "replace") + b"\n")

    def _apply(self, kind: str, *rest: Any) -> None:
        if kind == "new":
            self.sessions[rest[0]] = Session(rest[0], rest[1], at=now())
        elif kind == "update" and rest[0] in self.sessions:
            self.sessions[rest[0]].log.append(rest[1])
        elif kind == "set" and rest[0] in self.sessions:
            setattr(self.sessions[rest[0]], rest[1], rest[2])
        elif kind == "delete":
            self.sessions.pop(rest[0], None)
        elif kind == "forget":
            for session in self.sessions.values():
                session.lost = True
        elif kind == "login":
            self.logged_in = rest[0]


class Agent:
    """One connection: method name -> answer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.wire = Wire(options.wire, options.ids == "string")
        self.store = Store(options.state)
        self.client: Json = {}
        self.ready = False
        self.notes: list[str] = []
        self.methods: dict[str, Callable[[Json], Json]] = {"initialize": self.initialize, "session/new": self.new}
        on = options.on
        gated = {"load": self.load, "resume": self.resume, "fork": self.fork, "list": self.list, "close": self.close}
        self.methods |= {f"session/{name}": method for name, method in gated.items() if name in on}
        if "delete" in on:
            self.methods["session/delete"] = self.delete
        if "modes" in on:
            self.methods["session/set_mode"] = self.set_mode
        if "config" in on:
            self.methods["session/set_config_option"] = self.set_config
        if "auth" in on:
            self.methods |= {"authenticate": self.authenticate, "logout": self.logout}
        self.methods["_test/echo"] = lambda params: {"echo": params}

    def receive(self, line: bytes) -> None:
        """Handle one line. Answers go out in the order of the requests; prompts answer from their own threads."""
        self.wire.note(b"< ", line)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return self.wire.send({"id": None, "error": {"code": -32700, "message": "parse error"}})
        method = message.get("method")
        if method is None:
            return self.wire.settle(message)
        if method == self.options.die_at:
            os._exit(self.options.die_code)
        params = message.get("params") or {}
        if "id" not in message:
            return self.notified(method, params)
        try:
            result = self.answer(message["id"], method, params)
        except Refused as refused:
            return self.wire.send({"id": message["id"], "error": refused.error})
        if result is None:
            return None
        self.wire.send({"id": message["id"], "result": result})
        if method in ("session/new", "session/load", "session/resume") and self.options.commands:
            session = self.store.sessions[result.get("sessionId") or params["sessionId"]]
            self.update(session, {"sessionUpdate": "available_commands_update", "availableCommands": COMMANDS})
        return None

    def answer(self, request: str | int, method: str, params: Json) -> Json | None:
        """The result; None for a prompt, which answers from its own thread. Raises Refused."""
        if not self.ready and method != "initialize":
            raise Refused(-32600, f"initialize must come before {method}")
        if method == "session/prompt":
            self.prompt(request, params)
            return None
        if method not in self.methods:
            raise Refused(-32601, f"unknown method {method}")
        return self.methods[method](params)

    def notified(self, method: str, params: Json) -> None:
        if method == "session/cancel":
            session = self.store.sessions.get(params.get("sessionId", ""))
            if session is not None and session.turn is not None:
                session.turn.cancelled.set()
        elif method == "$/cancel_request":
            for session in self.store.sessions.values():
                if session.turn is not None and session.turn.request == params.get("requestId"):
                    session.turn.cancelled.set()
        else:
            self.notes.append(f"{method} {dumps(params)}")

    def update(self, session: Session, update: Json) -> None:
        self.update_text(session, dumps(update))

    def update_text(self, session: Session, text: str) -> None:
        """Send and keep one update, given as JSON text."""
        self.store.record("update", session.id, text)
        self.wire.line(update_line(session.id, text))

    # -- connection ---------------------------------------------------------------------------------------

    def initialize(self, params: Json) -> Json:
        if type(params.get("protocolVersion")) is not int:
            raise Refused(-32602, "protocolVersion must be an integer")
        self.client = params.get("clientCapabilities") or {}
        self.ready = True
        on = self.options.on
        capabilities: Json = {
            "loadSession": "load" in on,
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "mcpCapabilities": {"http": True, "sse": False},
            "sessionCapabilities": {name: {} for name in ("resume", "fork", "list", "close", "delete") if name in on}
            | {"additionalDirectories": {}},
            "_meta": {"test.agent": {"verbs": sorted(agent_verbs.VERBS)}},
        }
        answer: Json = {"protocolVersion": self.options.protocol, "agentCapabilities": capabilities, "authMethods": []}
        answer["agentInfo"] = {"name": self.options.name, "title": "Scriptable agent", "version": "1.0"}
        if "auth" in on:
            capabilities["auth"] = {"logout": {}}
            answer["authMethods"].append({"id": "login", "name": "Log in"})
            if (self.client.get("auth") or {}).get("terminal"):
                answer["authMethods"].append({"type": "terminal", "id": "tty", "name": "By terminal", "args": ["--login"]})
        return answer

    def authenticate(self, params: Json) -> Json:
        if params.get("methodId") != "login":
            raise Refused(-32602, "unknown methodId")
        self.store.record("login", True)
        return {}

    def logout(self, params: Json) -> Json:
        self.store.record("login", False)
        return {}

    # -- sessions -----------------------------------------------------------------------------------------

    def known(self, params: Json, *, stored: bool = False) -> Session:
        session = self.store.sessions.get(params.get("sessionId", ""))
        if session is None or (stored and session.lost):
            raise Refused(-32002, "unknown session", {"sessionId": params.get("sessionId")})
        return session

    def check(self, params: Json) -> None:
        """What every way into a session must bring. Raises Refused."""
        if "auth" in self.options.on and not self.store.logged_in:
            raise Refused(-32000, "log in first")
        roots = [params.get("cwd"), *(params.get("additionalDirectories") or [])]
        if not all(isinstance(root, str) and os.path.isabs(root) for root in roots):
            raise Refused(-32602, "cwd and additionalDirectories must be absolute paths")

    def settle_in(self, session: Session, params: Json) -> Json:
        """Take what every way into a session brings; the modes and options that it is answered with."""
        session.servers = [server["name"] for server in params.get("mcpServers") or []]
        kept = (params.get("_meta") or {}).get("acpd.dev/state")
        session.kept = kept if isinstance(kept, dict) else {}
        answer: Json = {}
        if "modes" in self.options.on:
            answer["modes"] = {**MODES, "currentModeId": session.mode}
        if "config" in self.options.on:
            answer["configOptions"] = self.options_of(session)
        return answer

    def options_of(self, session: Session) -> list[Json]:
        sizes = [{"value": value, "name": value.title()} for value in ("small", "large")]
        model = {"id": "model", "name": "Model", "category": "model", "type": "select"}
        options: list[Json] = [{**model, "currentValue": session.model, "options": sizes}]
        if ((self.client.get("session") or {}).get("configOptions") or {}).get("boolean") is not None:
            options.append({"id": "verbose", "name": "Verbose", "type": "boolean", "currentValue": session.verbose})
        return options

    def new(self, params: Json) -> Json:
        self.check(params)
        if not isinstance(params.get("mcpServers"), list):
            raise Refused(-32602, "mcpServers must be a list")
        name = f"s{len(self.store.sessions) + 1}-{os.urandom(4).hex()}"
        self.store.record("new", name, params["cwd"])
        return {"sessionId": name, **self.settle_in(self.store.sessions[name], params)}

    def load(self, params: Json) -> Json:
        session = self.known(params, stored=True)
        self.check(params)
        answer = self.settle_in(session, params)
        for text in list(session.log):
            self.wire.line(update_line(session.id, text))
        return answer

    def resume(self, params: Json) -> Json:
        session = self.known(params, stored=True)
        self.check(params)
        return self.settle_in(session, params)

    def fork(self, params: Json) -> Json:
        source = self.known(params, stored=True)
        answer = self.new({"mcpServers": [], **params})
        for text in list(source.log):
            self.store.record("update", answer["sessionId"], text)
        return answer

    def list(self, params: Json) -> Json:
        cwd, cursor = params.get("cwd"), params.get("cursor") or "0"
        if not cursor.isdecimal():
            raise Refused(-32602, "bad cursor")
        found = [s for s in self.store.sessions.values() if not s.lost and cwd in (None, s.cwd)]
        start, end = int(cursor), int(cursor) + self.options.page
        rows = [{"sessionId": s.id, "cwd": s.cwd, "title": s.title, "updatedAt": s.at} for s in found[start:end]]
        return {"sessions": rows} | ({"nextCursor": str(end)} if len(found) > end else {})

    def close(self, params: Json) -> Json:
        if (turn := self.known(params).turn) is not None:
            turn.cancelled.set()
        return {}

    def delete(self, params: Json) -> Json:
        session = self.store.sessions.get(params.get("sessionId", ""))
        if session is not None:
            self.close(params)
            self.store.record("delete", session.id)
        return {}

    def set_mode(self, params: Json) -> Json:
        session = self.known(params)
        if params.get("modeId") not in ("ask", "code"):
            raise Refused(-32602, "unknown mode")
        self.store.record("set", session.id, "mode", params["modeId"])
        return {}

    def set_config(self, params: Json) -> Json:
        session = self.known(params)
        self.choose(session, params.get("configId"), params.get("value"))
        return {"configOptions": self.options_of(session)}

    def choose(self, session: Session, option: object, value: object) -> None:
        """Set one config option. Raises Refused for an unknown one or a wrong value."""
        if not (option == "model" and value in ("small", "large")) and not (option == "verbose" and isinstance(value, bool)):
            raise Refused(-32602, "unknown option or value")
        self.store.record("set", session.id, option, value)

    def prompt(self, request: str | int, params: Json) -> None:
        session, blocks = self.known(params), params.get("prompt")
        if session.turn is not None:
            raise Refused(-32600, "a turn is running")
        if not isinstance(blocks, list) or not blocks:
            raise Refused(-32602, "prompt must be a list of content blocks")
        for block in blocks:
            update = {"sessionUpdate": "user_message_chunk", "content": block}
            self.update(session, update) if self.options.echo_prompt else self.store.record("update", session.id, dumps(update))
        self.store.record("set", session.id, "at", now())
        session.turn = agent_verbs.Turn(self, session, request, blocks)
        threading.Thread(target=session.turn.run, daemon=True).start()


def dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def update_line(session: str, text: str) -> str:
    return f'{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{dumps(session)},"update":{text}}}}}'


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read_wire(path: Path) -> tuple[list[bytes], list[bytes]]:
    """A `--wire` file: the lines that the agent got, and those that it wrote, without their newlines."""
    got: list[bytes] = []
    wrote: list[bytes] = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        (got if line.startswith(b"< ") else wrote).append(line[2:])
    return got, wrote


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for switch in SWITCHES:
        parser.add_argument(f"--{switch}", action=argparse.BooleanOptionalAction, help=f"the capability {switch!r}")
    parser.add_argument("--bare", action="store_true", help="no capability that is not named")
    parser.add_argument("--state", metavar="FILE", help="keep sessions and the login over restarts")
    parser.add_argument("--wire", metavar="FILE", help="append '< line' for each line got, '> line' for each written")
    parser.add_argument("--start-delay", type=int, default=0, metavar="MS", help="before the first line is read")
    parser.add_argument("--die-at", metavar="METHOD", help="exit, without an answer, when this comes in")
    parser.add_argument("--die-code", type=int, default=9, metavar="N")
    parser.add_argument("--echo-prompt", action="store_true", help="send the prompt back as user_message_chunk")
    parser.add_argument("--ids", choices=("number", "string"), default="number", help="of its own requests")
    parser.add_argument("--commands", action="store_true", help="available_commands_update after session/new, load, resume")
    parser.add_argument("--noise", action="store_true", help="banners on stdout and stderr before anything else")
    parser.add_argument("--name", default="script-agent", help="agentInfo.name")
    parser.add_argument("--page", type=int, default=50, help="sessions on a page of session/list")
    parser.add_argument("--protocol", type=int, default=1, help="the protocolVersion that it answers")
    options = parser.parse_args(argv)
    chosen = {switch: getattr(options, switch) for switch in SWITCHES}
    options.on = {
        switch for switch, given in chosen.items() if (not options.bare and switch != "auth" if given is None else given)
    }
    return options


def main() -> None:
    agent = Agent(parse(sys.argv[1:]))
    if agent.options.noise:
        agent.wire.line("Welcome to the scriptable agent!\n\x1b[1mA new version is available\x1b[0m")
        sys.stderr.write("agent: starting\n")
    time.sleep(agent.options.start_delay / 1000)
    for line in sys.stdin.buffer:
        if line.strip():
            agent.receive(line.rstrip(b"\n"))
    os._exit(0)  # turns that hang end with their input


if __name__ == "__main__":
    main()
