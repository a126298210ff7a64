"""The contract of the only writer, against a store that answers when the test says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.master.catalog.change import NO_CHANGE, CatalogChange
from kudu_py.master.catalog.committer import Committer, LockKey, LockKind, Locks
from kudu_py.master.catalog.entries import TableState
from kudu_py.master.catalog.state import CatalogState
from kudu_py.master.catalog.table_ops import plan_delete_table


@dataclass
class HeldStore:
    """Keeps each write until it is decided."""

    writes: list[tuple[CatalogChange, asyncio.Future[None]]] = field(default_factory=list)

    async def write(self, change: CatalogChange) -> None:
        decided = asyncio.get_running_loop().create_future()
        self.writes.append((change, decided))
        await decided

    def decide(self, number: int, error: BaseException | None = None) -> None:
        decided = self.writes[number][1]
        if error is None:
            decided.set_result(None)
        else:
            decided.set_exception(error)


@dataclass
class Rig:
    store: HeldStore
    committer: Committer
    published: list[CatalogChange]
    doubts: list[int]

    def create(self, make, name: str, *, seed: int = 1) -> asyncio.Task[CatalogChange]:
        return asyncio.create_task(
            self.committer.commit(
                [LockKey(LockKind.NAME, name)],
                lambda state: make.created(state, make.new_table(name), seed=seed)[1],
            )
        )

    def delete(self, table_id: str) -> asyncio.Task[CatalogChange]:
        return asyncio.create_task(
            self.committer.commit(
                [LockKey(LockKind.TABLE, table_id)],
                lambda state: plan_delete_table(state, table_id, note=""),
                tablet_locks=lambda state: [LockKey(LockKind.TABLET, t.tablet_id) for t in state.tablets_of(table_id)],
            )
        )

    @property
    def state(self) -> CatalogState:
        return self.committer.require_reign().state


@pytest.fixture
async def rig():
    store, published, doubts = HeldStore(), [], []
    committer = Committer(store, on_published=published.append, on_doubt=doubts.append)
    committer.begin(1, CatalogState())
    yield Rig(store, committer, published, doubts)
    await committer.close()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def failed() -> KuduError:
    return KuduError(ErrorCode.OPERATION_ABORTED, "overwritten")


def unknown() -> KuduError:
    return KuduError(ErrorCode.TIMED_OUT, "who knows", verdict=Verdict.UNKNOWN)


async def test_nothing_is_visible_before_it_is_replicated(make, rig):
    creation = rig.create(make, "t")
    await turns()
    assert len(rig.store.writes) == 1
    assert rig.state == CatalogState()
    assert rig.published == []
    rig.store.decide(0)
    change = await creation
    assert rig.published == [change]
    assert rig.state == CatalogState().applying(change)


async def test_a_failed_replication_changes_nothing_and_frees_the_locks(make, rig):
    creation = rig.create(make, "t")
    await turns()
    rig.store.decide(0, failed())
    with pytest.raises(KuduError, match="OPERATION_ABORTED"):
        await creation
    assert rig.state == CatalogState()
    assert rig.published == []
    again = rig.create(make, "t")
    await turns()
    rig.store.decide(1)
    await again


async def test_a_refused_plan_changes_nothing_and_frees_the_locks(rig):
    def refuse(_: CatalogState) -> CatalogChange:
        raise KuduError(ErrorCode.INVALID_ARGUMENT, "no")

    key = LockKey(LockKind.NAME, "t")
    with pytest.raises(KuduError, match="INVALID_ARGUMENT"):
        await rig.committer.commit([key], refuse)
    assert rig.store.writes == []
    assert rig.committer.require_reign().locks.count == 0


async def test_an_empty_change_is_not_replicated(rig):
    assert await rig.committer.commit([LockKey(LockKind.TABLE, "x")], lambda _: NO_CHANGE) is NO_CHANGE
    assert rig.store.writes == []
    assert rig.committer.require_reign().locks.count == 0


async def test_a_name_is_locked_while_a_table_of_it_is_created(make, rig):
    first, second = rig.create(make, "t", seed=1), rig.create(make, "t", seed=2)
    await turns()
    assert len(rig.store.writes) == 1, "the second waits"
    rig.store.decide(0)
    await first
    with pytest.raises(KuduError, match="TABLE_ALREADY_PRESENT"):
        await second


async def test_if_the_first_creation_fails_the_second_goes_on(make, rig):
    first, second = rig.create(make, "t", seed=1), rig.create(make, "t", seed=2)
    await turns()
    rig.store.decide(0, failed())
    await turns()
    rig.store.decide(1)
    with pytest.raises(KuduError):
        await first
    assert (await second).tables[0].name == "t"


async def test_operations_on_different_tables_do_not_wait_for_each_other(make, rig):
    creations = [rig.create(make, f"t{n}", seed=n) for n in range(3)]
    await turns()
    assert len(rig.store.writes) == 3
    for n in (2, 0, 1):
        rig.store.decide(n)
    await asyncio.gather(*creations)
    assert sorted(rig.state.ids_by_name) == ["t0", "t1", "t2"]


async def test_a_change_is_laid_over_what_others_published_meanwhile(make, rig):
    first, second = rig.create(make, "a", seed=1), rig.create(make, "b", seed=2)
    await turns()
    rig.store.decide(1)
    await second
    rig.store.decide(0)
    await first
    assert rig.state == CatalogState.build(
        None, [t for c in rig.published for t in c.tables], [t for c in rig.published for t in c.tablets]
    )


async def test_tablets_that_a_table_got_while_its_lock_was_awaited_are_deleted_too(make, rig):
    creation = rig.create(make, "t")
    await turns()
    rig.store.decide(0)
    table_id = (await creation).tables[0].table_id
    extra = make.created(CatalogState(), make.new_table("x"), seed=9)[1].tablets[0]

    def add_tablet(state: CatalogState) -> CatalogChange:
        from dataclasses import replace

        return CatalogChange(
            (replace(extra, table_id=table_id, partition=replace(extra.partition, hash_buckets=(9,))),)
        )

    addition = asyncio.create_task(rig.committer.commit([LockKey(LockKind.TABLE, table_id)], add_tablet))
    await turns()
    deletion = rig.delete(table_id)
    await turns()
    assert len(rig.store.writes) == 2, "the deletion waits for the table"
    rig.store.decide(1)
    await addition
    await turns()
    rig.store.decide(2)
    assert len((await deletion).tablets) == 5
    assert rig.state.tables[table_id].state is TableState.REMOVED


async def test_a_caller_that_leaves_does_not_take_the_change_with_it(make, rig):
    creation = rig.create(make, "t")
    await turns()
    creation.cancel()
    await turns()
    assert rig.committer.require_reign().locks.count == 1, "the name stays locked until the write is decided"
    rig.store.decide(0)
    await turns()
    assert list(rig.state.ids_by_name) == ["t"]
    assert rig.committer.require_reign().locks.count == 0


async def test_a_caller_that_leaves_while_it_waits_for_a_lock_leaves_nothing(make, rig):
    first, second = rig.create(make, "t", seed=1), rig.create(make, "t", seed=2)
    await turns()
    second.cancel()
    await turns()
    rig.store.decide(0)
    await first
    await turns()
    assert len(rig.store.writes) == 1
    assert rig.committer.require_reign().locks.count == 0


async def test_losing_the_role_while_waiting_is_an_unknown_outcome(make, rig):
    creation = rig.create(make, "t")
    await turns()
    rig.committer.end()
    with pytest.raises(KuduError) as caught:
        await creation
    assert caught.value.verdict is Verdict.UNKNOWN


async def test_a_write_of_an_earlier_reign_is_not_published_in_a_later_one(make, rig):
    creation = rig.create(make, "t")
    await turns()
    rig.committer.end()
    rig.committer.begin(2, CatalogState())
    rig.store.decide(0)
    await creation  # It is committed, so that saying so is right.
    assert rig.state == CatalogState(), "the reign of term 2 has read the catalog for itself"
    assert rig.published == []


async def test_a_write_in_doubt_ends_the_reign(make, rig):
    creation = rig.create(make, "t")
    await turns()
    rig.store.decide(0, unknown())
    with pytest.raises(KuduError) as caught:
        await creation
    assert caught.value.verdict is Verdict.UNKNOWN
    assert rig.committer.reign is None
    assert rig.doubts == [1]
    with pytest.raises(KuduError, match="CATALOG_MANAGER_NOT_INITIALIZED"):
        await rig.create(make, "u")


async def test_an_operation_that_waited_for_a_lock_does_not_begin_after_the_reign(make, rig):
    first, second = rig.create(make, "t", seed=1), rig.create(make, "t", seed=2)
    await turns()
    rig.store.decide(0, unknown())
    with pytest.raises(KuduError):
        await first
    with pytest.raises(KuduError) as caught:
        await second
    assert (caught.value.code, caught.value.verdict) == (
        ErrorCode.CATALOG_MANAGER_NOT_INITIALIZED,
        Verdict.TRY_LATER,
    )
    assert len(rig.store.writes) == 1


async def test_locks_are_taken_in_one_order_whatever_the_caller_says():
    locks = Locks()
    keys = [LockKey(LockKind.TABLET, "a"), LockKey(LockKind.NAME, "z"), LockKey(LockKind.TABLE, "m")]
    order = []
    release = await locks.acquire(keys[:1])

    async def hold(name: str, wanted: list[LockKey]) -> None:
        done = await locks.acquire(wanted)
        order.append(name)
        done()

    tasks = [asyncio.create_task(hold("forward", keys)), asyncio.create_task(hold("backward", keys[::-1]))]
    await turns()
    assert order == []
    release()
    async with asyncio.timeout(1):
        await asyncio.gather(*tasks)
    assert order == ["forward", "backward"]
    assert locks.count == 0


async def test_a_lock_handed_over_to_a_caller_that_is_cancelled_at_that_moment_is_passed_on():
    locks, key = Locks(), LockKey(LockKind.TABLE, "t")
    release = await locks.acquire([key])
    waiter = asyncio.create_task(locks.acquire([key]))
    await turns()
    release()
    waiter.cancel()
    await turns()
    assert waiter.cancelled()
    assert locks.count == 0


async def test_releasing_twice_is_harmless():
    locks, key = Locks(), LockKey(LockKind.TABLE, "t")
    release = await locks.acquire([key])
    release()
    second = await locks.acquire([key])
    release()
    assert locks.count == 1
    second()
