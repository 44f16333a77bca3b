"""Names from outside as names of files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.errors import StoreError
from acpd.storage.contract import Key
from acpd_backends.names import NAME_SUFFIX, Layout, contained, decode, encode, is_hashed, recall, remember

NAMES = [
    "..",
    ".",
    "a/b",
    "a b",
    "YSBiL2M",
    "A",
    "a",
    "x.log",
    "x",
    "CON",
    "n" * 300,
    "N" * 300,
    "\U0001f600",
    "\ud83d",
    "\x00",
]
ANY = st.text(st.characters(codec=None), min_size=1)


@given(ANY)
def test_encoding_is_reversible_and_tame(name: str) -> None:
    """An encoded name has only a-z 0-9 _ - and escapes, at most 200 bytes, and decodes to what it was."""
    text = encode(name)
    assert len(text) <= 200
    if is_hashed(text):
        assert re.fullmatch(r"~[0-9a-f]{40}", text)
    else:
        assert re.fullmatch(r"(?:[a-z0-9_-]|%[0-9a-f]{2})+", text)
        assert name == decode(text)


@given(ANY, ANY)
def test_different_names_stay_different(one: str, other: str) -> None:
    """Two names never share a file, also where the file system ignores case."""
    assert (one == other) == (encode(one).lower() == encode(other).lower())


@given(st.text("abc%~.A2e/\ud800", max_size=12))
def test_decoding_takes_only_what_encoding_makes(text: str) -> None:
    """Whatever is decoded encodes to the same text; the rest is a ValueError."""
    try:
        name = decode(text)
    except ValueError:
        return
    assert text == encode(name)


def test_the_empty_name_is_refused() -> None:
    """There is no file for the empty name, and the error says what to do."""
    with pytest.raises(StoreError, match="empty name"):
        encode("")


@pytest.mark.parametrize("prefix", ["", "u-"])
def test_odd_names_come_back_from_a_folder(tmp_path: Path, prefix: str) -> None:
    """Names that something once took for something else are distinct files, and a listing gives the originals."""
    for name in NAMES:
        (tmp_path / remember(tmp_path, name, prefix=prefix)).touch()
    files = [path.name for path in tmp_path.iterdir() if not path.name.endswith(NAME_SUFFIX)]
    assert len(NAMES) == len({name.lower() for name in files})
    recalled = [recall(tmp_path, file, prefix=prefix) for file in files]
    assert set(NAMES) == set(recalled)


def test_foreign_files_are_not_recalled(tmp_path: Path) -> None:
    """A name that we never make is none of ours; neither is a hash whose name is gone or another's."""
    hashed = remember(tmp_path, "n" * 300)
    assert "n" * 300 == recall(tmp_path, hashed)
    (tmp_path / (hashed + NAME_SUFFIX)).write_text("other")
    assert [None] * 6 == [recall(tmp_path, text) for text in ("A", "a.b", "%41%", "%61", "~" + "0" * 40, hashed)]
    assert recall(tmp_path, "x", prefix="u-") is None


@pytest.mark.parametrize("path", ["/r/../x", "/r", "/rx", "/r/a/../../x", "/"])
def test_nothing_resolves_outside_the_root(path: str) -> None:
    """A path that leaves the root, or is the root, is refused."""
    with pytest.raises(StoreError, match="outside"):
        contained(Path("/r"), Path(path))
    assert Path("/r/a") == contained(Path("/r"), Path("/r/a"))


@pytest.mark.parametrize("user", [None, *NAMES])
@pytest.mark.parametrize("per_agent", [True, False])
def test_every_path_of_a_layout_is_inside(tmp_path: Path, user: str | None, per_agent: bool) -> None:
    """Whatever user, agent and session are called, their folders lie below the root and are told apart again."""
    layout = Layout(tmp_path, per_agent)
    for name in NAMES:
        key = Key(name, name, user)
        for path in (layout.sessions(key), layout.context(key), layout.private(user)):
            assert tmp_path in path.parents
            assert ".." not in path.parts
        layout.make(key, "sessions", sync=False)
    assert ({None, user}) == set(layout.users())
    assert (sorted(NAMES) if per_agent else [None]) == sorted((agent for agent, _ in layout.places(user)), key=str)


def test_users_and_agents_do_not_mix(tmp_path: Path) -> None:
    """What one user has is not among another's; files and links are no agents."""
    layout = Layout(tmp_path)
    layout.make(Key("a", "s"), "sessions", sync=False)
    layout.make(Key("b", "s", "alice"), "sessions", sync=False)
    (tmp_path / "agents" / "file").touch()
    (tmp_path / "agents" / "link").symlink_to(tmp_path)
    (tmp_path / "agents" / "Foreign").mkdir()
    assert [["a"], ["b"], []] == [[agent for agent, _ in layout.places(user)] for user in (None, "alice", "bob")]
