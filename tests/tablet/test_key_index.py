"""The key index, hot and cold: everything put in is found, whatever the hashes."""

from __future__ import annotations

import numpy as np
import pytest

from kudu_py.env.posix_disk import PosixDisk
from kudu_py.tablet.key_index import DeadRows
from kudu_py.tablet.key_index_cold import KeyRun, may_merge, merge_runs, write_run
from kudu_py.tablet.key_index_hot import HotIndex


def _hashes(rng, n):
    return rng.integers(0, 1 << 64, n, dtype=np.uint64) | np.uint64(1 << 32)


def _verifier(hashes, stored):
    """Row ids are numbers in `stored`; a key is its hash."""
    return lambda rows, candidates: stored[candidates] == hashes[rows]


def _find(index, hashes, stored):
    return index.find(hashes, _verifier(hashes, stored))


@pytest.mark.parametrize("sizes", [[1] * 300, [7] * 500, [1700] * 30, [100_000], [60_000, 1, 1, 30_000, 5]])
def test_what_is_inserted_is_found_and_what_is_not_is_not(sizes):
    rng = np.random.default_rng(1)
    stored = _hashes(rng, sum(sizes))
    index = HotIndex()
    at = 0
    for size in sizes:
        rows = np.arange(at, at + size)
        assert (_find(index, stored[rows], stored) == -1).all()
        index.insert(stored[rows], rows)
        at += size
    everything = np.arange(at)
    rng.shuffle(everything)
    assert np.array_equal(_find(index, stored[everything], stored), everything)
    assert (_find(index, _hashes(rng, 10_000), stored) == -1).all()
    assert np.array_equal(np.sort(np.concatenate(list(index.row_ids()))), np.arange(at))
    assert not index.spilled


def test_the_table_stays_in_proportion_to_its_rows():
    rng = np.random.default_rng(2)
    index = HotIndex()
    for first in range(0, 200_000, 1700):
        index.insert(_hashes(rng, 1700), np.arange(first, first + 1700))
    assert index.memory_bytes < 40 * 200_000


@pytest.mark.parametrize("bits", [0, 3, 8])
@pytest.mark.parametrize("batch", [1, 50, 5000])
def test_hashes_that_meet_in_one_bucket_spill_and_are_found(bits, batch):
    rng = np.random.default_rng(bits)
    n = 500
    # Few different hashes: buckets, then all displacements, then the side table are full.
    stored = np.uint64(5 << 32) | (_hashes(rng, n) & np.uint64((1 << bits) - 1))
    names = np.arange(n)
    index = HotIndex()

    def verify(rows, candidates):
        return names[candidates] == wanted[rows]

    for first in range(0, n, batch):
        rows = names[first : first + batch]
        if batch == 1:
            index.insert(stored[first : first + 1], names[first : first + 1])
        else:
            index.insert(stored[rows], rows)
    assert index.spilled
    wanted = names[::-1]
    assert np.array_equal(index.find(stored[::-1], verify), wanted)
    assert 17 in index.candidates_of([0, int(stored[17])])[1]
    gone = names[::3]
    index.remove(stored[gone], gone)
    wanted = names
    found = index.find(stored, verify)
    assert (found[gone] == -1).all()
    kept = np.setdiff1d(names, gone)
    assert np.array_equal(found[kept], kept)


def test_single_rows_and_batches_use_one_table():
    rng = np.random.default_rng(4)
    stored = _hashes(rng, 20_000)
    index = HotIndex()
    for at in range(0, 20_000, 20):
        index.insert(stored[at : at + 10], np.arange(at, at + 10))
        for i in range(at + 10, at + 20):
            index.insert(stored[i : i + 1], np.array([i]))
    for i in range(0, 20_000, 7):
        index.remove_one(int(stored[i]), i)
    alive = np.ones(20_000, bool)
    alive[::7] = False
    found = _find(index, stored, stored)
    assert np.array_equal(found, np.where(alive, np.arange(20_000), -1))
    some = range(0, 20_000, 101)
    candidates = index.candidates_of(stored[::101].tolist())
    for place, i in enumerate(some):
        assert [row for row in candidates.get(place, ()) if stored[row] == stored[i]] == [i] * int(alive[i])


def test_removed_entries_do_not_make_the_table_grow_for_ever():
    rng = np.random.default_rng(5)
    index = HotIndex()
    at = 0
    for _ in range(200):
        hashes, rows = _hashes(rng, 1000), np.arange(at, at + 1000)
        index.insert(hashes, rows)
        index.remove(hashes, rows)
        at += 1000
    assert index.memory_bytes < 40 * 200_000
    assert sum(len(part) for part in index.row_ids()) == 0


# -- cold runs ---------------------------------------------------------------------------------------------------------


def _run(directory, run_id, hashes, row_ids, first):
    disk = PosixDisk()
    record = write_run(disk, str(directory), run_id, first_row_id=first, pieces=iter([(hashes, row_ids)]))
    return KeyRun(disk, str(directory), record)


@pytest.mark.parametrize("n", [1, 2, 100, 9000, 200_000])
def test_a_run_finds_its_keys_and_few_others(tmp_path, n):
    rng = np.random.default_rng(n)
    stored = _hashes(rng, n)
    run = _run(tmp_path, 1, stored, np.arange(n) + 1000, 1000)
    asked = []

    def verify(rows, candidates):
        asked.append(len(rows))
        return stored[candidates - 1000] == wanted[rows]

    wanted = stored[::-1]
    rows, found = run.find(wanted, verify)
    assert np.array_equal(rows, np.arange(n))
    assert np.array_equal(found, np.arange(n)[::-1] + 1000)
    asked.clear()
    wanted = _hashes(rng, 50_000)
    assert len(run.find(wanted, verify)[0]) == 0
    assert sum(asked) <= 2
    assert (run.last_row_id, run.entries) == (1000 + n - 1, n)
    assert run.memory_bytes <= 2 * n + 64
    for i in range(0, n, 1 + n // 50):
        assert run.find_one(int(stored[i]), lambda row, i=i: row == i + 1000) == i + 1000
    assert all(run.find_one(int(h), lambda row: False) == -1 for h in wanted[:200])


def test_rows_of_one_hash_in_a_run_are_told_apart_by_their_keys(tmp_path):
    stored = np.full(100, (77 << 40) | (1 << 32), np.uint64)
    run = _run(tmp_path, 1, stored, np.arange(100), 0)
    for wanted in (0, 13, 99):
        _, found = run.find(stored[:1], lambda rows, candidates, w=wanted: candidates == w)
        assert found.tolist() == [wanted]
        assert run.find_one(int(stored[0]), lambda row, w=wanted: row == w) == wanted


def test_hashes_at_the_ends_of_the_range_have_a_place(tmp_path):
    top = np.uint64((1 << 64) - 1)
    stored = np.concatenate([np.full(40, top), np.full(40, np.uint64(1 << 32))])
    run = _run(tmp_path, 1, stored, np.arange(80), 0)
    assert run.find_one(int(top), lambda row: row == 39) == 39
    assert run.find_one(1 << 32, lambda row: row == 79) == 79
    assert len(run.entries_between(0, 1 << 64)) == 80


def test_merged_runs_answer_as_their_inputs_but_for_what_is_gone(tmp_path):
    rng = np.random.default_rng(6)
    sizes, firsts = [50_000, 3, 20_000, 70_000], [5_000, 90_000, 100_000, 400_000]
    runs, hashes, ids = [], [], []
    for i, (size, first) in enumerate(zip(sizes, firsts, strict=True)):
        hashes.append(_hashes(rng, size))
        ids.append(np.arange(first, first + size))
        runs.append(_run(tmp_path, i, hashes[-1], ids[-1], first))
    assert may_merge(runs)
    disk = PosixDisk()
    record = merge_runs(disk, str(tmp_path), 9, runs, lambda row_ids: row_ids % 5 == 0)
    merged = KeyRun(disk, str(tmp_path), record)
    everything, row_ids = np.concatenate(hashes), np.concatenate(ids)
    of_id = dict(zip(row_ids.tolist(), everything.tolist(), strict=True))

    def verify(rows, candidates):
        return np.array([of_id[c] for c in candidates.tolist()], np.uint64) == everything[rows]

    rows, found = merged.find(everything, verify)
    kept = np.flatnonzero(row_ids % 5 != 0)
    assert np.array_equal(rows, kept)
    assert np.array_equal(found, row_ids[kept])
    assert merged.entries == len(kept)


def test_runs_too_far_apart_are_not_merged(tmp_path):
    near = _run(tmp_path, 1, np.array([1 << 33], np.uint64), np.array([5]), 5)
    far = _run(tmp_path, 2, np.array([1 << 33], np.uint64), np.array([5 + (1 << 28)]), 5 + (1 << 28))
    assert not may_merge([near, far])


# -- dead rows ---------------------------------------------------------------------------------------------------------


def test_dead_rows_are_remembered_until_they_are_gone():
    rng = np.random.default_rng(7)
    dead = DeadRows()
    assert not dead.contains(np.arange(5)).any()
    chosen = rng.choice(100_000, 5000, replace=False) + 1_000_000
    for part in np.split(chosen, 50):
        dead.add(part)
    everything = np.arange(999_900, 1_100_100)
    assert np.array_equal(np.flatnonzero(dead.contains(everything)) + 999_900, np.sort(chosen))
    assert dead.contains_one(int(chosen[0]))
    assert not dead.contains_one(5)
    before = dead.memory_bytes
    dead.forget_below(1_099_000)
    assert dead.memory_bytes < before
    later = chosen[chosen >= 1_099_000]
    assert dead.contains(later).all()
    assert not dead.contains(np.arange(2_000_000, 2_000_010)).any()
