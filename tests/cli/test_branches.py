"""The tree of a session as lines."""

from __future__ import annotations

import msgspec

from acpd.cli import branches
from acpd.cli.branches import Notes, Stretch, stretches
from acpd.storage.contract import Key
from acpd.storage.fold import Fold
from acpd.storage.tree import SessionTree
from acpd.wire import lines


def built(*entries: tuple[str, str | None, str], facts: tuple[dict[str, object], ...] = ()) -> tuple[SessionTree, Fold]:
    tree, fold = SessionTree(), Fold()
    values: list[dict[str, object]] = [{"type": kind, "id": name, "parentId": parent} for name, parent, kind in entries]
    for seq, value in enumerate([*values, *facts], 1):
        line = tree.add(lines.decode(msgspec.json.encode({"id": f"f{seq}", **value, "seq": seq})))
        assert line is not None
        fold.add(line)
    return tree, fold


PLAIN = (("a", None, "prompt"), ("b", "a", "update"), ("c", "b", "turn"), ("d", "c", "prompt"), ("e", "d", "update"))


def test_a_stretch_begins_at_a_prompt() -> None:
    """A conversation without branches is one stretch for each prompt, all at one depth."""
    tree, _ = built(*PLAIN)
    assert [Stretch(0, [0, 1, 2]), Stretch(0, [3, 4])] == stretches(tree)


def test_branches_are_indented() -> None:
    """Where several entries hang on one, each is a branch and stands one step further in."""
    tree, _ = built(*PLAIN, ("x", "c", "prompt"), ("y", "x", "update"))
    assert [(0, [0, 1, 2]), (1, [3, 4]), (1, [5, 6])] == stretches(tree)


def test_long_chains_need_no_recursion() -> None:
    """A log of 100,000 entries in a row is told like a short one."""
    entries = [(str(n), str(n - 1) if n else None, "prompt" if n % 10 == 0 else "update") for n in range(100_000)]
    tree, _ = built(*entries)
    assert 10_000 == len(stretches(tree))


def test_lines_say_what_is_there() -> None:
    """A line has the prompt, the number of entries, how the turn ended, labels, and where the leaf is."""
    tree, fold = built(*PLAIN, facts=({"type": "label", "entry": "b", "label": "good"}, {"type": "leaf", "entry": "c"}))
    notes = Notes({"a": "fix it", "d": "again"}, {"c": "end_turn"})
    assert [
        '* a prompt "fix it", 3 entries, end_turn [good] <- leaf',
        '| d prompt "again", 2 entries',
    ] == branches.lines(tree, fold, notes)
    assert ["5 entries, 1 branch"] == branches.summary(tree)


def test_a_gap_is_told() -> None:
    """An entry whose parent was lost says so."""
    tree, fold = built(("a", None, "prompt"), ("c", "lost", "prompt"))
    assert "* c prompt, gap before it <- leaf" == branches.lines(tree, fold, Notes({}, {}))[1]


def test_notes() -> None:
    """Prompts are noted by their first words, turns by how they ended."""
    notes = Notes({}, {})
    for line in (
        {"type": "prompt", "id": "a", "prompt": [{"type": "text", "text": "fix\nit"}]},
        {"type": "turn", "id": "b", "state": "running"},
        {"type": "turn", "id": "c", "state": "ended", "stopReason": "refusal"},
        {"type": "turn", "id": "d", "state": "ended", "error": {"code": 1}},
        {"type": "turn", "id": "e", "state": "interrupted"},
    ):
        branches.note(notes, lines.decode(msgspec.json.encode(line)))
    assert ({"a": "fix it"}, {"c": "refusal", "d": "error", "e": "interrupted"}) == notes


def test_json_has_every_entry() -> None:
    """--json: each entry with its parent, the leaf, and the ends of all branches."""
    tree, fold = built(*PLAIN[:3], ("x", "a", "prompt"))
    value = msgspec.json.decode(msgspec.json.encode(branches.as_json(Key("agent", "s"), fold, tree)))
    assert ("s", "c", ["c", "x"], {}) == (value["id"], value["leaf"], value["branches"], value["labels"])
    assert [("a", None), ("b", "a"), ("c", "b"), ("x", "a")] == [(one["id"], one["parentId"]) for one in value["entries"]]
