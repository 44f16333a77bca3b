"""The text of an HTML page, roughly as Markdown: headings, lists, links and what is preformatted."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_LEFT_OUT = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "head"})
_BLOCKS = """
address article aside blockquote dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr
li main nav ol p pre section summary table tr ul
""".split()  # noqa: SIM905  one a line would be long
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_BLANKS = re.compile(r"[ \t\r\n\f\v\u00a0]+")
_LINES = re.compile(r"\n{3,}")
_BEFORE_LINE_END = re.compile(r"[ \t]+\n")


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title = ""
        self._left_out: list[str] = []
        self._in_title = False
        self._pre = 0
        self._link = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = not self.title
        if tag in _LEFT_OUT:
            self._left_out.append(tag)
        if tag == "body":  # whatever was left open above it
            self._left_out.clear()
        if self._left_out:
            return
        if tag in _BLOCKS:
            self.parts.append("\n\n" if tag not in {"li", "tr", "dt", "dd", "div"} else "\n")
        self._begin(tag, dict(attrs))

    def _begin(self, tag: str, attributes: dict[str, str | None]) -> None:
        if tag == "pre":
            self._pre += 1
        elif tag == "br":
            self.parts.append("\n")
        elif tag == "li":
            self.parts.append("- ")
        elif tag in {"td", "th"}:
            self.parts.append(" | ")
        elif tag in _HEADINGS:
            self.parts.append(_HEADINGS[tag])
        elif tag == "a":
            link = attributes.get("href") or ""
            self._link = link if link.startswith(("http://", "https://", "/")) and len(link) < 500 else ""
        elif tag == "img" and attributes.get("alt"):
            self.parts.append(f"[image: {attributes['alt']}]")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if tag in self._left_out:
            del self._left_out[self._left_out.index(tag) :]
        if self._left_out:
            return
        if tag == "pre":
            self._pre = max(0, self._pre - 1)
        elif tag == "a" and self._link:
            self.parts.append(f" ({self._link})")
            self._link = ""
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        if not self._left_out:
            self.parts.append(data if self._pre else _BLANKS.sub(" ", data))


def text(html: str) -> str:
    """Blocking: about a second for 5 MB."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    title = _BLANKS.sub(" ", parser.title).strip()
    body = _LINES.sub("\n\n", _BEFORE_LINE_END.sub("\n", "".join(parser.parts))).strip()
    return f"Title: {title}\n\n{body}" if title else body
