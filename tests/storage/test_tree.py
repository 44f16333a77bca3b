"""SessionTree and the reading of damaged lines, without a file."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.storage import scan
from acpd.storage.scan import Damage, read_lines
from acpd.storage.tree import SessionTree, load
from acpd.wire.lines import Header, Stored, encode, entry, fact, header_line

HEADER = header_line(Header(version=1, id="s", cwd="/w", agent="a"))
AT = "2026-11-30T09:57:03.234Z"


def update(identifier: str, parent: str | None, seq: int = 1, body: bytes = b"") -> bytes:
    return entry("update", identifier, parent, seq, AT, body)


def chain(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield update(f"e{number}", f"e{number - 1}" if number else None, number + 1)


def tree_of(*lines: bytes) -> SessionTree:
    return load(read_lines(HEADER + b"".join(lines)))[2]


def kinds(tree: SessionTree) -> list[tuple[int, str]]:
    return [(finding.line, finding.kind) for finding in tree.findings]


def names(tree: SessionTree, to: str | None = None) -> list[str]:
    return [tree.ids[position] for position in tree.path(to)]


def test_entries_form_a_path() -> None:
    """The path goes from the root to the leaf, which is the newest entry of an unbranched log."""
    tree = tree_of(*chain(3), fact("usage", "f", 4, AT, b""))
    assert ("e2", ["e0", "e1", "e2"], [2], []) == (tree.leaf, names(tree), tree.leaves(), tree.findings)


def test_a_leaf_fact_moves_the_leaf() -> None:
    """What hangs elsewhere moves nothing; a leaf fact sets the leaf and the next entry on it becomes the leaf."""
    tree = tree_of(*chain(3), update("x", "e0", 4), fact("leaf", "f", 5, AT, b',"entry":"e1"'), update("y", "e1", 6))
    assert ("y", ["e0", "e1", "y"], ["e0", "x"]) == (tree.leaf, names(tree), names(tree, "x"))
    assert ([2, 3, 4], [1, 3], [0]) == (tree.leaves(), tree.children(0), tree.children())


def test_a_leaf_fact_may_name_no_entry() -> None:
    """A leaf of null begins a second root; one that names an entry which is lost does not count."""
    tree = tree_of(*chain(1), fact("leaf", "f", 2, AT, b',"entry":null'), update("r", None, 3))
    assert ("r", ["r"]) == (tree.leaf, names(tree))
    lost = tree_of(*chain(1), fact("leaf", "f", 2, AT, b',"entry":"gone"'), update("r", "e0", 3))
    assert ("r", [(3, "missing-leaf")]) == (lost.leaf, kinds(lost))


def test_a_lost_parent_is_bridged() -> None:
    """What hung on a lost line hangs on the last readable entry before it in file order, with a gap mark."""
    tree = tree_of(*chain(2), b'{"broken\n', update("x", "lost", 4), update("y", "x", 5))
    assert (["e0", "e1", "x", "y"], {2}) == (names(tree), tree.gaps)
    assert [(4, "json"), (5, "missing-parent")] == kinds(tree)


def test_a_lost_root_makes_the_next_entry_the_root() -> None:
    """Without a readable entry before it, an entry whose parent is lost is a root."""
    tree = tree_of(update("x", "lost"), update("y", "x", 2))
    assert (["x", "y"], {0}, [(2, "missing-parent")]) == (names(tree), tree.gaps, kinds(tree))


def test_cycles_are_cut() -> None:
    """A parent that is the entry itself or stands later in the file is a cycle, and every walk ends."""
    tree = tree_of(update("a", "b"), update("b", "a", 2), update("c", "c", 3))
    assert (["a", "b", "c"], [(2, "cycle"), (4, "cycle")]) == (names(tree), kinds(tree))


def test_a_second_entry_with_one_id_gets_an_inner_id() -> None:
    """Later children of a doubled id hang on the newest before them; nothing is lost, also where `id#2` is taken."""
    tree = tree_of(update("a#2", None), update("a", "a#2", 2), update("a", "a", 3), update("a", "a", 4), update("b", "a", 5))
    assert ["a#2", "a", "a#3", "a#4", "b"] == names(tree)
    assert [(4, "duplicate-id"), (5, "duplicate-id")] == kinds(tree)


@pytest.mark.parametrize("count", range(1, 6))
def test_a_line_that_stands_twice_moves_nothing(count: int) -> None:
    """Lines that a copy program or an editor doubled at the end: the path stays, and what is appended continues it."""
    lines = [*chain(3), fact("config", "f", 4, AT, b""), entry("turn", "t", "e2", 5, AT, b"")]
    doubled = tree_of(*lines, *lines[-count:], update("n", "t", 6), update("m", "n", 7))
    assert (["e0", "e1", "e2", "t", "n", "m"], "m") == (names(doubled), doubled.leaf)
    _, fold, _ = load(read_lines(b"".join([HEADER, *lines, *lines[-count:]])))
    assert ("t", 5) == (fold.leaf, fold.seq)


def test_a_seq_may_be_any_number() -> None:
    """In an edited log: too big for any integer of a machine, or the same for all."""
    tree = tree_of(update("a", None, 1 << 70), update("b", "a", 1 << 70), update("a", "b", 5), update("a", None, 1 << 70))
    assert (["a", "b", "a#2"], ["a", "b", "a#2", "a#3"]) == (names(tree), tree.ids)


def test_unknown_types_are_links_of_the_chain() -> None:
    """An entry of a type that nobody knows is part of the path."""
    tree = tree_of(*chain(1), entry("hologram", "h", "e0", 2, AT, b',"x":[1]'), update("y", "h", 3))
    assert (["e0", "h", "y"], ["update", "hologram", "update"]) == (names(tree), tree.types)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"type":"update","id":"x","parentId":null,"par', "json"),
        (b"\0" * 300, "nul"),
        (b'{"type":"update","id":"x","parentId":null,"params":"\xe2\x82"}', "utf8"),
        (b'{"type":"update","id":"x","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "depth"),
        (b'{"id":"x"}', "record"),
        (b"[1]", "record"),
        (b'{"type":"update","id":"x","params":NaN}', "json"),
        (b'{"type":"update","id":"x","seq":' + b"9" * 5000 + b"}", "record"),
    ],
)
def test_a_line_that_is_no_record_costs_that_line_only(text: bytes, kind: str) -> None:
    """Damage of every kind is told with its line; the lines around it are read."""
    tree = tree_of(*chain(1), text + b"\n", update("y", "e0", 3))
    assert (["e0", "y"], [(3, kind)]) == (names(tree), kinds(tree))


def test_records_that_share_a_line_are_read() -> None:
    """Two whole records on one line are both read; one behind a cut one or behind NUL bytes is recovered."""
    two = tree_of(update("a", None).strip() + update("b", "a", 2))
    assert (["a", "b"], []) == (names(two), two.findings)
    spliced = tree_of(b'{"type":"update","id":"a","parentId":null,"seq":1,"at":"20' + update("b", None, 2))
    assert (["b"], [(2, "json")]) == (names(spliced), kinds(spliced))
    nul = tree_of(b"\0" * 20 + update("b", None, 2))
    assert (["b"], [(2, "nul")]) == (names(nul), kinds(nul))


def test_line_ends() -> None:
    """Lines end at 0x0A only; a byte order mark, CR LF and blank lines are no damage; a last line may lack its end."""
    text = "a\u2028b\u2029c\u0085d"
    lines = [HEADER, b"\n", update("a", None, 1, b',"title":' + encode(text)), b" \r\n", update("b", "a", 2).strip()]
    data = b"\xef\xbb\xbf" + b"".join(lines).replace(b"\n", b"\r\n")
    header, fold, tree = load(read_lines(data))
    assert header is not None
    assert (["a", "b"], [], 2) == (names(tree), tree.findings, fold.seq)
    read = [item for _, item in read_lines(data) if isinstance(item, Stored)]
    assert text == read[0].title


def test_a_lone_surrogate_is_mended() -> None:
    """An escaped half of a pair is no damage: it is read as U+FFFD; whole pairs stay."""
    data = HEADER + update("a", None, 1, b',"params":{"x":"\\ud83d","y":"\\ud83d\\ude00"}')
    found = [item for _, item in read_lines(data)]
    assert isinstance(found[1], Stored)
    assert b'{"x":"\\ufffd","y":"\\ud83d\\ude00"}' == bytes(found[1].params or b"")


@pytest.mark.parametrize(
    ("data", "kind", "version"),
    [
        (b"", "empty", None),
        (update("a", None), "header-missing", None),
        (b'{"type":"session","version":1}\n', "header-missing", None),
        (b'{"type":"session","version":99,"id":"s","new":{}}\n', "newer-version", 99),
        (b'\0{"broken\n', "header-missing", None),
    ],
)
def test_the_first_line(data: bytes, kind: str, version: int | None) -> None:
    """A log without a usable header, or with one of a newer version, is read as far as it goes, and told."""
    header, fold, tree = load(read_lines(data))
    assert kind in [finding.kind for finding in tree.findings]
    assert version == (header.version if header else None)
    assert any(kind in warning for warning in fold.warnings)


ID = st.sampled_from(["a", "b", "c", "d", "a#2"])
LINE = st.one_of(
    st.builds(update, ID, st.one_of(st.none(), ID)),
    st.builds(lambda i, p: entry("turn", i, p, 1, AT, b',"state":"running"'), ID, ID),
    st.builds(lambda i: fact("leaf", "f", 1, AT, b',"entry":' + encode(i)), st.one_of(st.none(), ID)),
    st.binary(max_size=20).map(lambda data: data + b"\n"),
    st.just(b"\0" * 9),
)


@given(st.lists(LINE, max_size=30), st.integers(0, 400), st.integers(1, 50))
def test_nothing_crashes_and_every_entry_counts_once(parts: list[bytes], cut: int, size: int) -> None:
    """Any lines with any damage give a tree: each entry once, parents before children, leaf as the fold has it."""
    data = HEADER + b"".join(parts)
    data = data[: max(0, len(data) - cut)]
    _, fold, tree = load(read_lines(data))
    stored = [item for _, item in read_lines(data) if isinstance(item, Stored)]
    assert sum(item.is_entry for item in stored) == len(tree) == len(set(tree.ids))
    assert all(parent < child for child, parent in enumerate(tree.parents))
    assert fold.leaf == tree.leaf
    path = tree.path()
    assert path == sorted(set(path))
    assert set(tree.leaves()) == {position for position in range(len(tree)) if not tree.children(position)}
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(map(str, read_lines(data))) == list(map(str, read_lines(chunks)))


@given(st.lists(st.sampled_from([*chain(3), b"\n", b"junk\n", b'{"a":1}\n', b"\0\n"]), max_size=12))
def test_the_fast_way_says_what_the_slow_way_says(parts: list[bytes]) -> None:
    """Lines that are decoded together are decoded as each would be alone."""
    data = b"".join(parts)
    alone = [item for part in parts for item in scan.parse_line(part)]
    together = scan.records(data)
    if together is None:
        assert len(alone) != len(parts) or any(isinstance(item, Damage) for item in alone) or not parts
    else:
        assert list(map(str, alone)) == list(map(str, together))


def seconds(data: bytes) -> float:
    best = 9.0
    for _ in range(3):
        start = time.process_time()
        load(read_lines(data))
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("shape", ["chain", "cycle", "same-id", "splice", "junk"])
def test_loading_is_linear(shape: str) -> None:
    """Four times the lines take about four times as long, whatever is wrong with them."""

    def made(count: int) -> bytes:
        if shape == "chain":
            return HEADER + b"".join(chain(count))
        if shape == "cycle":
            return HEADER + b"".join(update(f"e{n}", f"e{(n - 1) % count}", n + 1) for n in range(count))
        if shape == "same-id":
            return HEADER + b"".join(update(f"d{n % 10}", f"d{(n - 1) % 10}", n + 1) for n in range(count))
        if shape == "splice":
            return HEADER + b'{"type":"update","id":"x","seq":1,' * count + b"\n"
        return HEADER + b"{\n" * count

    small, large = seconds(made(10_000)), seconds(made(40_000))
    assert large < 4 * small * 2.5 + 0.05


def test_a_long_path_needs_no_recursion() -> None:
    """A chain of 200,000 entries has a path of 200,000."""
    tree = tree_of(*chain(200_000))
    assert list(range(200_000)) == tree.path()
    assert [199_999] == tree.leaves()


def test_memory_is_bounded_by_the_longest_line() -> None:
    """Reading images of 1 MiB holds a few of them, not all."""
    image = json.dumps({"image": "A" * (1 << 20)}).encode()

    def chunks() -> Iterator[bytes]:
        yield HEADER
        for number in range(40):
            yield update(f"e{number}", f"e{number - 1}" if number else None, number + 1, b',"params":' + image)

    tracemalloc.start()
    _, _, tree = load(read_lines(chunks()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 40 == len(tree)
    assert peak < 8 << 20


def test_a_line_that_stands_twice_parts_no_branch() -> None:
    """Its copy hangs on it, and what follows on the copy: one path, and nothing is lost."""
    tree = SessionTree()
    for number, (identifier, parent) in enumerate([("a", None), ("b", "a"), ("b", "a"), ("c", "b")], 1):
        tree.add(Stored(type="update", id=identifier, parentId=parent, seq=number), number)
    assert ["a", "b", "b#2", "c"] == [tree.ids[position] for position in tree.path()]
    assert 1 == len(tree.leaves())
