"""`KernelAio`: fdatasync without a thread, through Linux's asynchronous I/O (`io_submit(2)`).

A sync on a thread costs some eight switches between threads, most of them for the interpreter lock; here the kernel
waits, and the event loop is woken through an eventfd. Only the sync goes this way: the kernel would carry out a
buffered write within `io_submit` all the same.

There is no binding to these four calls in the standard library or on the package index that is alive; they are made
through ctypes. Where the kernel or a sandbox does not allow them, `open_kernel_aio` says so, and threads do the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable

DEPTH = 1024
"""Syncs under way at most; each log has one."""

_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""io_setup, io_destroy, io_getevents, io_submit."""
_FDSYNC = 3
_FLAG_RESFD = 1
_IOCB = struct.Struct("<QIIHhIQQqQII")
"""data, key, rw_flags, opcode, priority, fd, buffer, bytes, offset, reserved, flags, eventfd."""
_EVENT = struct.Struct("<QQqq")
"""data, the iocb's address, result, second result."""
_EVENTS = 64

Done = Callable[[int], None]
"""Gets 0, or the number of an error."""


def open_kernel_aio(loop: asyncio.AbstractEventLoop) -> KernelAio | None:
    """The kernel's asynchronous I/O for this loop; None where there is none, or it is not allowed."""
    numbers = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        return None
    with contextlib.suppress(OSError):
        return KernelAio(loop, numbers)
    return None


class KernelAio:
    """Syncs of files on their way in the kernel. For the loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, numbers: tuple[int, int, int, int]) -> None:
        """Raises OSError if the kernel refuses; use `open_kernel_aio`."""
        self._loop = loop
        setup, self._destroy_number, self._getevents_number, self._submit_number = numbers
        # Without giving the interpreter lock up: none of these calls waits.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        context = ctypes.c_ulong(0)
        if self._call(ctypes.c_long(setup), ctypes.c_long(DEPTH), ctypes.byref(context)) < 0:
            error_number = ctypes.get_errno()
            os.close(self._eventfd)
            raise OSError(error_number, os.strerror(error_number), "io_setup")
        self._context = context
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._events = ctypes.create_string_buffer(_EVENT.size * _EVENTS)
        # The arguments of the two frequent calls never change, only what they point to.
        self._submit_args = (ctypes.c_long(self._submit_number), context, ctypes.c_long(1), self._iocbs)
        self._reap_args = (
            ctypes.c_long(self._getevents_number),
            context,
            ctypes.c_long(0),
            ctypes.c_long(_EVENTS),
            self._events,
            ctypes.c_void_p(None),
        )
        self._under_way: dict[int, Done] = {}
        self._last_id = 0
        loop.add_reader(self._eventfd, self._reap)

    @property
    def under_way(self) -> int:
        """Syncs that have not ended."""
        return len(self._under_way)

    def fdatasync(self, fd: int, done: Done) -> bool:
        """Begins to sync a file; `done` is called on the loop, never from within. Whether the kernel took it: if not,
        `done` is never called, and the caller syncs in another way."""
        self._last_id += 1
        _IOCB.pack_into(
            self._iocb, 0, self._last_id, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _FLAG_RESFD, self._eventfd
        )  # fmt: skip
        if self._call(*self._submit_args) != 1:
            return False
        self._under_way[self._last_id] = done
        return True

    def close(self) -> None:
        """Tells of no further end. What is under way ends in the kernel."""
        self._loop.remove_reader(self._eventfd)
        if not self._under_way:  # it would wait for them, and a disk may never answer
            self._call(ctypes.c_long(self._destroy_number), self._context)
        self._under_way.clear()
        os.close(self._eventfd)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        while (count := self._call(*self._reap_args)) > 0:
            ended = [_EVENT.unpack_from(self._events, i * _EVENT.size) for i in range(count)]
            for number, _, result, _ in ended:
                self._tell(self._under_way.pop(number), -result)
            if count < _EVENTS:
                return

    def _tell(self, done: Done, error_number: int) -> None:
        try:
            done(error_number)
        except Exception as error:
            # As any callback of the loop; the others are told all the same.
            self._loop.call_exception_handler({"message": "the end of a sync could not be told", "exception": error})
