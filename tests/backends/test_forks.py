"""What a fork takes along, and in which bytes."""

from __future__ import annotations

from pathlib import Path

from acpd.storage.contract import Key
from acpd.wire.lines import Header, fact
from tests.backends import journal_logs as logs

TARGET = Key("agent", "fork")
HEADER = Header(version=1, id="fork", cwd="/fork", agent="agent")


async def test_a_fork_does_not_follow_the_source(tmp_path: Path) -> None:
    """That the source's project moved is no fact of a fork, which has a folder of its own; the agent's own facts still are."""
    told = fact("info", logs.name(2), 2, logs.AT, b',"kind":"session_info_update","params":{"x":1}')
    gone = fact("info", logs.name(3), 3, logs.AT, b',"cwd":"/new","folder":""')
    journals, _ = logs.place(tmp_path, *logs.chain(1), told, gone)
    await journals.fork(logs.KEY, TARGET, HEADER, entry=None)
    assert "/new" == (await journals.peek(logs.KEY))[0].cwd
    header, fold = await journals.peek(TARGET)
    assert ("/fork", True) == (header.cwd, fold.info is not None)


async def test_records_on_one_line_keep_their_text(tmp_path: Path) -> None:
    """Of two records on one line, and of one behind a cut one, each is taken with the members that nobody knows."""
    one, two, three = (logs.update(number, number - 1 or None, b',"later":%d' % number) for number in (1, 2, 3))
    for number, line in enumerate((one[:-1] + two, b'{"type":"upd' + one[:-1] + two, b"\0\0" + one[:-1] + two)):
        journals, log = logs.place(tmp_path / str(number), line, three)
        await journals.fork(logs.KEY, TARGET, HEADER, entry=None)
        text = Path(journals.log_path(TARGET)).read_bytes()
        assert [b'"later":%d}' % each for each in (1, 2, 3)] == [b'"later":' + part for part in _ends(text)]
        assert log.exists()


def _ends(text: bytes) -> list[bytes]:
    return [line.rpartition(b'"later":')[2] for line in text.splitlines()[1:]]
