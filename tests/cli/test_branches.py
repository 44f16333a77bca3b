"""The tree of a session as lines."""

from __future__ import annotations

import msgspec

from acpd.cli import branches
from acpd.storage.contract import Key
from acpd.storage.fold import Fold
from acpd.storage.outline import Hidden, Notes, shortened, stretches
from acpd.storage.tree import SessionTree
from tests.storage.test_outline import PLAIN, built


def shown(found: tuple[SessionTree, Fold], notes: Notes | None = None, run: int = 12) -> list[str]:
    tree, fold = found
    return branches.lines(tree, shortened(stretches(tree, fold.labels, notes or Notes({}, {})), run))


def test_lines_say_what_is_there() -> None:
    """A line has the last entry's id, the prompt, the number of entries, how the turn ended, labels, and where the leaf is."""
    notes = Notes({"a": "fix it", "d": "again"}, {"c": "end_turn"})
    facts = ({"type": "label", "entry": "c", "label": "good"}, {"type": "leaf", "entry": "c"})
    assert [
        '* c "fix it", 3 entries, end_turn [good] <- leaf',
        '  + e "again", 2 entries',
    ] == shown(built(*PLAIN, facts=facts), notes)
    assert ["5 entries, 1 branch"] == branches.summary(built(*PLAIN)[0])


def test_a_branch_that_begins_is_marked() -> None:
    """Two branches of one entry stand one step further in, each behind a plus; the way to the leaf stays where it is."""
    found = built(*PLAIN, ("x", "c", "prompt"), ("y", "c", "prompt"), facts=({"type": "leaf", "entry": "e"},))
    assert ["* c prompt, 3 entries", "  + x prompt", "  + y prompt", "* e prompt, 2 entries <- leaf"] == shown(found)


def test_gaps_and_compactions_are_told() -> None:
    """An entry whose parent was lost says so, and so does a turn in which the agent compacted."""
    found = built(("a", None, "prompt"), ("c", "lost", "prompt"), ("k", "c", "compaction"), ("l", "k", "compaction"))
    assert "* l prompt, 3 entries, 2 times compacted, gap before it <- leaf" == shown(found)[1]


def test_what_is_hidden_is_counted() -> None:
    """The line that stands for hidden turns says how many, and how to see them."""
    tree, _ = built(("a", None, "prompt"))
    assert ["  ... 2 turns, 1 branch, 7 entries (--all shows them)"] == branches.lines(tree, [Hidden(2, 7, 1)])
    assert ["  ... 1 turn, 1 entry (--all shows them)"] == branches.lines(tree, [Hidden(1, 1, 0)])


def test_ids_are_as_long_as_they_must_be() -> None:
    """An id is cut to what tells it from every other one, and no shorter than eight characters."""
    entries = [(f"{n:05d}-0000-{n:04d}", f"{n - 1:05d}-0000-{n - 1:04d}" if n else None, "prompt") for n in range(3)]
    assert [f"* {n:05d}-00 prompt" for n in range(3)] == [line.removesuffix(" <- leaf") for line in shown(built(*entries))]
    entries = [("same-start-1", None, "prompt"), ("same-start-2", "same-start-1", "prompt")]
    assert "* same-start-1 prompt" == shown(built(*entries))[0]


def test_a_deep_tree_stays_on_the_screen() -> None:
    """Branches of branches of branches are not moved out to the right without an end."""
    entries: list[tuple[str, str | None, str]] = [("p0", None, "prompt")]
    for n in range(1, 200):
        entries += [(f"p{n}", f"p{n - 1}", "prompt"), (f"q{n}", f"p{n - 1}", "prompt")]
    assert max(map(len, shown(built(*entries), run=1000))) < 80


def test_stored_text_steers_nothing() -> None:
    """Names, types and labels of a forged log are one line each, whatever stands in them."""
    found = built(("a\nb", None, "pro\nmpt"), facts=({"type": "label", "entry": "a\nb", "label": "x\n* y"},))
    assert ["* a b pro mpt [x * y] <- leaf"] == shown(found)


def test_json_has_every_entry() -> None:
    """--json: each entry with its parent, the leaf, and the ends of all branches."""
    tree, fold = built(*PLAIN[:3], ("x", "a", "prompt"))
    value = msgspec.json.decode(msgspec.json.encode(branches.as_json(Key("agent", "s"), fold, tree)))
    assert ("s", "c", ["c", "x"], {}) == (value["id"], value["leaf"], value["branches"], value["labels"])
    assert [("a", None), ("b", "a"), ("c", "b"), ("x", "a")] == [(one["id"], one["parentId"]) for one in value["entries"]]
