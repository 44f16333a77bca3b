"""The outline of a tree: stretches, what is left out of a long one, and entries by their names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.errors import EntryNotFound
from acpd.storage.fold import Fold
from acpd.storage.outline import Hidden, Notes, Stretch, find, name_length, shortened, stretches
from acpd.storage.tree import SessionTree
from acpd.wire import lines


def built(*entries: tuple[str, str | None, str], facts: tuple[Mapping[str, object], ...] = ()) -> tuple[SessionTree, Fold]:
    tree, fold = SessionTree(), Fold()
    values: list[Mapping[str, object]] = [{"type": kind, "id": name, "parentId": parent} for name, parent, kind in entries]
    for seq, value in enumerate([*values, *facts], 1):
        line = tree.add(lines.decode(msgspec.json.encode({"id": f"f{seq}", **value, "seq": seq})))
        assert line is not None
        fold.add(line)
    return tree, fold


PLAIN = (("a", None, "prompt"), ("b", "a", "update"), ("c", "b", "turn"), ("d", "c", "prompt"), ("e", "d", "update"))


def outline(tree: SessionTree, fold: Fold) -> list[tuple[int, str, str]]:
    """(depth, first, last) of each stretch."""
    found = stretches(tree, fold.labels, Notes({}, {}))
    return [(one.depth, tree.ids[one.first], tree.ids[one.last]) for one in found]


def test_a_stretch_begins_at_a_prompt() -> None:
    """A conversation without branches is one stretch for each prompt, all at one depth."""
    assert [(0, "a", "c"), (0, "d", "e")] == outline(*built(*PLAIN))


def test_the_way_to_the_leaf_is_the_main_one() -> None:
    """Where several entries hang on one, those that do not lead to the leaf are told before it, one step further in."""
    side = (("x", "c", "prompt"), ("y", "x", "update"))
    assert [(0, "a", "c"), (1, "x", "y"), (0, "d", "e")] == outline(*built(*PLAIN, *side))
    moved = ({"type": "leaf", "entry": "y"},)
    assert [(0, "a", "c"), (1, "d", "e"), (0, "x", "y")] == outline(*built(*PLAIN, *side, facts=moved))


def test_off_the_way_the_newest_is_the_main_one() -> None:
    """A branch of its own goes on with what was said last there."""
    side = (("x", "c", "prompt"), ("y", "x", "prompt"), ("z", "x", "prompt"))
    assert [(0, "a", "c"), (1, "x", "x"), (2, "y", "y"), (1, "z", "z"), (0, "d", "e")] == outline(*built(*PLAIN, *side))


def test_a_stretch_ends_at_the_leaf_and_at_a_label() -> None:
    """So that each stands at the end of a line, which has the id to go on from."""
    facts = ({"type": "label", "entry": "a", "label": "L"}, {"type": "leaf", "entry": "d"})
    assert [(0, "a", "a"), (0, "b", "c"), (0, "d", "d"), (1, "e", "e")] == outline(*built(*PLAIN, facts=facts))


def test_long_chains_need_no_recursion() -> None:
    """A log of 100,000 entries in a row is told like a short one."""
    entries = [(str(n), str(n - 1) if n else None, "prompt" if n % 10 == 0 else "update") for n in range(100_000)]
    assert 10_000 == len(outline(*built(*entries)))


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["prompt", "update"])), max_size=30), st.data())
def test_every_entry_is_in_one_stretch(parents: list[tuple[int, str]], data: st.DataObject) -> None:
    """Whatever the tree: each entry once, each stretch a chain, the path marked, and as many ends as the tree has leaves."""
    entries = [(str(n), None if parent >= n else str(parent), kind) for n, (parent, kind) in enumerate(parents)]
    leaf = data.draw(st.sampled_from([str(n) for n in range(len(entries))])) if entries else None
    tree, fold = built(*entries, facts=({"type": "leaf", "entry": leaf},) if leaf else ())
    found = stretches(tree, fold.labels, Notes({}, {}))
    members = [_chain(tree, one) for one in found]
    assert sorted(position for chain in members for position in chain) == list(range(len(entries)))
    assert {position for one, chain in zip(found, members, strict=True) if one.on_path for position in chain} == set(
        tree.path()
    )
    assert len(tree.leaves()) == sum(one.ends for one in found)
    assert [one.is_leaf for one in found].count(True) == bool(leaf)


def _chain(tree: SessionTree, one: Stretch) -> list[int]:
    chain = [one.last]
    while chain[-1] != one.first:
        chain.append(tree.parents[chain[-1]])
    assert len(chain) == one.entries
    return chain


def long(count: int, *facts: dict[str, object], **branches: str) -> list[Stretch | Hidden]:
    entries: list[tuple[str, str | None, str]] = [(f"p{n}", f"p{n - 1}" if n else None, "prompt") for n in range(count)]
    tree, fold = built(*entries, *[(name, parent, "prompt") for name, parent in branches.items()], facts=facts)
    return shortened(stretches(tree, fold.labels, Notes({f"p{n}": "" for n in range(count)}, {})), 10)


def test_a_long_row_is_shortened() -> None:
    """Of many turns in a row those at both ends are left; where hiding would save one line nothing is hidden."""
    found = long(1_000)
    assert 12 == len(found), "5, what is hidden, 5, and the leaf"
    assert Hidden(turns=989, entries=989, branches=0) == found[5]
    assert 12 == len(long(12))
    assert not [one for one in long(12) if isinstance(one, Hidden)]


def test_what_is_remarkable_is_never_hidden() -> None:
    """Labels, the leaf, and where branches begin and end stand in the shortened outline too."""
    found = long(1_000, {"type": "label", "entry": "p300", "label": "L"}, {"type": "leaf", "entry": "p500"}, x="p700")
    kept = [one for one in found if isinstance(one, Stretch)]
    assert ["L"] == [one.label for one in kept if one.label]
    assert 1 == sum(one.is_leaf for one in kept)
    assert 3 == sum(one.forks for one in kept)
    assert 1_001 == sum(one.entries for one in found)


def test_of_many_branches_most_are_hidden() -> None:
    """A thousand branches of one entry are not a thousand lines."""
    found = long(2, **{f"x{n}": "p0" for n in range(1_000)})
    assert len(found) < 20
    assert 1_001 == sum(one.branches if isinstance(one, Hidden) else one.ends for one in found)


def test_an_entry_by_its_id_its_label_or_the_beginning_of_its_id() -> None:
    """In this order; a name that means several is refused and says which, and so is one that means none."""
    tree, fold = built(
        ("abc", None, "prompt"), ("abd", "abc", "prompt"), ("ab", "abd", "prompt"), ("x", "ab", "update"),
        facts=({"type": "label", "entry": "x", "label": "abc"}, {"type": "label", "entry": "x", "label": "here"}),
    )  # fmt: skip
    assert ["abc", "ab", "x", "abd"] == [find(tree, fold.labels, name, "S") for name in ("abc", "ab", "here", "abd")]
    with pytest.raises(
        EntryNotFound, match=r"which entry is a of session S: abc, abd, ab are called so or begin so .*acpd tree S"
    ):
        find(tree, fold.labels, "a", "S")
    for nothing in ("abcd", "", "nowhere"):
        with pytest.raises(EntryNotFound, match=f"cannot find entry {nothing} of session S"):
            find(tree, fold.labels, nothing, "S")
    with pytest.raises(EntryNotFound, match="are called so"):
        find(tree, {"x": "twice", "ab": "twice"}, "twice", "S")


def test_a_short_name_is_found_again() -> None:
    """What an outline shows of an id is enough to name it."""
    names = [f"0000000{n:03d}" for n in range(40)]
    tree, _ = built(*[(name, None, "prompt") for name in names])
    length = name_length(tree, [3, 17])
    assert 10 == length
    assert names[3] == find(tree, {}, names[3][:length], "S")


def test_notes() -> None:
    """Prompts are noted by their first line, turns by how they ended."""
    notes = Notes({}, {})
    notes.add(
        lines.decode(msgspec.json.encode(line))
        for line in (
            {"type": "prompt", "id": "a", "prompt": [{"type": "text", "text": "fix\nit"}]},
            {"type": "prompt", "id": "n"},
            {"type": "turn", "id": "b", "state": "running"},
            {"type": "turn", "id": "c", "state": "ended", "stopReason": "refusal"},
            {"type": "turn", "id": "d", "state": "ended", "error": {"code": 1}},
            {"type": "turn", "id": "e", "state": "interrupted"},
        )
    )
    assert Notes({"a": "fix", "n": ""}, {"c": "refusal", "d": "error", "e": "interrupted"}) == notes
