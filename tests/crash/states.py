"""What a crash after the first n steps of a disk may leave: one state after a kill, many after a loss of power.

Kill: everything that reached the kernel; of the last write perhaps only a part. Power: of what no sync covers, each file
may have kept any part: nothing, all, a beginning cut at any byte, zeros where data was to be, a later write without an
earlier one; each folder any of its changes of names that are in order for each name (a rename ties two names). A folder
that lost its name takes along what is in it. Of a database: any later copy than the last durable one, or that one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.crash.disk import BASE, Began, Committed, Disk, Failed, Mark, Names, State, Synced, Truncate, Write, apply

FEW = 3
"""So many uncovered writes of one file may be there in every combination."""
MANY = 64
"""Listings of one folder at most; of more changes the beginnings, and some others."""


class Crash(NamedTuple):
    """One state, and where it comes from: `number` steps were done."""

    number: int
    power: bool
    state: State
    story: str


def points(disk: Disk) -> list[int]:
    """Numbers of steps after which a crash says something of its own: before the next one changes or covers something."""
    lasting = (Began, Mark)
    steps = disk.steps
    return [n for n in range(len(steps) + 1) if n == len(steps) or not isinstance(steps[n], lasting)]


def cuts(length: int) -> list[int]:
    """Where a write is torn: behind its first byte, in the middle, before its last one."""
    return sorted({1, length // 2, length - 1} - {0, length})


def cuts_of(disk: Disk, number: int) -> list[int]:
    """Where the write that was the last of so many steps is torn; nowhere if that was none."""
    last = disk.steps[number - 1] if number else None
    return cuts(len(last.data)) if isinstance(last, Write) else []


def kills(disk: Disk, number: int, at: Sequence[int | None] = ()) -> Iterator[Crash]:
    """The states after kill -9. `at`: where the last write is cut."""
    for cut in at or [None, *cuts_of(disk, number)]:
        found = disk.until(number, cut)
        copies = _copies(disk, number)
        state = _state(found, found.folders, found.files, {where: each[-1] for where, each in copies.items()})
        yield Crash(number, power=False, state=state, story="" if cut is None else f"the last write cut at byte {cut}")


class Powers:
    """The states after a loss of power, `number` steps done. `count`: of all combinations, those that are alike included."""

    def __init__(self, disk: Disk, number: int) -> None:
        self._disk = disk
        self._number = number
        self._covered = _covered(disk, number)
        self._files = {inode: self._contents(inode) for inode in self._touched(Write, Truncate)}
        self._folders = {inode: self._listings(inode) for inode in self._touched(Names)}
        self._copies = _copies(disk, number)
        self._sizes = [*map(len, self._files.values()), *map(len, self._folders.values()), *map(len, self._copies.values())]
        self.count = 1
        for size in self._sizes:
            self.count *= size

    def each(self, limit: int, rng: random.Random) -> Iterator[Crash]:
        """All of them if they are at most `limit`, else so many: the extremes, what differs from one in one place, others."""
        for choice in self._choices(limit, rng):
            state = self._pick(choice)
            yield Crash(self._number, power=True, state=state, story=f"choice {choice} of {self._sizes}")

    def _choices(self, limit: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
        if self.count <= limit:
            yield from itertools.product(*map(range, self._sizes))
            return
        first, last = tuple(0 for _ in self._sizes), tuple(size - 1 for size in self._sizes)
        near = [
            (*end[:at], value, *end[at + 1 :])
            for end in (first, last)
            for at, size in enumerate(self._sizes)
            for value in range(size)
        ]
        rng.shuffle(near)
        others = [tuple(rng.randrange(size) for size in self._sizes) for _ in range(limit)]
        mixed = itertools.chain.from_iterable(itertools.zip_longest(near[:limit], others))
        chosen = dict.fromkeys(choice for choice in (first, last, *mixed) if choice is not None)
        yield from itertools.islice(chosen, limit)

    def _pick(self, choice: tuple[int, ...]) -> State:
        parts = iter(choice)
        files = dict(self._disk.base[1])
        files.update({inode: each[next(parts)] for inode, each in self._files.items()})
        folders = dict(self._disk.base[0])
        folders.update({inode: each[next(parts)] for inode, each in self._folders.items()})
        return _state(self._disk, folders, files, {where: each[next(parts)] for where, each in self._copies.items()})

    def _touched(self, *kinds: type) -> list[int]:
        found = {_inode(step): None for step in self._disk.steps[: self._number] if isinstance(step, kinds)}
        return list(found)

    def _contents(self, inode: int) -> list[bytes]:
        """What this file may hold; first what is certain, last all that was written."""
        base = self._disk.base[1].get(inode, b"")
        steps = self._disk.steps[: self._number]
        done = [(n, step) for n, step in enumerate(steps) if isinstance(step, Write | Truncate) and step.inode == inode]
        open_ones = [n for n, _ in done if n not in self._covered]
        found: dict[bytes, None] = {}
        for kept in _subsets(open_ones):
            found[_content(base, [step for n, step in done if n in kept or n in self._covered])] = None
        for n, step in done:
            if n in self._covered or not isinstance(step, Write):
                continue
            for cut in cuts(len(step.data)):
                torn = step._replace(data=step.data[:cut])
                found[_content(base, [torn if at == n else each for at, each in done if at <= n or at in self._covered])] = None
            found[_content(base, [each if at < n or at in self._covered else _zeros(each) for at, each in done])] = None
        whole = _content(base, [step for _, step in done])
        found.pop(whole, None)
        return [*found, whole]

    def _listings(self, folder: int) -> list[Listing]:
        """What the names of this folder may be; first what is certain, last all that was done."""
        names = dict(self._disk.base[0].get(folder, {}))
        steps = self._disk.steps[: self._number]
        done = [(n, step) for n, step in enumerate(steps) if isinstance(step, Names) and step.folder == folder]
        open_ones = [step for n, step in done if n not in self._covered]
        certain = [step for n, step in done if n in self._covered]
        found: list[Listing] = []
        for kept in _in_order(open_ones):
            listing = dict(names)
            for step in [*certain, *(open_ones[at] for at in kept)]:
                for name, inode in step.changes:
                    if inode is None:
                        listing.pop(name, None)
                    else:
                        listing[name] = inode
            if listing not in found:
                found.append(listing)
        return found


def _inode(step: object) -> int:
    if isinstance(step, Names):
        return step.folder
    assert isinstance(step, Write | Truncate)
    return step.inode


def _covered(disk: Disk, number: int) -> set[int]:
    """The numbers of the writes and changes of names that are on disk for certain."""
    found: set[int] = set()
    waiting: dict[int, list[int]] = {}
    for n, step in enumerate(disk.steps[:number]):
        if isinstance(step, Write | Truncate | Names):
            waiting.setdefault(_inode(step), []).append(n)
        elif isinstance(step, Synced | Failed):
            mine = waiting.get(step.inode, [])
            if isinstance(step, Synced):
                found.update(at for at in mine if at < step.began)
            if isinstance(step, Synced) or not disk.kinds[step.inode]:  # of a file: no later sync covers them
                waiting[step.inode] = [at for at in mine if at > step.began]
    return found


def _copies(disk: Disk, number: int) -> dict[Where, list[bytes | None]]:
    """Of each database what may be found of it after a loss of power; the last one is the newest. None: nothing."""
    found: dict[Where, list[bytes | None]] = {}
    for step in disk.steps[:number]:
        if isinstance(step, Committed):
            copies = found.setdefault((step.folder, step.name), [None])
            if step.durable:
                copies.clear()
            if step.data not in copies:
                copies.append(step.data)
    return found


def _content(base: bytes, steps: Sequence[Write | Truncate]) -> bytes:
    data = bytearray(base)
    for step in steps:
        apply(data, step)
    return bytes(data)


def _zeros(step: Write | Truncate) -> Write | Truncate:
    """The size has grown, the data has not come."""
    return step._replace(data=bytes(len(step.data))) if isinstance(step, Write) else step


def _subsets(items: list[int]) -> Iterator[set[int]]:
    """Every one if they are few; else none, beginnings, all but one, one alone."""
    if len(items) <= FEW:
        for size in range(len(items) + 1):
            yield from map(set, itertools.combinations(items, size))
        return
    for at in range(len(items)):
        yield set(items[:at])
        yield set(items) - {items[at]}
        yield {items[at]}


def _in_order(steps: list[Names]) -> Iterator[list[int]]:
    """Which of these changes may have happened: with each one all earlier ones of the same names."""
    needs = [[before for before in range(at) if _touches(steps[before], step)] for at, step in enumerate(steps)]
    kept: list[list[int]] = [[]]
    for at, needed in enumerate(needs):
        more = [[*each, at] for each in kept if all(before in each for before in needed)]
        kept = [*kept, *more]
        if len(kept) > MANY:
            whole = list(range(at + 1))
            kept = [[], *kept[1:-1][:: len(kept) // MANY + 1], whole]
    whole = list(range(len(steps)))
    yield from (each for each in kept if each != whole)
    yield whole


def _touches(one: Names, other: Names) -> bool:
    return bool({name for name, _ in one.changes} & {name for name, _ in other.changes})


Listing = dict[str, int]
Where = tuple[int, str]


def _state(
    disk: Disk, folders: Mapping[int, Listing], files: Mapping[int, bytes | bytearray], copies: Mapping[Where, bytes | None]
) -> State:
    """The tree below BASE: what has no name is not there."""
    state: State = {}
    left = [("", BASE)]
    while left:
        above, folder = left.pop()
        for name, inode in folders.get(folder, {}).items():
            state[above + name] = None if disk.kinds[inode] else bytes(files.get(inode, b""))
            if disk.kinds[inode]:
                left.append((f"{above}{name}/", inode))
        for (inside, name), data in copies.items():
            if inside == folder and data is not None:
                state[above + name] = data
    return state
