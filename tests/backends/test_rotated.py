"""The file of acpd's own log: begun anew when it is full, a few old ones kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acpd_backends.rotated import RotatedFile


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_rotation(tmp_path: Path) -> None:
    """No line is divided, no file is larger than its size, the newest old one is .1, and older ones go."""
    file = RotatedFile(str(tmp_path / "x.log"), size=8, keep=2)
    for number in range(8):
        file.write(b"l%d\n" % number)
    file.write(b"a long line\n")
    file.close()
    assert {"x.log": b"a long line\n", "x.log.1": b"l6\nl7\n", "x.log.2": b"l4\nl5\n"} == kept(tmp_path)


def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    """What is there counts; of old ones only so many stay as are wanted now."""
    first = RotatedFile(str(tmp_path / "x.log"), size=4, keep=5)
    for number in range(5):
        first.write(b"l%d\n" % number)
    first.close()
    again = RotatedFile(str(tmp_path / "x.log"), size=4, keep=1)
    again.write(b"new\n")
    again.close()
    assert {"x.log": b"new\n", "x.log.1": b"l4\n"} == kept(tmp_path)


def test_none_is_kept(tmp_path: Path) -> None:
    """With `keep` 0 there is one file."""
    file = RotatedFile(str(tmp_path / "x.log"), size=4, keep=0)
    for number in range(3):
        file.write(b"l%d\n" % number)
    file.close()
    assert {"x.log": b"l2\n"} == kept(tmp_path)


def test_rights(tmp_path: Path) -> None:
    """File and folder are their owner's alone, whatever the umask."""
    old = os.umask(0)
    try:
        file = RotatedFile(str(tmp_path / "logs" / "x.log"), size=4, keep=0)
        file.write(b"l\n")
        file.close()
    finally:
        os.umask(old)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("logs", "logs/x.log")]
    assert [0o700, 0o600] == modes


def test_a_folder_that_goes_and_comes(tmp_path: Path) -> None:
    """A line that cannot be written is an error, and the next one tries again."""
    (tmp_path / "logs").write_text("in the way")
    file = RotatedFile(str(tmp_path / "logs" / "x.log"), size=100, keep=0)
    with pytest.raises(OSError, match="logs"):
        file.write(b"l1\n")
    (tmp_path / "logs").unlink()
    file.write(b"l2\n")
    file.reopen()
    (tmp_path / "logs" / "x.log").rename(tmp_path / "moved")
    file.write(b"l3\n")
    file.close()
    assert (b"l2\n", b"l3\n") == ((tmp_path / "moved").read_bytes(), (tmp_path / "logs" / "x.log").read_bytes())
