"""The module that writes the files of the store."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

import pytest

from acpd.errors import StoreError
from acpd_backends.files import FILES, Files, failed
from tests.support.paths import ROOT


class Recorded(Files):
    """Notes each call, and fails the one that it is told to."""

    def __init__(self, fail: str = "", *, short: int = 0) -> None:
        self.calls: list[str] = []
        self.fail = fail
        self.short = short

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fail:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._note("write")
        return super().write(fd, data[: self.short] if self.short else data)

    def fdatasync(self, fd: int) -> None:
        self._note("fdatasync")
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._note("fsync")
        super().fsync(fd)

    def replace(self, source: Path, target: Path) -> None:
        self._note("replace")
        super().replace(source, target)

    def mkdir(self, path: Path) -> bool:
        self._note("mkdir")
        return super().mkdir(path)


def test_atomic_writing_syncs_before_and_after_the_rename(tmp_path: Path) -> None:
    """The bytes are on disk before the name is, and the folder last; without sync nothing is synced."""
    files = Recorded()
    files.write_atomic(tmp_path / "a", b"one", sync=True)
    assert ["write", "fdatasync", "replace", "fsync"] == files.calls
    files.calls.clear()
    files.write_atomic(tmp_path / "a", b"two", sync=False)
    assert ["write", "replace"] == files.calls
    assert b"two" == (tmp_path / "a").read_bytes()
    assert 0o600 == stat.S_IMODE((tmp_path / "a").stat().st_mode)


@pytest.mark.parametrize("step", ["write", "fdatasync", "replace"])
def test_a_failed_atomic_write_leaves_the_old_file(tmp_path: Path, step: str) -> None:
    """Whatever step fails: the old bytes stay, and no temporary file does."""
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OSError, match="No space"):
        Recorded(step).write_atomic(tmp_path / "a", b"new", sync=True)
    assert {"a": b"old"} == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_short_writes_are_continued(tmp_path: Path) -> None:
    """A write(2) that takes less than all is followed by one with the rest."""
    files = Recorded(short=2)
    files.write_atomic(tmp_path / "a", b"12345", sync=False)
    assert (b"12345", 3) == ((tmp_path / "a").read_bytes(), files.calls.count("write"))


def test_open_append(tmp_path: Path) -> None:
    """A log's descriptor appends, does not block, closes on exec; create refuses a file that is there."""
    fd = FILES.open_append(tmp_path / "a", create=True)
    try:
        flags = os.get_blocking(fd), os.get_inheritable(fd)
        assert (False, False) == flags
        (tmp_path / "a").write_bytes(b"x")
        FILES.write(fd, b"y")
        assert b"xy" == (tmp_path / "a").read_bytes()
        with pytest.raises(FileExistsError):
            FILES.open_append(tmp_path / "a", create=True)
        with pytest.raises(FileNotFoundError):
            FILES.open_append(tmp_path / "b", create=False)
    finally:
        FILES.close(fd)


def test_folders_are_private_and_synced_where_they_are_made(tmp_path: Path) -> None:
    """Each folder that is made is 0700 and its parent is synced; those that are there cost nothing."""
    files = Recorded()
    (tmp_path / "other").touch()
    files.make_folders(tmp_path / "a" / "b", sync=True)
    assert ["mkdir", "fsync", "mkdir", "fsync"] == files.calls
    assert 0o700 == stat.S_IMODE((tmp_path / "a").stat().st_mode)
    (tmp_path / "a" / "b" / "c").touch()
    files.calls.clear()
    files.make_folders(tmp_path / "a" / "b", sync=True)
    assert files.calls == []


def test_an_empty_folder_may_have_no_name_on_disk_yet(tmp_path: Path) -> None:
    """Whoever made it may have been killed before its name was synced; without sync nobody asks."""
    (tmp_path / "a").mkdir()
    files = Recorded()
    files.make_folders(tmp_path / "a", sync=False)
    assert [] == files.calls
    files.make_folders(tmp_path / "a", sync=True)
    files.make_folders(tmp_path / "a" / "b", sync=True)
    assert ["fsync", "fsync", "mkdir", "fsync"] == files.calls


def test_a_cut_tail_is_kept_first(tmp_path: Path) -> None:
    """What is cut off is on disk elsewhere before it is cut; if that fails nothing is cut."""
    path = tmp_path / "a"
    path.write_bytes(b"whole\ntorn")
    with pytest.raises(OSError, match="No space"):
        Recorded("write").truncate_tail(path, 6, tmp_path / "kept")
    assert b"whole\ntorn" == path.read_bytes()
    FILES.truncate_tail(path, 6, tmp_path / "kept")
    assert (b"whole\n", b"torn") == (path.read_bytes(), (tmp_path / "kept").read_bytes())


def test_remove_tree_does_not_follow_links(tmp_path: Path) -> None:
    """A link in a folder that is removed goes; what it points to stays. Absent is no error."""
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "file").touch()
    (tmp_path / "gone" / "deep").mkdir(parents=True)
    (tmp_path / "gone" / "deep" / "file").touch()
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "keep")
    FILES.remove_tree(tmp_path / "gone")
    FILES.remove_tree(tmp_path / "gone")
    assert ["keep"] == [path.name for path in tmp_path.iterdir()]
    assert (tmp_path / "keep" / "file").exists()


def test_write_again_changes_nothing(tmp_path: Path) -> None:
    """Writing a range again in place leaves the file as it is."""
    (tmp_path / "a").write_bytes(bytes(range(256)) * 5000)
    FILES.write_again(tmp_path / "a", 100, 1_270_000)
    assert bytes(range(256)) * 5000 == (tmp_path / "a").read_bytes()


@pytest.mark.parametrize(
    ("number", "hint", "retryable"),
    [(errno.ENOSPC, "disk full", True), (errno.EACCES, "rights", True), (errno.EIO, "", True), (errno.ENAMETOOLONG, "", False)],
)
def test_failures_say_what_to_do(number: int, hint: str, retryable: bool) -> None:
    """An OSError becomes a StoreError that names operation, object and cause, and where there is one the next step."""
    error = failed("append to", "the log of session s", OSError(number, os.strerror(number)))
    assert isinstance(error, StoreError)
    assert (retryable, True) == (error.retryable, hint in error.hint)
    assert f"cannot append to the log of session s: {os.strerror(number)}" == error.message


def test_who_opens_files_for_writing() -> None:
    """In the product only two modules do: one for the store, one for what an agent writes. Others open /dev/null, or stderr."""
    opening = re.compile(r"""os\.open\(|\.write_(text|bytes)\(|(?<![.\w])open\([^)]*"[rb]*[wax+]|\.open\("[rb]*[wax+]""")
    harmless = re.compile(
        r"os\.devnull|O_RDONLY|O_PATH|open\(2, |await \w+\.write_text\(|/proc/self/fd|_TO_READ|flags \| os\.O_NONBLOCK"
        r"|os\.open\((\"/\"|name), flags"  # of what a tool reads, by one of two kinds
    )
    found = {
        str(path.relative_to(ROOT))
        for folder in ("acpd", "backends")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if opening.search(line) and not harmless.search(line)
    }
    assert {"backends/acpd_backends/files.py", "acpd/agents/files.py"} == found
