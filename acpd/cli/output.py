"""What the command line writes, all of it: texts and JSON on stdout, one line for an error on stderr.

Stored texts come from models, tools and web pages. On a terminal their control characters are shown, never obeyed.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from typing import TextIO

import msgspec

from acpd.errors import AcpdError, ConfigError

# C0 but tab and newline, DEL, C1, and what reorders text (Unicode UAX 9: embeddings, overrides, isolates, marks).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

BAR = 20
"""Characters of a progress bar."""


def escaped(text: str) -> str:
    """`text` with everything that could steer a terminal written as Python escapes."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def one_line(text: str, limit: int = 0) -> str:
    """`text` on one line, white space joined; at most `limit` characters (0: all)."""
    joined = " ".join(text.split())
    return joined if not limit or len(joined) <= limit else joined[: limit - 1] + "…"


def stdout() -> TextIO:
    """Raises ConfigError if acpd was started without one."""
    if sys.stdout is None:
        raise ConfigError("stdout is closed")
    return sys.stdout


class Output:
    """stdout for people and programs. `terminal`: whether a person looks at it."""

    __slots__ = ("_stream", "terminal")

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stdout() if stream is None else stream
        self.terminal = self._stream.isatty()

    def say(self, text: str = "") -> None:
        self.write(text + "\n")

    def write(self, text: str) -> None:
        """As `say`, without the end of the line."""
        self._stream.write(escaped(text) if self.terminal else text.encode(errors="replace").decode())

    def marked(self, texts: Sequence[str]) -> None:
        """One line; on a terminal every second text is bold."""
        safe = [escaped(text) if self.terminal else text.encode(errors="replace").decode() for text in texts]
        bold = ("\x1b[1m", "\x1b[m") if self.terminal else ("", "")
        self._stream.write("".join(text if at % 2 == 0 else text.join(bold) for at, text in enumerate(safe)) + "\n")

    def json(self, value: object) -> None:
        """One value on one line. JSON escapes C0 itself; C1 and the rest are escaped on a terminal."""
        text = msgspec.json.encode(value).decode(errors="replace")
        if self.terminal:
            text = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        self._stream.write(text + "\n")

    def flush(self) -> None:
        self._stream.flush()


def table(rows: Sequence[tuple[str, ...]], limits: dict[int, int] | None = None) -> list[str]:
    """Columns, aligned; the last one is not padded. `limits`: characters of a column."""
    cut = [tuple(one_line(cell, (limits or {}).get(at, 0)) for at, cell in enumerate(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]


def complain(error: AcpdError | str) -> None:
    """One line on stderr: what is wrong, and in brackets what to do."""
    sys.stderr.write(f"acpd: {escaped(one_line(str(error)))}\n")


def note(text: str) -> None:
    """A remark for the person at the terminal, so on stderr, and only there."""
    if sys.stderr.isatty():
        sys.stderr.write(escaped(text) + "\n")


def can_ask() -> bool:
    """Whether there is a person at a terminal to ask."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> bool:
    """Whether the person at the terminal says yes. Only where one can be asked."""
    sys.stderr.write(f"{escaped(one_line(question))} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


class Progress:
    """How far something is, on one line of the terminal's stderr that goes again; at most ten times a second."""

    def __init__(self, text: str) -> None:
        """`text` says what is done: "reading logs"."""
        self._text = text
        self._shown = 0.0
        self._terminal = sys.stderr.isatty()

    def tell(self, done: int, of: int = 0) -> None:
        """`of` 0: nobody knows how many there are."""
        if self._terminal and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{self._text} {_bar(done, of)}" if of else f"\r\x1b[K{self._text}: {done:,} done")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _bar(done: int, of: int) -> str:
    """`[#####...............] 51,200 of 204,800`"""
    full = min(BAR, BAR * done // of)
    return f"[{'#' * full}{'.' * (BAR - full)}] {done:,} of {of:,}"


def give_up_stdout() -> None:
    """After a broken pipe: let the interpreter's last flush go nowhere instead of failing."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.close(sink)


def tell_encoding() -> None:
    """A terminal that cannot show a character gets its escape, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def as_text(value: object) -> str:
    """A value as JSON text, for a table."""
    return msgspec.json.encode(value).decode()
