"""Giving an agent back the context of a session: never a silent fresh start."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys

import pytest

from acpd.agents import restore
from acpd.agents.link import AgentLink
from acpd.branching import branch
from acpd.config import AgentChoice
from acpd.errors import AgentError, AgentExited
from acpd.session import LiveSession
from acpd.turn import Turn
from acpd_backends.states import WorkspaceSession
from tests.agents.house import AGENT, House, shown, turn, wire
from tests.core.world import Editor, attach, prompt, until
from tests.support.store import Json

NOTICE = "could not restore its own memory"
FORKED = "could not fork its own memory"
MOVED = "cannot take its own memory"


async def made(house: House, *options: str, name: str = "scripted") -> LiveSession:
    """A session with one turn whose agent keeps its own sessions in a file."""
    session = await house.new(house.host("--state", str(house.root / "agent"), *options, name=name))
    assert ["one"] == (await turn(session, "say one"))[0]
    return session


def host_options(house: House, *options: str) -> tuple[str, ...]:
    return "--state", str(house.root / "agent"), "--wire", str(house.root / "wire"), *options


def methods(house: House) -> list[str]:
    return [line["method"] for line in wire(house.root / "wire") if "method" in line]


def params_of(house: House, method: str) -> Json:
    return next(line["params"] for line in wire(house.root / "wire") if line.get("method") == method)


async def test_an_agent_that_resumes(house: House) -> None:
    """session/resume comes first: the agent's own id, the stored cwd, what the newest client brought; nothing is replayed."""
    session = await made(house)
    inner = session.fold.inner
    again = await house.reopened(session, house.host(*host_options(house)))
    before = await shown(again)
    texts, answer = await turn(again, "history")
    assert (["history 3"], "end_turn") == (texts, answer["result"]["stopReason"])
    assert ["initialize", "session/resume", "session/prompt"] == methods(house)
    assert {"sessionId": inner, "cwd": str(house.root), "mcpServers": []} == params_of(house, "session/resume")
    assert (inner, [*before, "history", "history 3"]) == (again.fold.inner, await shown(again))


async def test_an_agent_that_loads(house: House) -> None:
    """Without resume its session/load: what it replays is dropped, for ours was shown already."""
    session = await made(house)
    again = await house.reopened(session, house.host(*host_options(house, "--no-resume")))
    before = house.log(again).of("update")
    await again.ensure_agent()
    assert before == house.log(again).of("update")
    assert ["initialize", "session/load"] == methods(house)
    texts, _ = await turn(again, "say two")
    assert ["two"] == texts
    assert ["say one", "one", "say two", "two"] == await shown(again)


async def test_an_agent_that_lost_its_session_is_primed(house: House) -> None:
    """Resume and load are tried; then a new inner session is told the conversation, and so is the user, in the log."""
    session = await made(house)
    await turn(session, "forget")
    again = await house.reopened(session, house.host(*host_options(house)))
    texts, _ = await turn(again, "context")
    assert ["initialize", "session/resume", "session/load", "session/new", "session/prompt"] == methods(house)
    assert NOTICE in texts[0]
    assert "say one" in texts[1]
    assert "one" in texts[1]
    assert session.fold.inner != again.fold.inner
    texts, _ = await turn(again, "context")
    assert ["context []"] == texts  # once


async def test_what_did_not_fit_is_told_to_the_user(house: House) -> None:
    """The bound is a setting; the notice says how many of the oldest messages the agent does not know."""
    session = await made(house)
    for word in ("two", "three", "four"):
        await turn(session, f"say {word * 150}")
    again = await house.reopened(session, house.host(*host_options(house, "--bare")))
    again.settings = again.settings._replace(primer_tokens=1_000)
    texts, _ = await turn(again, "context")
    assert "without its 3 oldest messages" in texts[0]
    assert "[3 earlier messages are left out here]" in texts[1]
    assert "fourfour" in texts[1]
    assert "say one" not in texts[1]


async def test_an_agents_own_compaction_is_honoured(house: House) -> None:
    """What the agent had made a summary of, a new one is told as that summary, and not as missing."""
    session = await made(house)
    said = {
        "sessionUpdate": "compaction_update",
        "compactionId": "k",
        "status": "completed",
        "summary": [{"type": "text", "text": "SUM"}],
    }
    await turn(session, f"say two\nupdate {json.dumps(said)}\nsay three")
    again = await house.reopened(session, house.host(*host_options(house, "--bare")))
    texts, _ = await turn(again, "context")
    assert "told the conversation as text." in texts[0]
    told = texts[1].partition("Summary of what came before: SUM")
    assert "say one" not in told[0]
    assert "two" not in told[2]
    assert "three" in told[2]


async def test_what_a_compaction_has_kept_is_told(house: House) -> None:
    """Where the agent says what its summary stands for, a new one is told the summary and all that came after that thing."""
    session = await made(house)
    chunk = {"sessionUpdate": "agent_message_chunk", "messageId": "m1", "content": {"type": "text", "text": "covered"}}
    await turn(session, f"update {json.dumps(chunk)}")
    await turn(session, "say kept")
    said = {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed"}
    more = {"summary": [{"type": "text", "text": "SUM"}], "_meta": {"acpd.dev/upTo": "m1"}}
    await turn(session, f"update {json.dumps({**said, **more})}\nsay three")
    again = await house.reopened(session, house.host(*host_options(house, "--bare")))
    texts, _ = await turn(again, "context")
    before, _, after = texts[1].partition("Summary of what came before: SUM")
    assert "covered" not in before + after
    assert "Assistant: kept" in after
    assert "Assistant: three" in after


async def test_an_agent_that_can_neither_resume_nor_load(house: House) -> None:
    """It is primed without being asked what it cannot."""
    session = await made(house)
    again = await house.reopened(session, house.host(*host_options(house, "--bare")))
    texts, _ = await turn(again, "say two")
    assert ["initialize", "session/new", "session/prompt"] == methods(house)
    assert NOTICE in texts[0]


async def test_an_agent_that_was_never_told_is_primed_by_the_next_start(house: House) -> None:
    """A new inner session that got no prompt knows nothing: the next process does not resume it as if it did."""
    session = await made(house)
    await turn(session, "forget")
    again = await house.reopened(session, house.host(*host_options(house)))
    await again.ensure_agent()  # as behind a session/load; the user goes away without a prompt
    (house.root / "wire").unlink()
    third = await house.reopened(again, house.host(*host_options(house)))
    texts, _ = await turn(third, "context")
    assert NOTICE in texts[0]
    assert "say one" in texts[1]
    (house.root / "wire").unlink()
    fourth = await house.reopened(third, house.host(*host_options(house)))
    await turn(fourth, "say four")
    assert ["initialize", "session/resume", "session/prompt"] == methods(house)


async def test_an_agent_that_ends_before_it_is_told_is_not_resumed(house: House) -> None:
    """A prompt that comes when the agent has just ended leaves its new inner session out of the log."""
    session = await made(house)
    await turn(session, "forget")
    again = await house.reopened(session, house.host(*host_options(house)))
    link, inner = await again.ensure_agent(), again.fold.inner
    assert isinstance(link, AgentLink)
    link.hold("test")  # its end is not told to the session yet
    os.kill(link.pid, signal.SIGKILL)
    await until(lambda: link.gone)
    asking = asyncio.get_running_loop().create_task(turn(again, "say lost"))
    await until(lambda: again.state is Turn.RUNNING)
    link.release("test")
    texts, answer = await asking
    assert "killed by signal 9" in answer["error"]["message"]
    assert ([], inner) == (texts, again.fold.inner)
    texts, _ = await turn(again, "context")
    assert NOTICE in texts[0]
    assert "say one" in texts[1]


async def test_a_session_that_was_never_prompted_needs_no_primer(house: House) -> None:
    """There is nothing to tell."""
    session = await house.new(house.host("--bare"))
    await session.ensure_agent()
    again = await house.reopened(session, house.host("--bare"))
    assert ["hi"] == (await turn(again, "say hi"))[0]


async def test_what_an_agent_says_before_its_new_session_is_known_is_kept(house: House) -> None:
    """Also where a resume was tried before: an update that names the new session comes behind the link fact."""
    early = {"sessionId": "n", "update": {"sessionUpdate": "available_commands_update", "availableCommands": []}}
    said: list[Json] = [
        {"id": 0, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}},
        {"id": 1, "error": {"code": -32002, "message": "unknown session"}},
        {"method": "session/update", "params": early},
        {"id": 2, "result": {"sessionId": "n"}},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **message}) for message in said]
    script = f"read x; echo '{lines[0]}'; read x; echo '{lines[1]}'; read x; echo '{lines[2]}'; echo '{lines[3]}'; cat >&2"
    session = await made(house)
    again = await house.reopened(session, house.shell(script))
    await again.ensure_agent()
    await until(lambda: again.fold.commands)


async def test_arrays_that_are_null_are_empty_to_an_agent(house: House) -> None:
    """Some clients send null; an agent gets `[]` for its servers, and nothing for directories."""
    setup = {"mcpServers": None, "additionalDirectories": None}
    session = await house.new(house.host(*host_options(house)), setup)
    await session.ensure_agent()
    assert {"cwd": str(house.root), "mcpServers": []} == params_of(house, "session/new")


async def test_a_fork_uses_the_agents_own_fork(house: House) -> None:
    """An agent that can fork does so from its own session; one that cannot is primed."""
    session = await made(house)
    fork = await house.registry.fork(session.id, str(house.root), ())
    fork.host = house.host(*host_options(house))
    texts, _ = await turn(fork, "history")
    assert ["initialize", "session/fork", "session/prompt"] == methods(house)
    assert ["history 3"] == texts
    assert session.fold.inner != fork.fold.inner
    other = await house.registry.fork(session.id, str(house.root), ())
    other.host = house.host("--bare")
    texts, _ = await turn(other, "context")
    assert FORKED in texts[0]
    assert "say one" in texts[1]


async def test_a_fork_of_what_moved_on_is_told_instead(house: House) -> None:
    """The agent's own fork would know what came after, or nothing any more: it is asked for none, and the user is told."""
    session = await made(house)
    late, gone = [await house.registry.fork(session.id, str(house.root), ()) for _ in range(2)]
    await turn(session, "say two")
    late.host = gone.host = house.host(*host_options(house))
    texts, _ = await turn(late, "context")
    await house.registry.delete(session.id)
    texts += (await turn(gone, "context"))[0]
    assert "session/fork" not in methods(house)
    assert 2 == len([text for text in texts if FORKED in text])
    assert 2 == len([text for text in texts if "say one" in text and "say two" not in text])


async def test_a_fork_uses_the_agents_own_fork_after_a_restart(house: House) -> None:
    """Where it comes from stands in its header."""
    session = await made(house)
    fork = await house.registry.fork(session.id, str(house.root), ())
    again = await house.reopened(fork, house.host(*host_options(house)))
    assert ["history 3"] == (await turn(again, "history"))[0]
    assert ["initialize", "session/fork", "session/prompt"] == methods(house)


async def test_after_a_branch_the_agent_is_told_the_new_path(house: House) -> None:
    """The inner session of the other branch is not resumed; the user is told why, and the agent what is before the leaf."""
    session = await made(house)
    here = session.fold.leaf or ""
    await turn(session, "say two")
    session.host = house.host(*host_options(house))
    await branch(session, here)
    texts, _ = await turn(session, "context\nhistory")
    assert ["initialize", "session/new", "session/prompt"] == methods(house)
    assert MOVED in texts[0]
    assert "say one" in texts[1]
    assert "say two" not in texts[1]
    assert ["context []"] == (await turn(session, "context"))[0], "told once"
    inner = session.fold.inner
    again = await house.reopened(session, house.host(*host_options(house)))
    await turn(again, "say three")
    assert (inner, inner) == (again.fold.inner, params_of(house, "session/resume")["sessionId"])


async def test_a_branch_outlives_a_restart_for_the_agent_too(house: House) -> None:
    """However often acpd starts before the next prompt, and wherever the leaf goes meanwhile: nothing old is resumed."""
    session = await made(house)
    first, old = session.fold.leaf or "", session.fold.inner
    await turn(session, "say two")
    second = session.fold.leaf or ""
    await branch(session, first)
    again = await house.reopened(session, house.host(*host_options(house)))
    await again.ensure_agent()  # as behind a session/load; the user goes away without a prompt
    await branch(again, second)
    third = await house.reopened(again, house.host(*host_options(house)))
    texts, _ = await turn(third, "context\nhistory")
    assert MOVED in texts[0]
    assert "say two" in texts[1]
    assert "session/resume" not in methods(house)
    assert old not in (third.fold.inner, third.fold.last_inner)


async def test_a_fork_at_an_entry_is_told_its_path(house: House) -> None:
    """An agent cannot fork at an entry: it is told the path up to there, and the user that it is so."""
    session = await made(house)
    here = session.fold.leaf or ""
    await turn(session, "say two")
    fork = await house.registry.fork(session.id, str(house.root), (), here)
    fork.host = house.host(*host_options(house))
    texts, _ = await turn(fork, "context")
    assert "session/fork" not in methods(house)
    assert FORKED in texts[0]
    assert "say one" in texts[1]
    assert "say two" not in texts[1]


async def test_an_agent_that_wants_a_login_says_so(house: House) -> None:
    """-32000 is passed on, from resume as from new; it is not taken for a lost session."""
    session = await made(house)
    again = await house.reopened(session, house.host(*host_options(house, "--auth")))
    _, answer = await turn(again, "say two")
    assert -32000 == answer["error"]["code"]
    assert ["initialize", "session/resume"] == methods(house)
    fresh = await house.new(house.host("--bare", "--auth"))
    _, answer = await turn(fresh, "say two")
    assert -32000 == answer["error"]["code"]
    house.failed.clear()


async def test_stored_mode_and_options_are_set_again(house: House) -> None:
    """What the user had chosen wins over what the agent came up with."""
    session = await house.new(house.host("--no-resume", "--no-load"))
    await turn(session, "mode code\nconfig model large\nconfig verbose true")
    again = await house.reopened(session, house.host("--no-resume", "--no-load", "--wire", str(house.root / "wire")))
    await again.ensure_agent()
    asked = [(line["method"], line["params"]) for line in wire(house.root / "wire") if "set_" in line.get("method", "")]
    assert ["session/set_mode", "session/set_config_option", "session/set_config_option"] == [method for method, _ in asked]
    assert "code" == asked[0][1]["modeId"]
    assert {"model": "large", "verbose": True} == {params["configId"]: params["value"] for _, params in asked[1:]}
    assert ["type" in params for _, params in asked[1:]] == [params["configId"] == "verbose" for _, params in asked[1:]]
    kept = json.loads(again.setup_answer())
    assert ("code", ["large", True]) == (
        kept["modes"]["currentModeId"],
        [option["currentValue"] for option in kept["configOptions"]],
    )


async def test_what_the_agent_refuses_to_set_is_told(house: House) -> None:
    """A mode or option that it does not know any more: clients hear what is true now."""
    session = await house.new(house.host("--bare", "--modes", "--config"))
    await session.ensure_agent()
    session.recorder.config(b'{"currentModeId":"gone"}')
    options = json.loads(session.setup_answer())["configOptions"]
    options[0]["currentValue"] = "huge"
    session.recorder.config(json.dumps({"configOptions": options}).encode())
    session.on_batch_end()
    again = await house.reopened(session, house.host("--bare", "--modes", "--config"))
    attachment = again.attach(editor := Editor())
    again.audience.start(attachment)
    await again.ensure_agent()
    assert ["current_mode_update", "config_option_update"] == [update["sessionUpdate"] for update in editor.updates]
    assert ("ask", "small") == (editor.updates[0]["currentModeId"], editor.updates[1]["configOptions"][0]["currentValue"])
    kept = json.loads(again.setup_answer())
    assert ("ask", "small") == (kept["modes"]["currentModeId"], kept["configOptions"][0]["currentValue"])


async def test_kept_state_comes_back(house: House) -> None:
    """What the agent keeps in acpd is in `_meta` of its resume and load, and in nothing else."""
    session = await made(house)
    assert ["counter 1 kept"] == (await turn(session, "counter"))[0]
    again = await house.reopened(session, house.host(*host_options(house)))
    assert ["counter 2 kept"] == (await turn(again, "counter"))[0]
    assert {"acpd.dev/state": {"counter": 1}} == params_of(house, "session/resume")["_meta"]


ODD = '{"a":\r\n ["\u2028\u2029\x85\\u000b", "\\r\\n"],\r"b": "\\ud800"}\n'
"""JSON as a person or another program may have laid it out, with all that some take for the end of a line."""


async def test_kept_state_is_one_line(house: House) -> None:
    """However a value was laid out in the store, it is told on the line of one message, and no other text is changed."""
    session = await made(house)
    assert ["counter 1 kept"] == (await turn(session, "counter"))[0]
    await house.store.session.save(session.key, "odd", ODD.encode())
    again = await house.reopened(session, house.host(*host_options(house)))
    assert ["counter 2 kept"] == (await turn(again, "counter"))[0]
    told = params_of(house, "session/resume")["_meta"]["acpd.dev/state"]
    assert {"counter": 1, "odd": {"a": ["\u2028\u2029\x85\x0b", "\r\n"], "b": "\ufffd"}} == told
    assert ODD.encode() == await house.store.session.load(session.key, "odd")


async def test_what_cannot_be_read_beside_the_memory_costs_itself(house: House) -> None:
    """The agent goes on without, the user is told, and nothing is put in its place until it is gone; with a memory that cannot
    be read the prompt is an error.
    """
    session = await made(house)
    for name in ("plan", "memory"):
        assert [f"{name} kept"] == (await turn(session, f"state {name} 1"))[0]
    states = house.store.session
    assert isinstance(states, WorkspaceSession)
    plan, memory = (states._path(session.key, name) for name in ("plan", "memory"))
    plan.write_bytes(b"{")
    again = await house.reopened(session, house.host(*host_options(house)))
    attach(again, editor := Editor())
    told, _ = await turn(again, "state plan 2", editor)
    assert "What the agent keeps as plan cannot be read" in told[-2]
    assert told[-1].startswith("plan error -32603")
    assert {"acpd.dev/state": {"memory": 1}} == params_of(house, "session/resume")["_meta"]
    assert b"{" == plan.read_bytes()
    plan.unlink()
    assert ["plan kept"] == (await turn(again, "state plan 2", editor))[0]
    assert b"2" == plan.read_bytes()
    memory.write_bytes(b"{")
    broken = await house.reopened(again, house.host(*host_options(house)))
    _, answer = await turn(broken, "say hi")
    assert str(memory) in answer["error"]["message"]


async def test_an_agent_may_not_write_acpds_own_state(house: House) -> None:
    """Names that begin with `acpd.` are acpd's."""
    session = await house.new(house.host())
    assert ["acpd.config error -32602"] == (await turn(session, "state acpd.config 1"))[0]


async def test_a_session_of_another_agent_is_driven_by_its_stored_command(house: House) -> None:
    """Whatever agent the client brings: a session is driven by the one that it was made with."""
    session = await made(house, name="first")
    again = await house.reopened(session, house.host("--bare", name="second"))
    await again.ensure_agent()
    assert (again.link.name if again.link else "") == "first"
    assert ["two"] == (await turn(again, "say two"))[0]


async def test_a_configured_agent_drives_its_sessions(house: House) -> None:
    """Before the stored command comes what the configuration says of that agent now."""
    session = await made(house, name="first")
    house.pool.known = {"first": AgentChoice("first", (sys.executable, AGENT, *host_options(house)))}
    again = await house.reopened(session, house.host("--bare", name="second"))
    await again.ensure_agent()
    assert ["initialize", "session/resume"] == methods(house)


@pytest.mark.parametrize("command", [("agent", "--token", "***"), ("agent", "--api-key=***"), ()])
async def test_a_command_with_a_hidden_secret_is_not_run(house: House, command: tuple[str, ...]) -> None:
    """`***` stands for what was not stored: the error says how to open the session."""
    host = house.host(name="first", command=command or ("x",))
    if not command:
        host.choice = AgentChoice("first", ())
    session = await house.new(host)
    session.host = house.host(name="second")
    with pytest.raises(AgentError, match="agent first") as raised:
        await session.ensure_agent()
    assert "[agents.first]" in raised.value.hint
    house.failed.clear()


async def test_a_folder_that_is_gone(house: House) -> None:
    """The error names it and says what to do; when it is there again the next prompt works."""
    folder = house.root / "project"
    folder.mkdir()
    host = house.host()
    header = await house.registry.header(house.registry.new_id(), host.agent_name, str(folder), host.choice.command)
    session = await house.registry.create(header)
    session.host = host
    shutil.rmtree(folder)
    _, answer = await turn(session, "say one")
    assert str(folder) in answer["error"]["message"]
    assert "make it again" in answer["error"]["message"]
    house.failed.clear()
    folder.mkdir()
    texts, _ = await turn(session, "where")
    assert str(folder) in texts[-1]


async def test_no_client_has_opened_it(house: House) -> None:
    """An agent is started for a client, with that client's environment."""
    session = await house.new(house.host())
    session.host = None
    with pytest.raises(AgentError, match="no client"):
        await session.ensure_agent()
    house.failed.clear()


async def test_an_agent_that_dies_while_it_is_restored(house: House) -> None:
    """The start fails with its reason, and no process is left; the next start works."""
    session = await made(house)
    again = await house.reopened(session, house.host(*host_options(house, "--die-at", "session/resume")))
    with pytest.raises(AgentExited, match="exit code 9"):
        await again.ensure_agent()
    assert {} == house.pool.links
    house.failed.clear()
    again.host = house.host(*host_options(house))
    assert ["two"] == (await turn(again, "say two"))[0]


async def test_an_agent_that_always_dies_while_it_is_restored(house: House) -> None:
    """Twice it is an error; then it is started anew and primed, and the user is told: no session becomes unusable."""
    session = await made(house)
    again = await house.reopened(session, house.host(*host_options(house, "--die-at", "session/resume")))
    for _ in range(restore.RESTORES):
        with pytest.raises(AgentExited, match="exit code 9"):
            await again.ensure_agent()
    texts, _ = await turn(again, "context")
    assert NOTICE in texts[0]
    assert "say one" in texts[1]
    house.failed.clear()


async def test_an_agent_that_dies_behind_its_answer(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone before it is used: the start fails, instead of a prompt that nobody answers."""
    session = await made(house)
    dying = 'read x; echo "$INIT"; read x; echo \'{"jsonrpc":"2.0","id":1,"result":{"sessionId":"n"}}\'; echo bye >&2; exit 4'
    again = await house.reopened(session, house.shell(dying))
    prime = restore.Restorer._prime

    async def slowly(self: restore.Restorer, *args: object) -> None:
        link = next(iter(house.pool.links.values()))
        await asyncio.to_thread(link._process._process.wait)  # type: ignore[union-attr]
        await prime(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(restore.Restorer, "_prime", slowly)
    _, answer = await asyncio.wait_for(turn(again, "say two"), 10)
    assert "exit code 4: bye" in answer["error"]["message"]
    house.failed.clear()
    monkeypatch.undo()
    again.host = house.host(*host_options(house))
    assert "two" in (await turn(again, "say two"))[0][-1]


async def test_an_agent_without_a_session_id(house: House) -> None:
    """An answer to session/new that names no session is an error that quotes it."""
    with pytest.raises(AgentError, match="sessionId"):
        restore.inner_id(b'{"modes":null}')
    session = await house.new(
        house.shell("""read x; echo "$INIT"; read x; echo '{"jsonrpc":"2.0","id":1,"result":null}'; cat""")
    )
    _, answer = await turn(session, "say one")
    assert "session/new" in answer["error"]["message"]
    house.failed.clear()


async def test_closing_while_an_agent_starts(house: House) -> None:
    """The process goes with the session."""
    session = await house.new(house.host("--start-delay", "60000"))
    attachment = session.attach(editor := Editor())
    session.audience.start(attachment)
    prompt(session, editor, "p", "say one")
    await until(lambda: house.pool.links)
    await house.registry.close(session.id)
    assert {} == house.pool.links
    assert "cancelled" == (await editor.answered("p"))["result"]["stopReason"]
