"""Files that acpd reads and writes for an agent when no client can (ACP v1 file-system).

Everything blocks and is called in a thread. A path counts where its links lead, and that must be inside the roots. Then it
is walked from its root, folder by folder, and no link is followed any more: one that is put there meanwhile is an error.
Only plain files are opened, so that nothing waits at a FIFO and no device notices.

The store's files are opened for writing in acpd_backends.files and nowhere else. These are not the store's: they belong to
the user, in their mode, and are reached from a root.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Sequence
from typing import BinaryIO

import msgspec
from msgspec import Struct

from acpd.errors import INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND, RequestError
from acpd.wire.envelope import encode

MAX_ANSWER = 8 * 1024 * 1024 - 1024
"""Bytes of an answer: what acpd composes stays below 8 MiB a line."""
MAX_LOOKED_AT = 256 * 1024 * 1024
"""Bytes of a file that are read to find the lines that were asked for."""
_PIECE = 1 << 20
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TO_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Read(Struct, gc=False):
    """`line` counts from 1; `limit` is a number of lines."""

    path: str
    line: int | None = None
    limit: int | None = None


class _Write(Struct, gc=False):
    path: str
    content: str


_decode_read = msgspec.json.Decoder(_Read).decode
_decode_write = msgspec.json.Decoder(_Write).decode


def read(params: bytes, roots: Sequence[str] | None) -> bytes:
    r"""The result of fs/read_text_file for params that are sound; lines end at `\n` and keep their ends.

    Behind the end of the file there is nothing, which is no error. Raises RequestError. `roots` None: the path is what it leads
    to, anywhere; a link in it is an error.
    """
    said = _decode_read(params)
    with _place(said.path, roots, make=False) as (folder, name):
        _check(os.stat(name, dir_fd=folder, follow_symlinks=False), said.path)
        with open(os.open(name, _TO_READ, dir_fd=folder), "rb") as file:
            _check(os.fstat(file.fileno()), said.path)
            data = _lines(file, said)
    try:
        answer = b'{"content":%b}' % encode(data.decode())
    except UnicodeDecodeError as error:
        where = f"the byte at {error.start} of what was asked for" if said.line else f"the byte at {error.start}"
        raise RequestError(INVALID_PARAMS, f"{said.path} is not text in UTF-8: {where} is none") from None
    if len(answer) > MAX_ANSWER:
        raise _too_big(said.path)
    return answer


def _lines(file: BinaryIO, said: _Read) -> bytes:
    first = max(1, said.line or 1)
    end = None if said.limit is None else first + said.limit
    parts: list[bytes] = []
    at, size, looked = 1, 0, 0
    while (end is None or at < end) and (piece := file.readline(_PIECE)):
        looked += len(piece)
        if at >= first:
            parts.append(piece)
            size += len(piece)
        if size > MAX_ANSWER or looked > MAX_LOOKED_AT:
            raise _too_big(said.path)
        if piece.endswith(b"\n"):
            at += 1
    return b"".join(parts)


def _too_big(path: str) -> RequestError:
    return RequestError(
        INVALID_PARAMS,
        f"{path} is too big to be read at once: ask for a part of it by line and limit"
        f" (at most {MAX_ANSWER} bytes, of the first {MAX_LOOKED_AT})",
    )


def write(params: bytes, roots: Sequence[str] | None) -> bytes:
    """The result of fs/write_text_file for params that are sound: the file has what it had or all of this, whatever happens.

    A file that is there keeps its mode; one that is not is made, with the folders above it. `roots` as of `read`. Raises
    RequestError.
    """
    said = _decode_write(params)
    with _place(said.path, roots, make=True) as (folder, name):
        try:
            old = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            old = None
        if old is not None:
            _check(old, said.path)
            if not os.access(name, os.W_OK, dir_fd=folder):  # a file that may not be written is not replaced either
                raise RequestError(INTERNAL_ERROR, f"{said.path}: the file may not be written")
        _replace(folder, name, said.content.encode(), old)
    return b"{}"


def _replace(folder: int, name: str, data: bytes, old: os.stat_result | None) -> None:
    temp = f".acpd-{os.urandom(8).hex()}.tmp"
    fd = os.open(temp, _TO_WRITE, 0o666, dir_fd=folder)
    try:
        with open(fd, "wb", buffering=0) as file:
            if old is not None:  # before there is anything to read in it
                with contextlib.suppress(PermissionError):
                    os.fchown(fd, old.st_uid, old.st_gid)
                os.fchmod(fd, stat.S_IMODE(old.st_mode))
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(fd)
        os.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp, dir_fd=folder)
        raise


# -- where


def resolved(path: str, roots: Sequence[str]) -> tuple[str, str]:
    """The root, and what of `path` is below it ("": it is the root), after links. Raises RequestError."""
    if not os.path.isabs(path) or "\0" in path:
        raise RequestError(INVALID_PARAMS, f"not an absolute path: {path}")
    real = os.path.realpath(path)
    for root in map(os.path.realpath, roots):
        inside = os.path.join(root, "")
        if real == root:
            return root, ""
        if real.startswith(inside):
            return root, real[len(inside) :]
    raise RequestError(INVALID_PARAMS, f"{path} is outside the folders of the session: {', '.join(roots)}")


@contextlib.contextmanager
def _place(path: str, roots: Sequence[str] | None, *, make: bool) -> Generator[tuple[int, str]]:
    """A descriptor of the folder that has this file, and the file's name in it. OSErrors of the body become RequestErrors."""
    try:
        root, below = ("/", os.path.normpath(path).lstrip("/")) if roots is None else resolved(path, roots)
        if not below or path.endswith("/"):
            raise RequestError(INVALID_PARAMS, f"{path} is a folder")
        *folders, name = below.split("/")
        folder = walk(root, folders, make=make)
        try:
            yield folder, name
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise RequestError(RESOURCE_NOT_FOUND, f"{path}: no such file or folder", {"path": path}) from None
    except OSError as error:
        raise RequestError(INTERNAL_ERROR, f"{path}: {error.strerror}") from None


def walk(root: str, names: Sequence[str], *, make: bool = False) -> int:
    """A descriptor of the folder at the end of these names, which the caller closes. Raises OSError where one is a link."""
    folder = os.open(root, _FOLDER)
    try:
        for name in names:
            try:
                deeper = os.open(name, _FOLDER, dir_fd=folder)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
                deeper = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = deeper
    except BaseException:
        os.close(folder)
        raise
    return folder


def _check(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "no plain file"
        raise RequestError(INVALID_PARAMS, f"{path} is {what}")
