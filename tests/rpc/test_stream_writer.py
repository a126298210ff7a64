"""A stream's writes, one at a time, on coroutines that wait and fail as grpcio's do."""

import asyncio
import gc

import pytest

from kudu_py.rpc.stream_writer import StreamWriter
from kudu_py.testing import sim_loop


class Pipe:
    """A stream that takes a message when it is told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.taken: list[str] = []
        self.gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write(self, message: str) -> None:
        self.begun.append(message)
        gate = self.gate
        await gate
        self.taken.append(message)

    def open(self) -> None:
        gate, self.gate = self.gate, asyncio.get_running_loop().create_future()
        gate.set_result(None)

    def fail(self, error: BaseException) -> None:
        self.gate.set_exception(error)


def test_a_write_begins_at_once_and_the_next_when_it_has_ended():
    async def main() -> None:
        pipe, waiting = Pipe(), ["b", "c"]
        writer = StreamWriter(pipe, lambda: writer.write(waiting.pop(0)) if waiting else None)
        writer.write("a")
        assert pipe.begun == ["a"]
        for done in (["a"], ["a", "b"], ["a", "b", "c"]):
            assert not writer.is_free
            pipe.open()
            await asyncio.sleep(0)
            assert pipe.taken == done
        assert writer.is_free
        assert not writer.broken.done()

    sim_loop.run(main())


def test_a_write_that_ends_or_yields_without_waiting_counts_as_well():
    class Eager:
        def __init__(self) -> None:
            self.taken: list[int] = []

        async def write(self, message: int) -> None:
            if message % 2:
                await asyncio.sleep(0)
            self.taken.append(message)

    async def main() -> None:
        stream, waiting = Eager(), [1, 2, 3]
        writer = StreamWriter(stream, lambda: writer.write(waiting.pop(0)) if waiting else None)
        writer.write(0)
        await asyncio.sleep(1)
        assert stream.taken == [0, 1, 2, 3]
        assert writer.is_free

    sim_loop.run(main())


@pytest.mark.parametrize("error", [asyncio.InvalidStateError("finished"), asyncio.CancelledError(), OSError()])
def test_a_write_that_fails_breaks_the_writer(error):
    async def main() -> None:
        pipe, called = Pipe(), []
        writer = StreamWriter(pipe, lambda: called.append(1))
        writer.write("a")
        pipe.fail(error)
        await asyncio.sleep(0)
        assert writer.broken.done()
        assert not writer.is_free
        assert called == []

    sim_loop.run(main())


def test_nothing_is_called_after_close():
    async def main() -> None:
        pipe, called = Pipe(), []
        writer = StreamWriter(pipe, lambda: called.append(1))
        writer.write("a")
        writer.close()
        pipe.open()
        await asyncio.sleep(1)
        assert (pipe.taken, called) == ([], [])
        assert not writer.is_free

    sim_loop.run(main())


def test_how_a_write_ends_that_was_given_up_is_nobodys_business():
    async def main() -> None:
        loop, told = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: told.append(context["message"]))
        pipe = Pipe()
        writer = StreamWriter(pipe, lambda: None)
        writer.write("a")
        writer.close()
        pipe.fail(OSError("the peer has died"))
        del pipe, writer
        await asyncio.sleep(1)
        gc.collect()
        assert told == []

    sim_loop.run(main())
