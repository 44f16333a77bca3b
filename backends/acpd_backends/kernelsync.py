"""fdatasync without threads: Linux does many at once and says on a descriptor which are done (io_submit(2), eventfd(2)).

A thread that comes back from fdatasync wants the interpreter, and so do the others and the event loop: handing it round costs
several times what the sync does (73 us of a CPU for each of 64, against 6). Where this cannot be had - another system, a
sandbox, no contexts left - the committer keeps to its threads.

ctypes is imported with the first sync (3 ms).
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

SLOTS = 128
"""Syncs that the kernel has at most."""

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2), "riscv64": (0, 1, 4, 2)}
"""Of io_setup, io_destroy, io_getevents, io_submit; all of these machines have the low byte first."""
_IOCB = struct.Struct("<QIIHhiQQqQII")
"""aio_data, aio_key, aio_rw_flags, lio_opcode, reqprio, fildes, buf, nbytes, offset, reserved, flags, resfd."""
_EVENT = struct.Struct("<QQqq")
"""data, obj, res (a negative errno), res2."""
_FDSYNC, _RESFD = 3, 1

Done = Callable[[OSError | None], object]


class KernelSyncs:
    """A queue in the kernel, for one event loop."""

    def __init__(self, call: Callable[..., int], context: Any, numbers: tuple[int, int, int, int]) -> None:
        """Of `opened`."""
        import ctypes

        self._call, self._context = call, context
        _, self._destroy, self._getevents, self._submit = numbers
        self._blocks = ctypes.create_string_buffer(_IOCB.size * SLOTS)
        self._events = ctypes.create_string_buffer(_EVENT.size * SLOTS)
        self._pointers = (ctypes.c_void_p * SLOTS)()
        self._address = ctypes.addressof(self._blocks)
        self._free = list(range(SLOTS))
        self._done: dict[int, Done] = {}
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        asyncio.get_running_loop().add_reader(self._ready, self._collect)

    def take(self, syncs: Sequence[tuple[int, Done]]) -> int:
        """How many of these descriptors the kernel took, the first ones; each one's `done` is then called on the loop, once.

        Those that it did not take - no slot, or nothing that can be synced - somebody else has to do, and to tell why not.
        """
        slots = [self._free.pop() for _ in syncs[: len(self._free)]]
        for place, (slot, (descriptor, _)) in enumerate(zip(slots, syncs, strict=False)):
            block = (slot, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _RESFD, self._ready)
            _IOCB.pack_into(self._blocks, slot * _IOCB.size, *block)
            self._pointers[place] = self._address + slot * _IOCB.size
        taken = max(0, self._call(self._submit, self._context, len(slots), self._pointers)) if slots else 0
        self._done.update((slot, done) for slot, (_, done) in zip(slots[:taken], syncs, strict=False))
        self._free += slots[taken:]
        return taken

    def _collect(self) -> None:
        os.eventfd_read(self._ready)
        count = self._call(self._getevents, self._context, 0, SLOTS, self._events, None)
        loop = asyncio.get_running_loop()
        for number in range(max(0, count)):
            slot, _, result, _ = _EVENT.unpack_from(self._events, number * _EVENT.size)
            self._free.append(slot)
            error = OSError(-result, os.strerror(-result)) if result else None
            loop.call_soon(self._done.pop(slot), error)  # each for itself: one that raises costs no other its word

    async def close(self) -> None:
        """After the last one is done."""
        asyncio.get_running_loop().remove_reader(self._ready)
        os.close(self._ready)
        await asyncio.to_thread(self._call, self._destroy, self._context)  # some milliseconds


def opened() -> KernelSyncs | None:
    """On the running loop; None where the system has no such thing, or none to give."""
    numbers = _NUMBERS.get(os.uname().machine) if hasattr(os, "eventfd") else None
    if numbers is None:
        return None
    import ctypes

    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    context = ctypes.c_ulong(0)
    if call(numbers[0], SLOTS, ctypes.byref(context)) != 0:
        return None
    return KernelSyncs(call, context, numbers)
