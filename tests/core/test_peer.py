"""One protocol on a real stream: order, holding, the end, backpressure."""

from __future__ import annotations

import asyncio
import json

import pytest

from acpd.errors import ConnectionBroken, RequestError, Unanswered
from acpd.peer import FULL, HIGH_WATER, LINES_A_TURN
from tests.core.pipes import Recorded, Wire, joined, no_answer, start
from tests.core.world import until


def note(method: str) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b"}\n' % method.encode()


def request(identifier: int, method: str) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"%b"}\n' % (identifier, method.encode())


async def test_lines_are_handled_in_the_order_of_the_stream() -> None:
    """Requests, notifications, bad lines, blank lines: in place, and one batch end for one read."""
    async with Wire(Recorded()) as wire:
        wire.say(note("a") + b"\n  \n" + request(1, "b") + b"nonsense\n" + note("c"))
        await wire.owner.until(lambda: wire.owner.batches == 1)
        assert ["notification", "request", "bad", "notification"] == [kind for kind, _ in wire.owner.events]
        assert -32700 == json.loads((await wire.hear_lines(1))[0])["error"]["code"]


async def test_position_counts_every_byte_of_the_input() -> None:
    """`position` stands behind the line that is being handled: blank, bad and long lines count, and a mark at the start."""
    owner = Recorded()
    seen: list[int] = []
    async with Wire(owner, limit=100) as wire:
        for name in "abc":
            owner.at[name] = lambda _: seen.append(wire.peer.position)
        parts = [b"\xef\xbb\xbf" + note("a"), b"\n\r\n" + b"x" * 1000 + b"\nnonsense\n" + note("b"), note("c")]
        wire.say(b"".join(parts))
        await owner.until(lambda: len(seen) == 3)
        assert [len(b"".join(parts[: count + 1])) for count in range(3)] == seen


async def test_a_line_over_the_limit_leaves_the_connection_alive() -> None:
    """It is one error with id null; what follows is handled."""
    async with Wire(Recorded(), limit=64) as wire:
        wire.say(b"x" * 65 + b"\n" + note("a"))
        await wire.owner.until(lambda: wire.owner.methods == ["a"])
        assert None is json.loads((await wire.hear_lines(1))[0])["id"]


async def test_hold_in_the_middle_of_a_batch_keeps_the_rest_back() -> None:
    """Nothing behind the line that held is handled before `release`, and then all of it, in order."""
    owner = Recorded()
    async with Wire(owner) as wire:
        owner.at["b"] = lambda _: wire.peer.hold()
        wire.say(note("a") + note("b") + note("c") + note("d"))
        await owner.until(lambda: owner.batches == 1)
        assert ["a", "b"] == owner.methods
        wire.say(note("e"))
        wire.peer.release()
        await owner.until(lambda: len(owner.methods) == 5)
        assert ["a", "b", "c", "d", "e"] == owner.methods


async def test_each_reason_to_hold_is_released_by_itself() -> None:
    """Who holds for one reason is not let go by the release of another; releasing what nobody holds does nothing."""
    owner = Recorded()
    async with Wire(owner) as wire:
        owner.at["a"] = lambda _: wire.peer.hold("blobs")
        wire.peer.hold("disk")
        wire.say(note("a") + note("c"))
        wire.peer.release("disk")
        await owner.until(lambda: owner.methods == ["a"])
        wire.peer.hold("disk")
        for why in ("disk", "disk", "other"):
            wire.peer.release(why)
            assert wire.peer.held
        wire.peer.release("blobs")
        await owner.until(lambda: owner.methods == ["a", "c"])


async def test_held_lines_are_handled_after_the_end_of_the_stream_and_then_it_is_closed_once() -> None:
    """EOF while lines are held back: they come first, a last line without newline too, then `on_closed`."""
    owner = Recorded()
    async with Wire(owner) as wire:
        owner.at["a"] = lambda _: wire.peer.hold()
        wire.say(note("a") + note("b") + note("c").rstrip(b"\n"))
        wire.end()
        await owner.until(lambda: owner.batches >= 1)
        wire.peer.eof_received()
        assert (["a"], False) == (owner.methods, owner.closed.is_set())
        wire.peer.release()
        await owner.closed.wait()
        assert [("notification", "a"), ("notification", "b"), ("notification", "c"), ("closed", None)] == owner.events


async def test_a_half_line_at_the_end_is_reported() -> None:
    """What is cut off by the end of the stream is a bad line like any other, and then the stream is closed."""
    owner = Recorded()
    async with Wire(owner, strict=False) as wire:
        wire.say(note("a") + b'{"jsonrpc":"2.0","meth')
        wire.end()
        await owner.closed.wait()
        assert ["notification", "bad", "closed"] == [kind for kind, _ in owner.events]


async def test_holding_and_releasing_a_closed_peer_does_nothing() -> None:
    """Its owner need not know whether the stream has ended already."""
    owner = Recorded()
    async with Wire(owner) as wire:
        wire.peer.hold("early")
        wire.peer.close()
        wire.peer.release("early")
        wire.peer.hold()
        wire.peer.release()
        await owner.closed.wait()
        wire.peer.hold()
        wire.peer.release()


async def test_output_leaves_in_the_order_of_the_calls() -> None:
    """Answers, refusals, requests, notifications and bare lines: one write a tick, in order."""
    owner = Recorded()
    async with Wire(owner) as wire:
        wire.say(request(1, "a") + request(2, "b") + request(3, "c"))
        await owner.until(lambda: len(owner.methods) == 3)
        wire.peer.answer(b"2", b"{}")
        wire.peer.notify("n", b"{}")
        wire.peer.send(wire.peer.settle(b"3", None, None))
        wire.peer.call("m", b"{}", no_answer, b'"ask"')
        wire.peer.refuse(b"1", RequestError(-5, "no"))
        wire.peer.refuse(b"1", RequestError(-5, "a second time"))
        wire.peer.send(b"")
        said = [json.loads(line) for line in await wire.hear_lines(5)]
        assert [2, "n", 3, "ask", 1] == [each.get("id", each.get("method")) for each in said]
        assert {"result": {}} == {key: said[2][key] for key in said[2].keys() - {"id", "jsonrpc"}}
        assert b"" == wire.peer.settle(b"3", b"{}", None)
        wire.peer.forget(b'"ask"')


async def test_a_peer_that_does_not_read_is_paused_and_says_when_it_reads_again() -> None:
    """Over the mark `paused` is true and `drained` waits; when the peer has read, both change and the owner is told."""
    owner = Recorded()
    async with Wire(owner) as wire:
        line = b"x" * (HIGH_WATER * 2) + b"\n"
        await wire.peer.drained()
        wire.peer.send(line)
        await asyncio.sleep(0)
        assert wire.peer.paused
        first, second = start(wire.peer.drained()), start(wire.peer.drained())
        await asyncio.sleep(0)
        assert not first.done()
        assert len(line) == len(await wire.hear(len(line)))
        async with asyncio.timeout(10):
            await asyncio.gather(first, second)
        assert (False, 1) == (wire.peer.paused, owner.writable)


async def test_who_does_not_read_its_answers_is_not_listened_to() -> None:
    """A client's requests wait in its pipe while more than FULL of output waits for it; when it reads, each is answered."""
    owner = Recorded()
    async with Wire(owner, polite=True) as wire:
        owner.at["a"] = lambda identifier: wire.peer.answer(identifier, b'"%b"' % (b"x" * 100_000))
        for number in range(60):
            wire.say(request(number, "a"))
            await asyncio.sleep(0)
        await until(lambda: wire.peer.held)
        assert FULL // 100_000 < len(owner.methods) < 2 * FULL // 100_000
        heard = await wire.hear_lines(60)
        assert list(range(60)) == [json.loads(line)["id"] for line in heard]


async def test_an_agent_is_listened_to_whatever_it_does_not_read() -> None:
    """It may write all that it has before it reads again: two that wait for each other would wait for ever."""
    owner = Recorded()
    async with Wire(owner) as wire:
        owner.at["a"] = lambda identifier: wire.peer.answer(identifier, b'"%b"' % (b"x" * 100_000))
        wire.say(b"".join(request(number, "a") for number in range(60)))
        await owner.until(lambda: len(owner.methods) == 60)
        assert not wire.peer.held


async def test_a_client_that_is_lost_while_its_output_is_full_is_closed() -> None:
    """What it had said is handled first: nobody waits for it to read."""
    owner = Recorded()
    async with Wire(owner, polite=True) as wire:
        owner.at["a"] = lambda identifier: wire.peer.answer(identifier, b'"%b"' % (b"x" * 2 * FULL))
        wire.say(request(1, "a"))
        await until(lambda: wire.peer.held)
        wire.say(note("b"))
        wire.peer.data_received(note("c"))
        wire.hang_up()
        await owner.closed.wait()
        assert "c" in owner.methods


async def test_many_lines_at_once_are_handled_in_turns() -> None:
    """Between so many lines of one client everything else on the loop has its turn."""
    owner = Recorded()
    async with Wire(owner, polite=True) as wire:
        seen: list[int] = []

        def look() -> None:
            seen.append(len(owner.methods))
            if seen[-1] < 10 * LINES_A_TURN:
                asyncio.get_running_loop().call_soon(look)

        look()
        wire.peer.data_received(note("a") * (10 * LINES_A_TURN))
        await owner.until(lambda: len(owner.methods) == 10 * LINES_A_TURN)
        assert {LINES_A_TURN * turn for turn in range(11)} == set(seen)


async def test_waiting_for_a_peer_that_goes_away_ends() -> None:
    """`drained` raises ConnectionBroken when the stream ends, and at once when it has ended."""
    async with Wire(Recorded()) as wire:
        wire.peer.send(b"x" * (HIGH_WATER * 2) + b"\n")
        await asyncio.sleep(0)
        waiting = start(wire.peer.drained())
        await asyncio.sleep(0)
        wire.hang_up()
        with pytest.raises(ConnectionBroken):
            await waiting
        with pytest.raises(ConnectionBroken):
            await wire.peer.drained()


async def test_calls_end_with_the_stream() -> None:
    """A call that is open when the stream ends gets Unanswered, before `on_closed`; so does one made afterwards."""
    owner = Recorded()
    errors: list[tuple[RequestError | None, bool]] = []
    async with Wire(owner) as wire:
        wire.peer.call("m", b"{}", lambda _, error: errors.append((error, owner.closed.is_set())))
        wire.end()
        await owner.closed.wait()
        assert b"" == wire.peer.call("m", b"{}", lambda _, error: errors.append((error, owner.closed.is_set())))
        with pytest.raises(Unanswered):
            await wire.peer.ask("m", b"{}")
        assert [(True, False), (True, True)] == [(isinstance(error, Unanswered), late) for error, late in errors]
        wire.peer.send(b"x\n")
        wire.peer.notify("n", b"{}")


async def test_close_lets_out_what_was_sent_and_is_idempotent() -> None:
    """What was sent in this tick leaves before the stream is closed."""
    async with Wire(Recorded()) as wire:
        wire.peer.send(b"last words\n")
        wire.peer.close()
        wire.peer.close()
        wire.peer.send(b"too late\n")
        assert [b"last words"] == await wire.hear_lines(1)


async def test_two_peers_ask_each_other() -> None:
    """`ask` gives the raw result, or raises the other side's own error."""
    here, there = Recorded(), Recorded()
    one, other = await joined(here, there)
    there.at["good"] = lambda identifier: other.answer(identifier, b'{"x":1.50}')
    there.at["bad"] = lambda identifier: other.refuse(identifier, RequestError(-7, "no"))
    assert b'{"x":1.50}' == await one.ask("good", b"{}")
    with pytest.raises(RequestError) as raised:
        await one.ask("bad", b"{}")
    assert (-7, False) == (raised.value.code, isinstance(raised.value, Unanswered))
    one.close()
    await asyncio.gather(here.closed.wait(), there.closed.wait())
    other.close()


async def test_a_cancelled_ask_drops_its_answer() -> None:
    """Cancelling `ask` forgets the call: the answer that comes later is a bad line and nothing else."""
    here, there = Recorded(), Recorded()
    one, other = await joined(here, there)
    asked: list[bytes] = []
    there.at["slow"] = asked.append
    asking = start(one.ask("slow", b"{}"))
    await there.until(lambda: len(asked) == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    other.answer(asked[0], b"{}")
    await here.until(lambda: len(here.events) == 1)
    assert "not open" in str(here.events[0][1])
    one.close()
    await asyncio.gather(here.closed.wait(), there.closed.wait())
    other.close()


async def test_forget_drops_a_late_answer() -> None:
    """A forgotten call is not answered, and its answer harms nobody."""
    async with Wire(Recorded()) as wire:
        identifier = wire.peer.call("m", b"{}", no_answer)
        wire.peer.forget(identifier)
        wire.say(b'{"jsonrpc":"2.0","id":%b,"result":{}}\n' % identifier + note("a"))
        await wire.owner.until(lambda: wire.owner.methods == ["a"])
