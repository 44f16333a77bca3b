"""From text to the tokens that search compares. Pure. Whoever changes what comes out raises `sqlite.RULES`.

A *chunk* is what stands between white space. It has two renderings, each a sequence of tokens:

| chunk | split | whole |
|---|---|---|
| `Word,` | `word` | `word` |
| `resolveTerminalPath` | `resolve terminal path` | `resolveterminalpath` |
| `src/HTTPServer_v2.py` | `src http server v 2 py` | `src httpserverv2 py` |
| `login-page` | `login page` | `loginpage` |
| `会话存储` | `会话 话存 存储 储` | the same |

A document is indexed as the split rendering of all its chunks in order, and behind it, each behind a barrier that no query can
name, the whole rendering of those chunks where it is another. A query's chunk is looked for in both renderings, as a
phrase; so a name is found by itself in any spelling, by neighbouring parts of it, and by any one of them.

Case, accents and compatibility forms (full width, ligatures) are folded; what is neither letter nor digit separates. Scripts
without spaces are cut into pairs of characters, each run's last one alone, so that every substring is a phrase.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

BARRIER = "\ue000"
"""A token that stands in no text: private use counts as a separator there."""

LONGEST = 64
"""Characters of a token; the rest of it does not count."""

NUMBERS = 2
"""Numbers in a name at most: what has more of them (a hash, a UUID) is no name and stays whole."""

_CACHED = 8192
"""Chunks whose renderings are remembered: about 2 MiB."""

# Thai to Myanmar, Khmer, kana, Bopomofo, Han, Hangul; half width forms are folded into these.
_RUN = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\U00020000-\U0003ffff"
)
_IS_RUN = re.compile(f"[{_RUN}]")
# In a word: a run; a number; capitals, of which the last one begins the next part ("HTTPServer"); a capital and small letters.
_PARTS = re.compile(rf"[{_RUN}]+|\d+|[A-Z]+(?![a-z])|[A-Z]?(?:(?![A-Z\d_{_RUN}])[^\s-])+")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_DROPPED = ((0x300, 0x36F), (0x591, 0x5C7), (0x610, 0x61A), (0x64B, 0x65F), (0xFE00, 0xFE0F))
"""Accents of Latin, Greek, Cyrillic; points of Hebrew and Arabic; variation selectors."""
_SIGNS = ((0x900, 0x963), (0x966, 0xDFF), (0xE31, 0xEBC), (0x102B, 0x103E), (0x17B6, 0x17D3))
"""Vowel signs of Indic scripts and their neighbours: parts of words, though no letters."""


class Chunk(NamedTuple):
    """Both renderings, tokens joined by one space. `whole` is empty where it is the same. `open`: a token ends inside a run
    of a script without spaces, so that a query must take its last token as a prefix.
    """

    split: str
    whole: str
    open: bool


class _Folding(dict[int, str]):
    """Character to what stands for it, its case kept; separators to a space. Filled as characters are met."""

    def __missing__(self, code: int) -> str:
        found = self[code] = _fold(chr(code))
        return found


_folding = _Folding({code: chr(code) if chr(code).isalnum() or chr(code) in "_-" else " " for code in range(128)})
_chunks: dict[str, Chunk] = {}


def fold(text: str) -> str:
    """Character by character: accents off, compatibility forms out, separators to spaces; the case stays."""
    return text.translate(_folding)


def lower(text: str) -> str:
    """The case off, in a folded text."""
    return text.lower() if text.isascii() else text.casefold()


def document(text: str) -> str:
    """What the index is given for this text. Deterministic: giving it again takes it out again."""
    split: list[str] = []
    whole: dict[str, None] = {}
    for word in uncoloured(text).split():
        found = chunk(word)
        split.append(found.split)
        if found.whole:
            whole[found.whole] = None
    if whole:
        split += [f"{BARRIER} {each}" for each in whole]
    return " ".join(split)


def uncoloured(text: str) -> str:
    """Without a terminal's escape sequences, which programs put around the words that matter. As long as before."""
    return _ESCAPES.sub(lambda found: " " * len(found[0]), text) if "\x1b" in text else text


def chunk(word: str) -> Chunk:
    """Of one chunk: a text without white space."""
    found = _chunks.get(word)
    if found is None:
        found = _render(word)
        if len(word) <= LONGEST:
            if len(_chunks) >= _CACHED:
                _chunks.clear()
            _chunks[word] = found
    return found


def _render(word: str) -> Chunk:
    split: list[str] = []
    whole: list[str] = []
    is_open = False
    for name in fold(unicodedata.normalize("NFKC", word)).split():
        one, other, is_open = _name(name)
        split += one
        whole += other
    first, second = " ".join(split), " ".join(whole)
    return Chunk(first, second if second != first else "", is_open)


def _name(name: str) -> tuple[list[str], list[str], bool]:
    """The tokens of a folded name without separators but `_` and `-`: its parts; itself."""
    if not name.isascii() and _IS_RUN.search(name):
        return _with_runs(name)
    parts: list[str] = []
    for segment in name.replace("-", "_").split("_"):
        found = _PARTS.findall(segment)
        parts += found if sum(map(str.isdigit, found)) <= NUMBERS else [segment]
    tokens = [lower(part)[:LONGEST] for part in parts if part]
    return tokens, ["".join(map(lower, parts))[:LONGEST]] if tokens else [], False


def _with_runs(name: str) -> tuple[list[str], list[str], bool]:
    tokens: list[str] = []
    is_open = False
    for part in _PARTS.findall(name):
        is_open = _IS_RUN.match(part) is not None
        if is_open:
            tokens += [part[at : at + 2] for at in range(len(part))]
        else:
            tokens.append(lower(part)[:LONGEST])
    return tokens, tokens, is_open


def _fold(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character)
    kept = "".join(each for each in parts if not _within(ord(each), _DROPPED))
    return "".join(map(_kept, unicodedata.normalize("NFC", kept)))


def _kept(character: str) -> str:
    if not (character.isalnum() or character in "_-\u3005\u30fc" or _within(ord(character), _SIGNS)):
        return " "
    small = character.casefold()
    return character if len(small) == 1 else small  # so that `lower` moves nothing


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code <= last for first, last in ranges)


def is_run(text: str) -> bool:
    """Whether this begins with a character of a script without spaces."""
    return not text.isascii() and _IS_RUN.match(text) is not None
