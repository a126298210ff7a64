"""The real disk and its threads."""

import asyncio
import os
import threading

import pytest
import uvloop

from kudu_py.env.posix_disk import PosixDisk, PosixDiskThreads


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
