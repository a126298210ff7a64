"""Recent records: bounded by log and by server, and never short of what is not durable."""

from kudu_py.wal.recent import CacheBudget, RecentRecords


def filled(make_records, budget, first, last, durable, bytes_max=1 << 20):
    cache = RecentRecords(bytes_max, budget)
    cache.append(make_records(1, first, last, 100), 100 * (last - first + 1))
    cache.note_durable(durable)
    return cache


def test_what_is_not_durable_stays_whatever_the_bound(make_records):
    cache = filled(make_records, None, 1, 10, durable=0, bytes_max=300)
    assert (cache.first_index, cache.size_bytes) == (1, 1000)
    cache.note_durable(5)
    assert (cache.first_index, cache.size_bytes) == (6, 500)
    cache.note_durable(10)
    assert (cache.first_index, cache.size_bytes) == (8, 300)


def test_truncated_records_are_gone_and_not_counted(make_records):
    budget = CacheBudget(1 << 20)
    cache = filled(make_records, budget, 1, 10, durable=10)
    cache.truncate_after(4)
    assert cache.size_bytes == budget.size_bytes == 400
    cache.append(make_records(2, 5, 6, 100), 200)
    assert cache.get(4, 9, 1 << 20) == make_records(1, 4, 4, 100) + make_records(2, 5, 6, 100)
    cache.release(100)
    assert cache.get(5, 6, 1 << 20) == make_records(2, 5, 6, 100)
    assert cache.get(4, 6, 1 << 20) is None


def test_the_longest_quiet_log_gives_way_first(make_records):
    budget = CacheBudget(2_500)
    quiet = filled(make_records, budget, 1, 10, durable=10)
    busy = filled(make_records, budget, 1, 10, durable=10)
    third = filled(make_records, budget, 1, 10, durable=0)
    assert [cache.size_bytes for cache in (quiet, busy, third)] == [500, 1000, 1000]
    assert quiet.first_index == 6
    third.append(make_records(1, 11, 25, 100), 1500)
    assert [cache.size_bytes for cache in (quiet, busy, third)] == [0, 0, 2500]
    third.append(make_records(1, 26, 30, 100), 500)
    assert budget.size_bytes == 3_000  # not durable: kept
    third.note_durable(30)
    third.append(make_records(1, 31, 31, 100), 100)
    assert budget.size_bytes == 2_500


def test_a_closed_log_gives_everything_back(make_records):
    budget = CacheBudget(2_500)
    cache = filled(make_records, budget, 1, 10, durable=10)
    cache.clear()
    assert budget.size_bytes == cache.size_bytes == 0
    assert cache.first_index is None
