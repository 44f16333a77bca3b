"""Words of others as people are shown them: titles, questions and notices are one line without anything hidden in it."""

from __future__ import annotations

import unicodedata


def one_line(text: str) -> str:
    r"""The text with escapes (`\n`, `\x1b`, `\u202e`) for line ends, controls, what turns the direction of writing or is not
    seen, and what is no text. A terminal does nothing for it, and two texts that differ do not look the same.
    """
    if text.isprintable():
        return text
    return "".join(each if _seen(each) else each.encode("unicode_escape").decode() for each in text)


def _seen(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"
