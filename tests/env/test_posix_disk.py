"""The real disk and its threads."""

import asyncio
import errno
import os
import threading

import pytest
import uvloop

from kudu_py.env import posix_disk
from kudu_py.env.kernel_aio import DEPTH, open_kernel_aio
from kudu_py.env.posix_disk import (
    LOOP_WRITE_BYTES_MAX,
    SLOW_WRITE_PAUSE_S,
    SLOW_WRITE_S,
    PosixDisk,
    PosixDiskThreads,
)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    def run_on(main):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(main)

    return run_on


def test_a_job_runs_off_the_loop_and_its_result_comes_back_on_it(run):
    async def main():
        threads = PosixDiskThreads()
        here = threading.get_ident()
        assert await threads.run(threading.get_ident) != here
        done = asyncio.get_running_loop().create_future()
        threads.submit(lambda: 7, lambda result: done.set_result((result, threading.get_ident())))
        assert await done == (7, here)
        threads.close()

    run(main())


def test_an_error_of_a_job_reaches_its_caller(run):
    async def main():
        threads = PosixDiskThreads()
        with pytest.raises(FileNotFoundError, match="/nowhere"):
            await threads.run(lambda: threads.disk.open("/nowhere"))
        done = asyncio.get_running_loop().create_future()
        threads.submit(lambda: threads.disk.open("/nowhere"), done.set_result)
        assert isinstance(await done, FileNotFoundError)
        threads.close()

    run(main())


def test_short_jobs_do_not_wait_behind_long_ones(run):
    async def main():
        threads = PosixDiskThreads(background_threads=1)
        gate = threading.Event()
        long_job = asyncio.ensure_future(threads.run(lambda: gate.wait(30)))
        done = asyncio.get_running_loop().create_future()
        threads.submit(lambda: "synced", done.set_result)
        assert await asyncio.wait_for(done, 30) == "synced"
        assert not long_job.done()
        gate.set()
        assert await long_job is True
        threads.close()

    run(main())


def test_a_cancelled_caller_does_not_stop_its_job(run):
    async def main():
        threads = PosixDiskThreads()
        gate, ended = threading.Event(), threading.Event()

        def job():
            gate.wait(30)
            ended.set()

        caller = asyncio.ensure_future(threads.run(job))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        gate.set()
        threads.close()
        assert ended.is_set()

    run(main())


def test_files_and_directories_are_for_their_owner_only(tmp_path):
    disk = PosixDisk()
    disk.make_dir(f"{tmp_path}/d")
    disk.create(f"{tmp_path}/d/f").close()
    assert os.stat(f"{tmp_path}/d").st_mode & 0o777 == 0o700
    assert os.stat(f"{tmp_path}/d/f").st_mode & 0o777 == 0o600


def test_a_write_that_the_kernel_cuts_short_is_continued(tmp_path, monkeypatch):
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: real(fd, [b"".join(buffers)[:5]], offset))
    file = PosixDisk().create(f"{tmp_path}/f")
    file.write(2, [b"0123", b"4567", b"89"])
    assert file.read(2, 20) == b"0123456789"


def test_a_read_that_the_kernel_cuts_short_is_continued(tmp_path, monkeypatch):
    real = os.pread
    file = PosixDisk().create(f"{tmp_path}/f")
    file.write(0, [b"0123456789"])
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 3), offset))
    assert file.read(1, 8) == b"12345678"
    assert file.read(4, 100) == b"456789"


def write_and_sync(threads, file, offset, buffers):
    """The outcome of one write, checked not to come from within the call."""
    outcome = asyncio.get_running_loop().create_future()
    threads.write_and_sync(file, offset, buffers, outcome.set_result)
    assert not outcome.done()
    return outcome


@pytest.mark.parametrize("kernel_aio", [True, False], ids=["kernel", "threads"])
@pytest.mark.parametrize("size", [10, LOOP_WRITE_BYTES_MAX + 1], ids=["small", "large"])
def test_what_was_written_and_synced_is_in_the_file(run, tmp_path, kernel_aio, size):
    async def main():
        threads = PosixDiskThreads(kernel_aio=kernel_aio)
        files = [threads.disk.create(f"{tmp_path}/{i}") for i in range(100)]
        written = [write_and_sync(threads, file, i, [bytes([i]) * (size - 3), b"abc"]) for i, file in enumerate(files)]
        assert await asyncio.gather(*written) == [None] * len(files)
        for i, file in enumerate(files):
            assert file.read(i, size + 1) == bytes([i]) * (size - 3) + b"abc"
        threads.close()

    run(main())


@pytest.mark.parametrize("kernel_aio", [True, False], ids=["kernel", "threads"])
def test_an_error_of_a_write_or_a_sync_names_the_file(run, tmp_path, kernel_aio):
    async def main():
        threads = PosixDiskThreads(kernel_aio=kernel_aio)
        threads.disk.create(f"{tmp_path}/a").close()
        error = await write_and_sync(threads, threads.disk.open(f"{tmp_path}/a"), 0, [b"x"])
        assert (error.errno, error.filename) == (errno.EBADF, f"{tmp_path}/a")

        os.mkfifo(f"{tmp_path}/fifo")
        reader = os.open(f"{tmp_path}/fifo", os.O_RDONLY | os.O_NONBLOCK)
        fifo = threads.disk.open(f"{tmp_path}/fifo", writable=True)
        error = await write_and_sync(threads, fifo, 0, [])  # nothing to write, and a fifo cannot be synced
        assert (error.errno, error.filename) == (errno.EINVAL, f"{tmp_path}/fifo")
        os.close(reader)
        threads.close()

    run(main())


def test_after_a_write_that_had_to_wait_for_the_disk_threads_wait_in_the_loops_place(run, tmp_path, monkeypatch):
    wrote_on = []

    async def main():
        threads = PosixDiskThreads()
        here = threading.get_ident()
        file, real, now_s = threads.disk.create(f"{tmp_path}/a"), os.pwritev, 1000.0

        def pwritev(fd, buffers, offset):
            wrote_on.append(threading.get_ident() == here)
            nonlocal now_s
            now_s += 2 * SLOW_WRITE_S if len(wrote_on) == 1 else 0
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "pwritev", pwritev)
        monkeypatch.setattr(posix_disk, "elapsing_s", lambda: now_s)
        for _ in range(2):
            await write_and_sync(threads, file, 0, [b"x"])
        now_s += SLOW_WRITE_PAUSE_S
        await write_and_sync(threads, file, 0, [b"x"])
        threads.close()

    run(main())
    assert wrote_on == [True, False, True]


def test_the_kernel_says_when_it_takes_no_more_and_what_it_took_ends(run, tmp_path):
    async def main():
        loop = asyncio.get_running_loop()
        aio = open_kernel_aio(loop)
        if aio is None:
            pytest.skip("this kernel or sandbox has no asynchronous I/O")
        file = PosixDisk().create(f"{tmp_path}/a")
        ended, all_ended, taken = [], loop.create_future(), 0

        def done(error_number):
            ended.append(error_number)
            if len(ended) == taken:
                all_ended.set_result(None)

        while aio.fdatasync(file.fileno(), done):
            taken += 1
        assert taken >= DEPTH
        await all_ended
        assert ended == [0] * taken
        assert aio.under_way == 0
        assert aio.fdatasync(file.fileno(), lambda _: None)
        aio.close()

    run(main())


def test_one_that_fails_when_told_does_not_keep_the_others_from_being_told(run, tmp_path):
    async def main():
        loop = asyncio.get_running_loop()
        aio = open_kernel_aio(loop)
        if aio is None:
            pytest.skip("this kernel or sandbox has no asynchronous I/O")
        file, told, raised = PosixDisk().create(f"{tmp_path}/a"), loop.create_future(), loop.create_future()
        loop.set_exception_handler(lambda _, context: raised.set_result(str(context["exception"])))

        def fail(_):
            raise AssertionError("a bug")

        assert aio.fdatasync(file.fileno(), fail)
        assert aio.fdatasync(file.fileno(), told.set_result)  # the kernel may end them in any order
        assert await told == 0
        assert await raised == "a bug"
        aio.close()

    run(main())
