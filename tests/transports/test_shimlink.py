"""The daemon's end of the shim's link, sans sockets: the hello, numbers and places."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd import cursors
from acpd.attachment import Attachment
from acpd.cursors import Cursor
from acpd.errors import RequestError
from acpd.peer import Peer
from acpd.shim.ledger import Ledger
from acpd.transports import shimlink
from tests.core.pipes import Recorded
from tests.core.world import Editor

TOKEN = "0123456789abcdef" * 2


def hello(*items: bytes, token: str = TOKEN, version: int = 1) -> bytes:
    body = b"\0".join(items)
    return b"acpd-shim %d %b %d\n%b" % (version, token.encode(), len(body), body)


def test_a_hello_is_read_as_a_whole() -> None:
    """Arguments in order, environment, folder, sessions; unknown items are skipped; what stands behind it is left."""
    items = (
        b"arg=run", b"arg=--", b"arg=a b", b"env=PATH=/bin", b"env=EMPTY=", b"env=ODD=x=y\xff", b"cwd=/tmp/x", b"later=1",
        b"next=12", b"session=s-1 40 3", b"session=%C3%A9 r7.2 -", b"session=two 9.1 -",
    )  # fmt: skip
    found = shimlink.read_hello(hello(*items) + b"1 {}\n")
    assert found is not None
    said, rest = found
    assert (1, TOKEN, ("run", "--", "a b"), "/tmp/x", b"1 {}\n") == (said.version, said.token, said.arguments, said.cwd, rest)
    assert {"PATH": "/bin", "EMPTY": "", "ODD": "x=y\udcff"} == said.env
    assert (TOKEN, 12) == said.earlier[:2]
    expected = {"s-1": (Cursor(40), 3), "é": (Cursor(7, 2, replay=True), None), "two": (Cursor(9, 1), None)}
    assert expected == said.earlier.sessions


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_hello_that_is_not_all_there_is_waited_for(cut: int) -> None:
    """However it is cut, nothing is decided before its last byte."""
    data = hello(b"arg=--agent", b"arg=x", b"cwd=/")
    assert shimlink.read_hello(data[:cut]) is None
    assert shimlink.read_hello(data) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"acpd-shim x\n",
        b"acpd-shim 1 short 3\nabc",
        b"acpd-shim 1 " + TOKEN.encode() + b" 99999999\n",
        b"acpd-shim " + b"1" * 100,
        hello(b"session=only-two 3"),
        hello(b"session=%zz 3 -"),
        hello(b"session=s 3 x"),
    ],
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    """It is an error at once, and no reason to read on."""
    with pytest.raises(ValueError, match=r".+"):
        shimlink.read_hello(data)


@given(st.text())
def test_any_session_id_has_a_name(session: str) -> None:
    """A name has no byte that separates; and it is the same session again."""
    name = cursors.name(session)
    assert not set(b" :\n\0") & set(name)
    assert session == cursors.session_of(name.decode())


@pytest.mark.parametrize(
    ("text", "cursor"),
    [("0", Cursor(0)), ("12", Cursor(12)), ("12.3", Cursor(12, 3)), ("r9.0", Cursor(9, 0, replay=True)),
     *((text, None) for text in ("x", "", "-1", "1.2.3", "9" * 30))],
)  # fmt: skip
def test_cursors(text: str, cursor: Cursor | None) -> None:
    """What is no cursor is told as such."""
    assert cursor == cursors.parsed(text)


def test_the_frames_of_one_line_have_places_of_their_own() -> None:
    """All but the last stand before the line is over, so that none is lost and none comes twice between them."""
    assert b"s:7 - {}\n" == cursors.placed(b"s", 7, b"{}\n")
    assert b"s:6.1 - a\ns:6.2 - b\ns:7 - c\n" == cursors.placed(b"s", 7, b"a\nb\nc\n")


def test_frames_that_are_left_out_count_in_the_places_of_the_others() -> None:
    """A connection that is lost twice within a line goes on where the second one stood."""
    assert b"s:6.2 - b\ns:7 - c\n" == cursors.placed(b"s", 7, b"a\nb\nc\n", 1)
    assert b"s:7 - c\n" == cursors.placed(b"s", 7, b"a\nb\nc\n", 2)
    assert b"" == cursors.placed(b"s", 7, b"a\nb\nc\n", 3)


def attachment(*, runs: bool) -> Attachment:
    client = Editor()
    client.token, client.runs = "t", runs
    return Attachment("s", client, 6, lambda _: None, lambda *_: None)


FRAMES = st.lists(st.lists(st.sampled_from([b"a\n", b"bb\n", b"{} - 1\n"]), max_size=3).map(b"".join), max_size=6)


@given(FRAMES, st.integers(0, 4))
def test_a_run_is_the_same_lines_as_many_places(lines: list[bytes], skip: int) -> None:
    """A shim gives its editor the same, and ends at the same cursor, whether frames have a place each or one together."""
    given = [Ledger(), Ledger()]
    told = []
    for ledger, runs in zip(given, (False, True), strict=True):
        each = attachment(runs=runs)
        each.skip = skip
        told.append(ledger.down(each.told(6 + len(lines), [each.placed(seq, line) for seq, line in enumerate(lines, 7)])))
        frames = [frame + b"\n" for line in lines for frame in line.split(b"\n")[:-1]]
        count = len(frames) + skip
        told.append(ledger.down(each.told_in_replay(5, count, frames)))
        if frames:
            assert b"session=s r5.%d -" % count == list(ledger.hello())[-1]
    assert told[:2] == told[2:]


def test_a_run_is_for_shims_that_know_it() -> None:
    """Who has not said so gets a place with each frame."""
    assert [False, True] == [shimlink.read_hello(hello(item))[0].runs for item in (b"next=1", b"runs=1")]  # type: ignore[index]
    assert b"s:7 - a\ns:8 - b\n" == attachment(runs=False).told(8, [b"s:7 - a\n", b"s:8 - b\n"])
    assert b"s:8 =4 \na\nb\n" == attachment(runs=True).told(8, [b"a\n", b"b\n"])
    assert b"" == attachment(runs=True).told(8, [])


class Line:
    """A peer of a shim with a list for a stream."""

    def __init__(self) -> None:
        self.owner = Recorded()
        self.peer = shimlink.ShimPeer(self.owner)
        self.sent: list[bytes] = []
        writer: Any = self
        self.peer.use_writer(writer)

    def set_write_buffer_limits(self, _: int) -> None: ...
    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.sent += data.splitlines()

    def close(self) -> None:
        self.sent.append(b"closed")

    async def says(self, *lines: bytes) -> list[bytes]:
        """What it sends for these lines."""
        before = len(self.sent)
        self.peer.data_received(b"".join(line + b"\n" for line in lines))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.sent[before:]


async def test_what_settles_a_line() -> None:
    """A notification, a blank line and an answer are settled when they are handled, a bad line by its error."""
    line = Line()
    assert [b"- 1 ", b"- 2 "] == await line.says(b'1 {"jsonrpc":"2.0","method":"session/cancel"}', b"2 ")
    (error,) = await line.says(b"3 {nonsense")
    assert error.startswith(b'- 3 {"jsonrpc":"2.0","id":null,"error":{"code":-32700')
    assert [b"- 4 "] == await line.says(b'4 {"jsonrpc":"2.0","id":77,"result":{}}')


async def test_a_request_is_settled_by_its_answer() -> None:
    """With the place behind it where it has one; a set-up line is kept, initialize for ever."""
    line = Line()
    requests = [
        b'%d {"jsonrpc":"2.0","id":"r%d","method":"%b"}' % (n, n, b"initialize" if n == 1 else b"m") for n in range(1, 5)
    ]
    assert [] == await line.says(*requests)
    assert [1, 2, 3, 4, 0] == [line.peer.number(b'"r%d"' % n) for n in range(1, 6)]
    line.peer.answer(b'"r3"', b"{}", b"s:9", sets_up=True)
    line.peer.answer(b'"r1"', b"{}")
    line.peer.answer(b'"r2"', b"{}", b"s:x")
    line.peer.notify("session/update", b"{}")
    assert line.peer.settle(b'"r4"', None, RequestError(-32603, "no")).startswith(b'- 4 {"jsonrpc":"2.0","id":"r4","error"')
    await asyncio.sleep(0)
    assert [b"s:9 3+ ", b"- 1* ", b"s:x 2 ", b"- - "] == [sent[: sent.index(b"{")] for sent in line.sent]


async def test_a_line_over_the_limit_is_settled_by_its_error() -> None:
    """Its number is read from its first bytes."""
    line = Line()
    line.peer._lines.limit = 100
    (error,) = await line.says(b'5 {"jsonrpc":"2.0","id":1,"method":"' + b"x" * 200)
    assert error.startswith(b'- 5 {"jsonrpc":"2.0","id":null,"error"')


async def test_a_line_without_a_number_ends_the_connection() -> None:
    """Who does not speak as a shim is not one."""
    line = Line()
    assert [b"closed"] == await line.says(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')


async def test_a_line_that_was_cut_is_not_handled() -> None:
    """The connection was lost before its newline: the shim sends it again, so it is none yet, whole as it may look."""
    line = Line()
    line.peer.data_received(b'1 {"jsonrpc":"2.0","method":"_other/ping"}')
    line.peer.connection_lost(None)
    assert [("closed", None)] == line.owner.events


async def test_ids_are_never_used_by_two_daemons() -> None:
    """A late answer to an earlier daemon's request is not taken for the answer to one of ours."""
    first = Line().peer.call("fs/read_text_file", b"{}", lambda *_: None)
    second = Line().peer.call("fs/read_text_file", b"{}", lambda *_: None)
    assert int(first) < int(second) < 1 << 53
    assert b"0" == Peer(Recorded(), strict=True).call("m", b"{}", lambda *_: None)


def test_the_answer_to_a_hello_is_one_line() -> None:
    """Whatever is in a reason."""
    assert b"acpd-daemon 1 ok\n" == shimlink.answer()
    assert b"acpd-daemon 1 no - it is stopping\n" == shimlink.answer("it is\nstopping")
    assert b"acpd-daemon 1 no 2 x\n" == shimlink.answer("x", 2)
