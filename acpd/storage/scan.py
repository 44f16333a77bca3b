r"""The bytes of a log as lines, whatever happened to them. Pure, linear, never more in memory than asked for.

Lines end at `\n` only. A byte order mark at the start, CR LF and blank lines are tolerated; two whole records on one
line are both read; a record that a crash spliced behind a cut one, or behind a run of NUL bytes, is recovered.
Everything else that is no record is a `Damage` and costs that line only. Nothing here raises on what a file holds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from acpd.wire.envelope import mend_surrogates
from acpd.wire.lines import VERSION, Header, Stored, decode_header

BOM = b"\xef\xbb\xbf"
_ODD = re.compile(rb"\n(?:(?!\{)|(?<!\}\n))")
"""The end of a line that is not between two objects. Within one record none stands so, because there a comma would be due."""
SPLICED = re.compile(rb'\{"type":"[a-z_]+","id":"[^"\\]{1,200}","(?:parentId|seq)":')
"""Where a whole record may begin on a line that begins with something else."""
_TRIES = 8
"""How many places of a broken line are tried as the start of a whole record: a bound, so that the time is linear."""

_decode_lines = msgspec.json.Decoder(Stored).decode_lines
_decode_values = msgspec.json.Decoder(Raw).decode_lines


class Damage(Struct, frozen=True):
    """A line, or a part of one, that is no record.

    Kinds: "json", "nul", "utf8", "depth" (nested too deeply), "record" (JSON without what every line has),
    "torn-tail" (the last line, not ended).
    """

    kind: str


Item = Header | Stored | Damage


class _AnyHeader(Struct):
    type: str
    version: int
    id: str = ""
    cwd: str = ""
    agent: str = ""


_decode_any_header = msgspec.json.Decoder(_AnyHeader).decode


class Block(NamedTuple):
    """Consecutive lines as they stand in the file. `offset` in bytes, `line` (1-based) and `whole` (ended by a newline)."""

    offset: int
    line: int
    data: bytes

    @property
    def whole(self) -> bool:
        return self.data.endswith(b"\n")


def pieces(chunks: Iterable[bytes], *, first: bool) -> Iterator[bytes]:
    """The chunks of a file cut at line ends; the last piece may not end with one. `first`: line 1 is a piece of its own.

    Holds one chunk, or one line if that is longer.
    """
    rest: list[bytes] = []
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest.append(chunk)
            continue
        data = b"".join([*rest, chunk[:end]]) if rest else chunk[:end]
        rest = [chunk[end:]] if end < len(chunk) else []
        if first:
            first = False
            end = data.find(b"\n") + 1
            yield data[:end]
            data = data[end:]
        if data:
            yield data
    if tail := b"".join(rest):
        yield tail


def blocks(chunks: Iterable[bytes], *, offset: int = 0, line: int = 1) -> Iterator[Block]:
    """As `pieces`, with their places. To begin in the middle give the offset and number of a line."""
    for data in pieces(chunks, first=line == 1):
        yield Block(offset, line, data)
        offset += len(data)
        line += data.count(b"\n")


def records(data: bytes) -> list[Stored] | None:
    """The records of these lines if each line is exactly one; else None: see `parse`."""
    found = any_records(data)
    return found if found is not None and len(found) == data.count(b"\n") else None


def any_records(data: bytes) -> list[Stored] | None:
    """As `records`, where a line may also be several. Fast (0.8 us a line), because lines are not counted."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return None
    odd = _ODD.search(data)
    if odd is None or odd.end() != len(data) or not data.startswith(b"{"):
        return None
    try:
        return _decode_lines(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def parse(block: Block) -> Iterator[tuple[int, int, Item]]:
    """(line number, offset of the line, what stands there) for all of a block, one by one."""
    offset, number = block.offset, block.line
    for text in _split(block.data):
        read = parse_line if text.endswith(b"\n") else _tail
        for item in read(text, first=number == 1):
            yield number, offset, item
        offset += len(text)
        number += 1


def _split(data: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def parse_line(text: bytes, *, first: bool = False) -> list[Item]:
    """What one line holds: usually one item, none if it is blank. `first`: it is line 1, where the header stands."""
    if first:
        text = text.removeprefix(BOM)
    text = text.strip()
    if not text:
        return []
    damage: list[Item] = []
    if b"\0" in text:
        damage.append(Damage("nul"))
        text = text.strip(b"\0 \t\r")
        if not text:
            return damage
    if first and (headed := _with_header(text)) is not None:
        return [*damage, *headed]
    found = _whole(text)
    if isinstance(found, list):
        return [*damage, *found]
    return [*(damage or [Damage(found)]), *_spliced(text)]


def _tail(text: bytes, *, first: bool) -> list[Item]:
    items = parse_line(text, first=first)
    if items and isinstance(items[-1], Damage):
        return [Damage("torn-tail")]
    return items


def ends_whole(text: bytes, *, first: bool = False) -> bool:
    """Whether only the newline is missing behind this last line of a file."""
    items = parse_line(text, first=first)
    return bool(items) and not isinstance(items[-1], Damage)


def _whole(text: bytes) -> list[Stored] | str:
    """The records that this text consists of, or the kind of damage."""
    try:
        text.decode()
        return _decode_lines(text)
    except UnicodeDecodeError:
        return "utf8"
    except RecursionError:
        return "depth"
    except msgspec.ValidationError:
        return "record"
    except msgspec.DecodeError:
        mended = mend_surrogates(text)
        return _whole(mended) if mended != text else "json"


def _spliced(text: bytes) -> list[Stored]:
    """Whole records at the end of a line that begins with something else."""
    for match in itertools.islice(SPLICED.finditer(text, 1), _TRIES):
        found = _whole(text[match.start() :])
        if isinstance(found, list):
            return found
    return []


def _with_header(text: bytes) -> list[Item] | None:
    """Line 1 as a header and whatever else stands on it; None if it does not begin with one."""
    try:
        text.decode()
        first, *more = _decode_values(text)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, ValueError):
        return None
    header = parse_header(bytes(first))
    if header is None:
        return None
    return [header, *(item for raw in more for item in parse_line(bytes(raw)))]


def parse_header(text: bytes) -> Header | None:
    """The header in this text; of a newer version at least id, cwd and agent where it still has them. None: no usable one."""
    try:
        return decode_header(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        loose = _decode_any_header(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if loose.type != "session" or loose.version <= VERSION:
        return None
    return Header(version=loose.version, id=loose.id, cwd=loose.cwd, agent=loose.agent)


def read_lines(source: bytes | Iterable[bytes]) -> Iterator[tuple[int, Item]]:
    """(line number, what stands there) for a whole log, given as bytes or as chunks of any size."""
    for block in blocks([source] if isinstance(source, bytes) else source):
        found = records(block.data) if block.line > 1 else None
        if found is not None:
            yield from enumerate(found, block.line)
        else:
            for number, _, item in parse(block):
                yield number, item
