"""`StreamWriter`: the writing end of a gRPC stream, driven without a task.

A task that waits for something to write costs a future, a turn of the loop and a switch to it between having a message
and sending it; for small writes that is a good part of all there is to do. So the coroutine that grpcio gives for a
write is taken through its steps here: the first at once, each other when what it waits for is done. One write at a
time, as grpcio demands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol


class Stream(Protocol):
    """What is needed of a grpc.aio stream."""

    def write(self, request: Any, /) -> Coroutine[Any, Any, None]:
        """Hands a message over."""


class StreamWriter:
    """Writes to one stream. Bound to one event loop.

    Attributes:
        is_free: a message can be written now.
        broken: done when a write has failed; whoever reads the stream learns the call's status.
        error: what that write raised.
    """

    def __init__(self, stream: Stream, on_free: Callable[[], None]) -> None:
        """
        Args:
            on_free: called when a write has ended and the next can begin; never from within `write`.
        """
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._on_free = on_free
        self._writing: Coroutine[Any, Any, None] | None = None
        self._is_closed = False
        self.is_free = True
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self.error: BaseException | None = None

    def write(self, message: object) -> None:
        """Begins to write a message; does not wait."""
        assert self.is_free, "one write at a time"
        self.is_free = False
        self._writing = self._stream.write(message)
        if self._step():
            self._loop.call_soon(self._free)

    def close(self) -> None:
        """Gives the write under way up; nothing is called any more."""
        self._is_closed = True
        self.is_free = False
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()

    def _step(self) -> bool:
        """Takes the write as far as it goes without waiting; whether it has ended well."""
        writing = self._writing
        if writing is None:
            return False  # closed
        try:
            awaited = writing.send(None)
        except StopIteration:
            self._writing = None
            return True
        except (Exception, asyncio.CancelledError) as error:
            # The stream is no more; grpcio says so in several ways, and says why to the reader.
            self._writing = None
            if not self.broken.done():
                self.error = error
                self.broken.set_result(None)
            return False
        if awaited is None:
            self._loop.call_soon(self._resume)
        else:
            awaited.add_done_callback(self._resume)
        return False

    def _resume(self, awaited: asyncio.Future[Any] | None = None) -> None:
        if self._writing is None and awaited is not None and not awaited.cancelled():
            awaited.exception()  # of a write that was given up: asyncio would log that nobody has asked for it
        if self._step():
            self._free()

    def _free(self) -> None:
        if not self._is_closed:
            self.is_free = True
            self._on_free()
