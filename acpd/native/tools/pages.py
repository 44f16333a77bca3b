"""The text of an HTML page, roughly as Markdown: headings, lists, links and what is preformatted.

Not by html.parser: a page of some 20 KB can keep that busy for minutes, with the interpreter's lock held. Here each step moves
on, so that the time goes with the length; what is no sound HTML comes out as some text.
"""

from __future__ import annotations

import html
import re

_RAW = ("script", "style", "noscript", "template", "svg", "iframe", "object", "head", "textarea")
"""Left out with all that is in them."""
_CLOSE = frozenset({"li", "tr", "dt", "dd", "div"})
"""Blocks without an empty line before them."""
_BLOCKS = """
address article aside blockquote dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li
main nav ol p pre section summary table tr ul
""".split()  # noqa: SIM905  one a line would be long
_BEFORE = {"br": "\n", "li": "- ", "td": " | ", "th": " | ", **{f"h{level}": "#" * level + " " for level in range(1, 7)}}
_LONGEST_TAG = 4000
_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9:-]{0,30}")
_BLANKS = re.compile(r"[ \t\r\n\f\v\u00a0]+")
_LINES = re.compile(r"\n{3,}")
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{0,1000})", re.IGNORECASE)


def text(page: str) -> str:
    """Blocking: a second at most for 1 MB of nothing but tags."""
    title = _BLANKS.sub(" ", html.unescape(found[1])).strip() if (found := _TITLE.search(page)) else ""
    body = "\n".join(line.rstrip(" \t") for line in _Text(page).run().split("\n"))
    body = _LINES.sub("\n\n", body).strip("\n")
    return f"Title: {title}\n\n{body}" if title else body


class _Text:
    def __init__(self, page: str) -> None:
        self._page = page
        self._lower = page.lower() if len(page.lower()) == len(page) else page
        self._at = 0
        self._parts: list[str] = []
        self._fresh = True
        """Nothing stands on this line yet."""
        self._pre = 0
        self._link = ""

    def run(self) -> str:
        page = self._page
        while (start := page.find("<", self._at)) >= 0:
            self._data(page[self._at : start])
            self._at = start
            if page.startswith("<!--", start):
                self._skip("-->")
            elif page.startswith(("<!", "<?"), start):
                self._skip(">")
            elif name := _NAME.match(page, start + 1):
                self._tag(name[0].lower())
            else:
                self._data("<")
                self._at = start + 1
        self._data(page[self._at :])
        return "".join(self._parts)

    def _skip(self, end: str) -> None:
        """To behind the next `end`; where there is none, the rest is left out."""
        found = self._page.find(end, self._at)
        self._at = len(self._page) if found < 0 else found + len(end)

    def _tag(self, name: str) -> None:
        start, self._at = self._at, self._tag_end(self._at)
        if name in _RAW:
            found = self._lower.find(f"</{name}", self._at)
            self._at = len(self._page) if found < 0 else found
        elif name.startswith("/"):
            self._end(name[1:])
        else:
            self._begin(name, self._page[start : min(self._at, start + _LONGEST_TAG)])

    def _tag_end(self, start: int) -> int:
        """Behind the `>` that is not within quotes."""
        end = start
        for _ in range(4):
            end = self._page.find(">", end) + 1
            if not end:
                return len(self._page)
            if end - start > _LONGEST_TAG or not self._page.count('"', start, end) % 2:
                break
        return end

    def _begin(self, name: str, tag: str) -> None:
        if name in _BLOCKS:
            self._put("\n" if name in _CLOSE else "\n\n")
        self._put(_BEFORE.get(name, ""))
        if name == "pre":
            self._pre += 1
        elif name == "a":
            link = _attribute(tag, "href")
            self._link = link if link.startswith(("http://", "https://", "/")) and len(link) < 500 else ""
        elif name == "img" and (alt := _attribute(tag, "alt")):
            self._put(f"[image: {alt}]")

    def _end(self, name: str) -> None:
        if name == "pre":
            self._pre = max(0, self._pre - 1)
        elif name == "a" and self._link:
            self._put(f" ({self._link})")
            self._link = ""
        if name in _BLOCKS:
            self._put("\n")

    def _data(self, data: str) -> None:
        if not data:
            return
        plain = html.unescape(data)
        if not self._pre:
            plain = _BLANKS.sub(" ", plain)
        self._put(plain.lstrip(" ") if self._fresh and not self._pre else plain)

    def _put(self, part: str) -> None:
        if part:
            self._parts.append(part)
            self._fresh = part.endswith("\n")


def _attribute(tag: str, name: str) -> str:
    """Its value in a tag, "" if it is not there."""
    at = tag.lower().find(f" {name}=")
    if at < 0:
        return ""
    value = tag[at + len(name) + 2 :]
    if value[:1] in {'"', "'"}:
        return html.unescape(value[1:].partition(value[0])[0])
    return html.unescape(value.partition(" ")[0].rstrip(">"))
