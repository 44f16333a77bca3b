"""What holds for every call, whatever the tool is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from acpd.api.calls import ToolCall
from acpd.api.session import Session
from acpd.api.turn import Turn
from acpd.native.toolbox import MAX_TEXT, Tool, Toolbox, ToolFailed, ToolOutput, bounded
from acpd.native.tools.kit import kit
from tests.native.tools.bench import Bench, bench
from tests.support import schema


class Other(Tool):
    """A tool that comes from elsewhere, as those of MCP servers do."""

    name = "server_tool"
    description = "x"
    schema: Mapping[str, object] = {"type": "object"}

    def __init__(self, does: Any) -> None:
        self.does = does

    def scope(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return "mcp:server/tool"

    async def run(self, turn: Turn, call: ToolCall, arguments: Mapping[str, Any]) -> ToolOutput:
        output: ToolOutput = await self.does(arguments)
        return output


async def test_what_a_model_gets_wrong(work: Bench) -> None:
    """Unknown tools, broken JSON and wrong arguments are outputs that say what is wrong; the user sees each as failed."""
    for name, arguments, why in (
        ("reed", {}, "There are: read, list"),
        ("read", '{"path": ', "JSON object"),
        ("read", "[1]", "JSON object"),
        ("read", "", "`path`"),
        ("read", {"path": 1}, "$.path"),
        ("read", {"path": "a", "line": 0}, "$.line"),
        ("read", {"path": "a", "file": "b"}, "`file`"),
        ("read", {}, "path (string, required), line (integer), limit (integer), numbered (boolean)"),
        ("plan", {"steps": [{"content": "a", "status": "done"}]}, "$.steps[0].status"),
        ("plan", {"steps": ["a"]}, "steps (array of objects with: content (string, required), status (completed | "),
        ("grep", {"pattern": ""}, "$.pattern"),
        ("fetch", {"url": "file:///etc/passwd"}, "http://"),
        ("fetch", {"url": "http://me:secret@example.com/"}, "@"),
    ):
        output = await work.call(name, arguments)
        assert output.failed
        assert why in output.text
        assert work.shown()["status"] == "failed"
        assert isinstance(work.shown()["rawInput"], dict)
    assert work.client.asked == []


async def test_a_failure_is_never_silent(tmp_path: Path) -> None:
    """Whatever fails, what the user sees of the call has words, those of a tool that says nothing too."""

    async def fails(arguments: Mapping[str, Any]) -> ToolOutput:
        if error := {"os": OSError("disk"), "bug": ValueError("x"), "tool": ToolFailed("no")}.get(arguments["how"]):
            raise error
        return ToolOutput("", failed=True)

    async with bench(tmp_path / "p", toolbox=Toolbox((Other(fails),))) as work:
        for how, answer in (("os", "yes"), ("bug", "yes"), ("tool", "yes"), ("silent", "yes"), ("refused", "no")):
            work.client.decide = lambda _, answer=answer: answer  # type: ignore[misc]
            assert (await work.call("server_tool", how=how)).failed
            assert work.shown()["content"][0]["content"]["text"], how


async def test_numbers_may_be_written_as_strings(work: Bench) -> None:
    """What some models write instead of a number or a boolean is understood."""
    (work.root / "a").write_text("one\ntwo\n")
    assert (await work.call("read", path="a", line="2", numbered="false")).text == "two"


async def test_the_mode_plan_changes_nothing(work: Bench) -> None:
    """In the mode `plan` only what changes nothing is offered, and nothing else is done if it is called all the same."""
    toolbox = work.agent.toolbox
    harmless = ["read", "list", "glob", "grep", "fetch", "plan"]
    assert [tool.name for tool in toolbox.offered("plan")] == harmless
    for mode in ("ask", "code"):
        assert [tool.name for tool in toolbox.offered(mode)] == [*harmless[:4], "write", "edit", "run", *harmless[4:]]
    work.mode("plan")
    for name, arguments in (("write", {"path": "a", "content": ""}), ("run", {"command": "touch a"})):
        output = await work.call(name, arguments)
        assert output.failed
        assert "`plan`" in output.text
    assert (list(work.root.iterdir()), work.client.asked) == ([], [])


async def test_tools_that_come_and_go(tmp_path: Path) -> None:
    """Tools of the moment are offered and called like built-in ones, each asked for by its own scope; their bugs are theirs."""

    async def does(arguments: Mapping[str, Any]) -> ToolOutput:
        if arguments.get("fail"):
            raise ToolFailed("it said no")
        if arguments.get("bug"):
            raise ZeroDivisionError
        return ToolOutput("x" * 200_000, images=((b"png", "image/png"),), structured={"a": 1})

    more: list[Tool] = []
    async with bench(tmp_path / "p", toolbox=Toolbox(kit(), lambda: more)) as work:
        assert "no tool 'server_tool'" in (await work.call("server_tool")).text
        more.append(Other(does))
        assert work.agent.toolbox.offered("ask")[-1].name == "server_tool"
        assert work.agent.toolbox.offered("plan")[-1].name == "plan"
        work.client.decide = lambda _: "always"
        output = await work.call("server_tool")
        assert len(output.text.encode()) <= MAX_TEXT
        assert "bytes were cut here" in output.text
        shown = work.shown()
        assert shown["rawOutput"] == {"a": 1}
        assert shown["content"][1]["content"] == {"type": "image", "data": "cG5n", "mimeType": "image/png"}
        assert (await work.call("server_tool", fail=True)).text == "it said no"
        assert "internal error (ZeroDivisionError)" in (await work.call("server_tool", bug=True)).text
        assert len(work.client.asked) == 1


async def test_a_permission_that_is_not_a_yes(work: Bench) -> None:
    """An unknown option is no yes."""
    (work.root / "a").write_text("a")
    work.client.decide = lambda _: "whatever"
    assert (await work.call("edit", path="a", old="a", new="b")).failed
    assert (work.root / "a").read_text() == "a"


async def test_a_cancel_while_the_user_decides(work: Bench) -> None:
    """A turn that is cancelled while a permission is open does nothing and leaves no call open."""
    (work.root / "a").write_text("a")
    work.client.decide = lambda _: None
    turn = work.begin([["edit", {"path": "a", "old": "a", "new": "b"}]])
    while not work.client.asked:
        work.client.changed.clear()
        await work.client.changed.wait()
    work.cancel()
    assert await turn == "cancelled"
    assert (work.root / "a").read_text() == "a"
    assert work.shown()["status"] == "failed"


async def test_the_plan_is_shown(work: Bench) -> None:
    """A plan is shown as ACP has it, and the model is told what comes next."""
    steps = [{"content": "Look", "status": "completed"}, {"content": "Do", "priority": "high"}]
    output = await work.call("plan", steps=steps)
    assert output.text == "The user sees it. Next: Do"
    (update,) = [update for update in work.client.updates if update["sessionUpdate"] == "plan"]
    assert update["entries"] == [
        {"content": "Look", "priority": "medium", "status": "completed"},
        {"content": "Do", "priority": "high", "status": "pending"},
    ]


async def test_every_update_is_acp(work: Bench) -> None:
    """What the tools send is valid by ACP's schema."""
    (work.root / "a").write_text("a\n")
    (work.root / "p").write_bytes(b"\x89PNG\r\n\x1a\n")
    calls: list[list[object]] = [
        ["read", {"path": "a"}],
        ["read", {"path": "p"}],
        ["list", {}],
        ["glob", {"pattern": "*"}],
        ["grep", {"pattern": "a"}],
        ["write", {"path": "b", "content": "b"}],
        ["edit", {"path": "a", "old": "a", "new": "b"}],
        ["run", {"command": "ls", "cwd": "."}],
        ["plan", {"steps": [{"content": "a"}]}],
        ["nothing", {}],
    ]
    await work.prompt(calls)
    assert [False] * 9 + [True] == [output.failed for output in work.agent.outputs]
    for update in work.client.updates:
        schema.check("SessionUpdate", update)


@pytest.mark.parametrize("tool", kit(), ids=lambda tool: tool.name)
def test_schemas_stand_alone(tool: Tool) -> None:
    """A tool's schema is one object without references, each argument with its type."""
    assert tool.schema["type"] == "object"
    assert "$ref" not in str(tool.schema)
    assert tool.schema["additionalProperties"] is False
    assert all("type" in value for value in tool.schema["properties"].values())  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    assert len(tool.description) < 400


def test_texts_are_bounded() -> None:
    """A long text keeps beginning and end, is within the limit, and whole in its characters; lone surrogates do no harm."""
    assert bounded("short") == "short"
    text = bounded("é" * 100_000, 1001)
    assert len(text.encode()) <= 1001
    assert text.startswith("ééé")
    assert text.endswith("ééé")
    assert bounded("\udcff") == "\\udcff"
