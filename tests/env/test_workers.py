"""Work off the loop."""

import threading

import pytest

from kudu_py.env.workers import InlineWorkers, ThreadWorkers


@pytest.mark.parametrize("kind", [ThreadWorkers, InlineWorkers])
async def test_result_and_error_come_back(kind):
    workers = kind()
    assert await workers.run(divmod, 17, 5) == (3, 2)
    with pytest.raises(ZeroDivisionError):
        await workers.run(divmod, 1, 0)


async def test_threads_do_the_work():
    workers = ThreadWorkers(1)
    assert await workers.run(threading.get_ident) != threading.get_ident()
    workers.close()
