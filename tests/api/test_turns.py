"""Turns: what is said, in which order, and every way in which one ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from acpd.api.session import Session
from acpd.api.shapes import Location, Option, PlanEntry, Stop
from acpd.api.turn import Turn
from acpd.errors import AUTH_REQUIRED, INTERNAL_ERROR, FileFailed, Refused, RequestError, TerminalFailed
from tests.api.desk import ABLE, PATIENCE, Counted, Editor, Json, Scripted, cancel_note, joined, keeps, option


async def test_messages_by_paragraph() -> None:
    """Chunks that follow each other are one message; a thought or a tool call between two begins a new one."""

    async def work(turn: Turn) -> None:
        await turn.say("a")
        await turn.say("b")
        await turn.think("c")
        await turn.say("d")
        async with turn.tool("t"):
            pass
        await turn.say("e")

    async with joined(Scripted(work)) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new())
        said = [(update["content"]["text"], update["messageId"]) for update in editor.updates() if "messageId" in update]
        assert ["a", "b", "c", "d", "e"] == [text for text, _ in said]
        assert said[0][1] == said[1][1]
        assert 4 == len({message for _, message in said})


async def test_the_answer_comes_behind_all_updates() -> None:
    """However much is said, nothing of it comes after the turn's answer."""

    async def work(turn: Turn) -> None:
        for _ in range(3000):
            await turn.say("x" * 1000)
        turn.session.used(1, 2, (0.5, "EUR"))
        turn.session.rename("T")

    async with joined(Scripted(work)) as (editor, _):
        await editor.prompt(await editor.new())
        assert ("answer", {"method": "session/prompt"}) == editor.story[-1]
        assert 3_000_000 == len(editor.text())
        assert {
            "sessionUpdate": "usage_update",
            "used": 1,
            "size": 2,
            "cost": {"amount": 0.5, "currency": "EUR"},
        } in editor.updates()


@pytest.mark.parametrize("cost", [0.5, (0.5,), ("0.5", "EUR"), (0.5, ""), {"amount": 0.5}])
async def test_a_cost_has_a_currency(cost: object) -> None:
    """A cost that is not (amount, currency) is a TypeError that shows what it must be, and nothing is sent."""

    async def work(turn: Turn) -> None:
        with pytest.raises(TypeError, match=r"a cost is \(amount, currency\)"):
            turn.session.used(1, 2, cost)  # type: ignore[arg-type]

    async with joined(Scripted(work)) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new())
        assert [] == editor.updates("usage_update")


async def test_a_loop_of_words_waits_for_the_reader() -> None:
    """An agent that says more than is read waits; what it has said and nobody has read is bounded."""
    said = 0

    async def work(turn: Turn) -> None:
        nonlocal said
        while True:
            await turn.say("x" * 10_000)
            said += 10_000

    async with joined(Scripted(work)) as (editor, connection):
        name = await editor.new()
        editor.peer.hold()
        editor.begin(name)
        while not connection.peer.paused:
            await asyncio.sleep(0)
        stuck = said
        for _ in range(2000):
            await asyncio.sleep(0)
        assert stuck == said
        assert said < 4_000_000
        editor.cancel(name)
        editor.peer.release()


async def test_what_is_no_text_does_no_harm() -> None:
    """A lone surrogate becomes U+FFFD, what JSON does not know its text."""

    async def work(turn: Turn) -> None:
        await turn.say("a\ud800b")
        async with turn.tool("t", input={"path": Path("/x")}) as call:
            await call.finish({"set": {1}, "bad": "\udcff"})

    async with joined(Scripted(work)) as (editor, _):
        assert "end_turn" == await editor.prompt(await editor.new())
        assert "a\ufffdb" == editor.text()
        assert {"path": "/x"} == editor.updates("tool_call")[0]["rawInput"]
        assert {"set": [1], "bad": "\ufffd"} == editor.updates("tool_call_update")[-1]["rawOutput"]


async def test_a_tool_call_tells_its_whole_story() -> None:
    """Kind, name, input and places are told when it begins; what it shows grows; the last word is its status."""

    async def work(turn: Turn) -> None:
        async with turn.tool("Edit", kind="edit", name="edit", input={"a": 1}, locations=[Location("/tmp/f", 3)]) as call:
            await call.start()
            await call.text("one")
            await call.diff(Path("f"), None, "new")
            await call.rename("Edited")
            await call.finish([1])
        with contextlib.suppress(ValueError):
            async with turn.tool("Boom"):
                raise ValueError
        with contextlib.suppress(FileFailed):
            async with turn.tool("Read"):
                await turn.read_text(Path("/nowhere/at/all"))
        async with turn.tool("Sorry") as call:
            await call.fail("no luck", 7)

    async with joined(Scripted(work)) as (editor, _):
        await editor.prompt(await editor.new())
        begun, *rest = editor.updates("tool_call", "tool_call_update")
        assert ("Edit", "edit", "edit", {"a": 1}, [{"path": "/tmp/f", "line": 3}], "pending") == tuple(
            begun[name] for name in ("title", "kind", "name", "rawInput", "locations", "status")
        )
        assert [1, 2] == [
            len(update["content"]) for update in rest if "content" in update and update["toolCallId"] == begun["toolCallId"]
        ]
        assert {"type": "diff", "path": "/tmp/f", "oldText": None, "newText": "new"} == rest[2]["content"][1]
        ends = [
            (update["status"], update.get("rawOutput")) for update in rest if update.get("status") in ("completed", "failed")
        ]
        assert [("completed", [1]), ("failed", None), ("failed", None), ("failed", 7)] == ends
        boom, read, sorry = [update["content"][0]["content"]["text"] for update in rest if update.get("status") == "failed"]
        assert ("It failed by an internal error (ValueError).", "no luck") == (boom, sorry)
        assert "/nowhere/at/all" in read


@pytest.mark.parametrize("stop", ["end_turn", "max_tokens", "max_turn_requests", "refusal", None])
async def test_the_stop_reason_is_the_agents(stop: Stop | None) -> None:
    """What prompt() returns is the stop reason; nothing is end_turn."""

    async def work(_: Turn) -> Stop | None:
        return stop

    async with joined(Scripted(work)) as (editor, _):
        assert (stop or "end_turn") == await editor.prompt(await editor.new())


async def test_refused_is_the_answer() -> None:
    """What leaves prompt() as Refused is the client's answer, and the next prompt works."""
    causes: list[Exception] = [Refused(AUTH_REQUIRED, "log in first")]

    async def work(_: Turn) -> None:
        if causes:
            raise causes.pop()

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        error = await editor.refusal("session/prompt", {"sessionId": name, "prompt": [{"type": "text", "text": "a"}]})
        assert (AUTH_REQUIRED, "log in first") == (error.code, error.message)
        assert "end_turn" == await editor.prompt(name)


async def test_a_bug_costs_one_turn(capfd: pytest.CaptureFixture[str]) -> None:
    """Any other exception, and a stop reason that is none, is -32603 without its text; stderr has the traceback."""

    async def work(turn: Turn) -> Stop | None:
        async with turn.tool("t"):
            if turn.text == "raise":
                raise ZeroDivisionError("secret")
        return "gone" if turn.text == "stop" else None  # type: ignore[return-value]

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        for text in ("raise", "stop"):
            error = await editor.refusal("session/prompt", {"sessionId": name, "prompt": [{"type": "text", "text": text}]})
            assert -32603 == error.code
            assert "secret" not in error.message
        assert "failed" == editor.updates("tool_call_update")[0]["status"]
        assert "end_turn" == await editor.prompt(name, "on")
    assert "ZeroDivisionError: secret" in capfd.readouterr().err


FAIL: list[Json] = [{"type": "text", "text": "fail"}]


class Odd(BaseException):
    """As libraries have them for what nobody should catch."""


async def _raising(error: BaseException) -> None:
    raise error


async def _in_a_group(error: BaseException) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raising(error))


async def _in_a_thread(error: BaseException) -> None:
    def work() -> None:
        raise error

    await asyncio.to_thread(work)


@pytest.mark.parametrize("how", [_raising, _in_a_group, _in_a_thread])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Odd("x"), GeneratorExit()])
async def test_what_would_end_the_program_costs_one_turn(
    error: BaseException, how: Callable[[BaseException], Awaitable[None]], capfd: pytest.CaptureFixture[str]
) -> None:
    """SystemExit and its like, wherever they come from in a turn, are a bug as any other."""

    async def work(turn: Turn) -> None:
        if turn.text == "fail":
            await how(error)
        await turn.say("works")

    async with joined(Scripted(work)) as (editor, _):
        session = await editor.new()
        assert INTERNAL_ERROR == (await editor.refusal("session/prompt", {"sessionId": session, "prompt": FAIL})).code
        assert "end_turn" == await editor.prompt(session, "go on")
    assert type(error).__name__ in capfd.readouterr().err


async def test_what_would_end_the_program_elsewhere(capfd: pytest.CaptureFixture[str]) -> None:
    """In a task that nobody awaits, in what is no coroutine, and at the end of a session: it is told, and that is all."""

    class Leaving(Scripted):
        def options(self, session: Session, /) -> list[Option]:
            return sys.exit("options") if session.turn is None and session.cwd == Path("/") else []

        def answered(self, session: Session, /) -> None:
            sys.exit("answered")

        async def closed(self, session: Session, /) -> None:
            sys.exit("closed")

        async def disconnected(self) -> None:
            sys.exit("disconnected")

    lost: list[asyncio.Task[None]] = []

    async def work(turn: Turn) -> None:
        turn.session.spawn(_raising(SystemExit("spawned")), "spawned")
        lost.append(asyncio.create_task(_raising(SystemExit("lost"))))  # noqa: TID251
        await asyncio.wait(lost)

    async with joined(Leaving(work)) as (editor, _):
        assert INTERNAL_ERROR == (await editor.refusal("session/new", {"cwd": "/", "mcpServers": []})).code
        assert "end_turn" == await editor.prompt(await editor.new())
    said = capfd.readouterr().err
    assert all(f"SystemExit('{each}')" in said for each in ("options", "answered", "closed", "disconnected", "spawned"))
    assert "lost" in str(lost[0].exception())


async def everything(turn: Turn) -> None:
    """All that a turn can do, once."""
    await turn.say("a")
    await turn.think("b")
    await turn.show({"type": "image", "data": "AA==", "mimeType": "image/png"})
    await turn.plan([PlanEntry("p")])
    turn.session.state.put("n", 1)
    async with turn.tool("t", kind="execute") as call:
        await call.start()
        if await turn.allowed(call, "run", "to run things"):
            await turn.elicit("How?", {"type": "object", "properties": {}})
            await turn.write_text(turn.session.cwd / "f.txt", "text")
            await turn.read_text(Path("f.txt"))
            async with turn.terminal("sh", ["-c", "echo hi; sleep 98231"]) as terminal:
                await call.embed(terminal)
                await terminal.output()
                await terminal.kill()
                await terminal.wait()
        await call.text("done")
    await turn.session.state.saved()
    await turn.say("end")


class Desk(Editor):
    """What the editor of a person answers; it counts its terminals."""

    def serve(self) -> None:
        self.terminals: set[str] = set()
        self.made = 0
        self.answers.update(
            {
                "session/request_permission": option("yes"),
                "elicitation/create": lambda _: {"action": "accept", "content": {}},
                "fs/read_text_file": lambda _: {"content": "text"},
                "fs/write_text_file": lambda _: {},
                "terminal/create": self._create,
                "terminal/output": lambda _: {"output": "hi", "truncated": False},
                "terminal/wait_for_exit": lambda _: {"exitCode": None, "signal": "SIGTERM"},
                "terminal/kill": lambda _: {},
                "terminal/release": self._release,
            }
        )

    def _create(self, _: Json) -> Json:
        self.made += 1
        self.terminals.add(f"t{self.made}")
        return {"terminalId": f"t{self.made}"}

    def _release(self, params: Json) -> Json:
        self.terminals.remove(params["terminalId"])
        return {}


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize("times", [1, 4])
async def test_cancel_at_every_await(tmp_path: Path, *, able: bool, times: int) -> None:
    """Wherever a turn waits when it is cancelled, once or again and again: the answer is `cancelled`, behind it comes
    nothing, no call is left open, every terminal is gone, and the next turn works.
    """
    at = 0
    whole = False

    def cancel(left: int = times) -> None:
        if left:
            connection.on_notification("session/cancel", cancel_note(name))
            asyncio.get_running_loop().call_soon(cancel, left - 1)

    async def work(turn: Turn) -> None:
        nonlocal whole
        if turn.text != "go":
            return
        counted = Counted(everything(turn), at, cancel)
        await counted
        whole = counted.waits < at

    async with joined(Scripted(work), ABLE if able else {"elicitation": {"form": {}}}) as (editor, connection):
        desk = as_desk(editor)
        if able:
            editor.answers["_acpd/state"] = keeps({})
        name = await editor.new(tmp_path)
        while not whole:
            at += 1
            del editor.story[:]
            stop = await editor.prompt(name)
            assert {True: "end_turn", False: "cancelled"}[whole] == stop, f"cancelled at wait {at}"
            assert ("answer", {"method": "session/prompt"}) == editor.story[-1]
            begun = {update["toolCallId"] for update in editor.updates("tool_call")}
            ended = [update for update in editor.updates("tool_call_update") if update.get("status") in ("completed", "failed")]
            assert begun == {update["toolCallId"] for update in ended}
            silent = [update for update in ended if "failed" == update["status"] and not update.get("content")]
            assert [] == silent, f"cancelled at wait {at}"
            assert "end_turn" == await editor.prompt(name, "on")
            await editor.until(lambda: not desk.terminals)
        assert at > 15
    async with asyncio.timeout(PATIENCE):
        while [pid for pid in children() if b"sleep 98231" in cmdline(pid)]:
            await asyncio.sleep(0.01)  # what was killed is gone when the kernel has come to it


def as_desk(editor: Editor) -> Desk:
    editor.__class__ = Desk
    assert isinstance(editor, Desk)
    editor.serve()
    return editor


def children() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def cmdline(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


async def test_a_late_cancel_hits_nobody() -> None:
    """A cancel behind the turn's answer does nothing to the next turn, nor does one for a session that nobody knows."""

    async def work(turn: Turn) -> None:
        await turn.say(turn.text)

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        for _ in range(20):
            assert "end_turn" == await editor.prompt(name, "a")
            editor.cancel(name)
            editor.cancel("nobody")
            assert "end_turn" == await editor.prompt(name, "b")


async def test_a_cancel_in_the_same_breath() -> None:
    """A cancel right behind its prompt is not lost, and the agent's code never begins."""
    begun: list[str] = []

    async def work(turn: Turn) -> None:
        begun.append(turn.text)

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        answer = editor.begin(name)
        editor.cancel(name)
        assert {"stopReason": "cancelled"} == await answer
        assert [] == begun


async def test_a_swallowed_cancel_is_still_one() -> None:
    """An agent that swallows its cancellation goes on, a second cancel ends it, and the answer is `cancelled` all the same."""

    async def work(turn: Turn) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await turn.say("one")
            await asyncio.sleep(1000)
        await turn.say("two")
        await asyncio.sleep(1000)

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        answer = editor.begin(name)
        for word in ("one", "onetwo"):
            await editor.until(lambda word=word: editor.text() == word)  # type: ignore[misc]
            editor.cancel(name)
        assert {"stopReason": "cancelled"} == await answer


async def test_cancel_request_is_a_cancel() -> None:
    """$/cancel_request with a prompt's id ends its turn; with any other id it is nothing."""

    async def work(_: Turn) -> None:
        await asyncio.sleep(1000)

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        answer = editor.begin(name)
        for identifier in (b"null", b'"x"', b"1", b"1003"):
            editor.peer.notify("$/cancel_request", b'{"requestId":%b}' % identifier)
        assert {"stopReason": "cancelled"} == await answer


async def test_what_waited_for_the_client_is_withdrawn() -> None:
    """A question that is open when its turn is cancelled gets $/cancel_request, and a late answer changes nothing."""
    asked: list[bool] = []

    async def work(turn: Turn) -> None:
        async with turn.tool("t") as call:
            asked.append(await turn.allowed(call, "s"))

    async with joined(Scripted(work)) as (editor, _):
        editor.answers["session/request_permission"] = lambda _: None
        name = await editor.new()
        answer = editor.begin(name)
        await editor.asked("session/request_permission")
        editor.cancel(name)
        assert {"stopReason": "cancelled"} == await answer
        assert [{"requestId": int(editor.open[0][1])}] == editor.said("$/cancel_request")
        editor.settle("session/request_permission", {"outcome": {"outcome": "selected", "optionId": "yes"}})
        editor.answers["session/request_permission"] = option("no")
        assert "end_turn" == await editor.prompt(name)
        assert [False] == asked


async def test_two_sessions_at_once() -> None:
    """Sessions do not wait for each other, a cancel hits its own, and in one session a second prompt is refused."""

    async def work(turn: Turn) -> None:
        await turn.say(turn.text)
        if turn.text == "long":
            await asyncio.sleep(1000)

    async with joined(Scripted(work)) as (editor, _):
        one, two = await editor.new(), await editor.new()
        assert one != two
        long = editor.begin(one, "long")
        error = await editor.refusal("session/prompt", {"sessionId": one, "prompt": [{"type": "text", "text": "b"}]})
        assert -32600 == error.code
        assert "end_turn" == await editor.prompt(two, "short")
        editor.cancel(two)
        assert "end_turn" == await editor.prompt(two, "short")
        assert not long.done()
        editor.cancel(one)
        assert {"stopReason": "cancelled"} == await long


async def test_the_background_may_speak() -> None:
    """A task of the session may say something after its turn, and ends with the session."""
    tasks: list[asyncio.Task[object]] = []

    async def later(turn: Turn) -> None:
        await turn.say("later")
        await asyncio.sleep(1000)

    async def work(turn: Turn) -> None:
        tasks.append(turn.session.spawn(later(turn), "later"))

    async with joined(Scripted(work)) as (editor, _):
        name = await editor.new()
        await editor.prompt(name)
        await editor.until(lambda: editor.text() == "later")
        await editor.call("session/close", {"sessionId": name})
        assert tasks[0].cancelled()


async def test_the_editors_errors_are_no_answers(tmp_path: Path) -> None:
    """An error of the client's is the agent's to handle: FileFailed, TerminalFailed, no permission, no form."""
    heard: list[object] = []

    async def work(turn: Turn) -> None:
        async with turn.tool("t") as call:
            heard.append(await turn.verdict(call, "s"))
        heard.append(await turn.elicit("?", {"type": "object", "properties": {}}))
        for attempt in (turn.read_text(tmp_path / "f"), turn.write_text(tmp_path / "f", "")):
            try:
                await attempt
            except FileFailed as error:
                heard.append(str(error))
        with pytest.raises(TerminalFailed, match="out of order"):
            async with turn.terminal("ls"):
                pass

    def broken(_: Json) -> Json:
        raise RequestError(-32603, "out of order")

    async with joined(Scripted(work), ABLE) as (editor, _):
        for method in ("session/request_permission", "elicitation/create", "fs/read_text_file", "fs/write_text_file"):
            editor.answers[method] = broken
        editor.answers["terminal/create"] = broken
        assert "end_turn" == await editor.prompt(await editor.new(tmp_path))
        assert [(False, "not answered: out of order"), None, "out of order", "out of order"] == heard


# -- beyond ACP


async def test_a_request_of_ones_own() -> None:
    """`request` gives what the client says, with the session's id in the params; its error is raised."""
    got: list[object] = []

    async def work(turn: Turn) -> None:
        got.append(await turn.session.request("_editor/theme", {"name": "é"}))
        with pytest.raises(RequestError, match="unknown method _editor/none"):
            await turn.session.request("_editor/none", {})

    async with joined(Scripted(work)) as (editor, _):
        editor.answers["_editor/theme"] = lambda params: {"said": params}
        session = await editor.new()
        assert "end_turn" == await editor.prompt(session)
        assert [{"said": {"sessionId": session, "name": "é"}}] == got


@pytest.mark.parametrize(("meta", "known"), [({"a.dev/x": [1]}, {"a.dev/x": [1]}), (None, {}), ("text", {}), ([], {})])
async def test_what_a_client_says_of_itself_beyond_acp(meta: object, known: Json) -> None:
    """`client.meta` is its capabilities' `_meta`; what is no object is nothing."""
    got: list[object] = []

    async def work(turn: Turn) -> None:
        got.append(turn.session.client.meta)

    async with joined(Scripted(work)) as (editor, _):
        await editor.initialize({"_meta": meta})
        assert "end_turn" == await editor.prompt(await editor.new())
        assert [known] == got
