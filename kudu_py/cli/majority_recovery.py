"""Bringing back tablets that have lost the majority of their voters: look, rewrite the config, watch them grow again.

`look` asks masters and servers, and `majority_loss` judges. `bring_back` does, for each tablet:

1. UnsafeChangeConfig on the replica that goes on, with the voters that run as members. From here on there is no way
   back.
2. Wait until it leads with that config committed: then the tablet takes writes again.
3. Watch until it has as many voters as it is meant to have, or as there are servers for. The masters add replicas by
   themselves, for they remember how many that are. Only if they do not begin, this command asks them to add one, with
   the config index that it saw, so that there are never two that add at once.

The command may be ended at any time. Run again, it finds what is still to be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kudu_py.cli.amounts import duration_text
from kudu_py.cli.copies import GOING_ON, gather_copies
from kudu_py.cli.ksck import CALL_TIMEOUT_S
from kudu_py.cli.majority_loss import Loss, ReplicaSeen, Standing, TabletSeen, assess, loss_json
from kudu_py.cli.masters import Masters, ServerSeen
from kudu_py.cli.membership import leader_state
from kudu_py.cli.progress import Progress, ProgressLine
from kudu_py.cli.unsafe_config import unsafe_change_config
from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime, physical_micros
from kudu_py.common.opid import OpId
from kudu_py.pb import (
    consensus_pb2,
    consensus_pb2_grpc,
    master_pb2,
    server_pb2,
    server_pb2_grpc,
    tserver_pb2,
    tserver_pb2_grpc,
)
from kudu_py.pb.consensus_pb2 import RaftConfig
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer

LEADER_TIMEOUT_S: Final = 30.0
POLL_INTERVAL_S: Final = 0.5
MASTERS_PATIENCE_S: Final = 20.0
"""How long the masters may take to begin with adding a replica before they are asked to."""
STANDSTILL_S: Final = 60.0
"""A tablet is not waited for any more if no tablet is being copied for so long."""
LISTENING_PATIENCE_S: Final = 300.0
"""Masters that have run for less may not have heard of a server yet that is just being started, as they were."""
AT_ONCE: Final = 8
"""Tablets brought back at once."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a tablet.

    Attributes:
        loss: as it was before.
        voters: it has now; 0: it could not be brought back.
        voters_wanted: as many as it is meant to have.
        error: why it was not brought back, or has fewer voters than wanted.
    """

    loss: Loss
    voters: int
    voters_wanted: int
    error: str = ""


# Looking.


async def look(masters: Masters, tables: Sequence[str]) -> list[TabletSeen]:
    """All tablets, or those of `tables`, and what is left of their replicas.

    Raises:
        KuduError: TABLE_NOT_FOUND that names one; what keeps the masters from answering.
    """
    named = await _tablets(masters, tables)
    return await _look(masters, [pair for pair in named if pair[1].state == master_pb2.RUNNING and pair[1].replicas])


async def look_at(masters: Masters, tablet_id: str) -> TabletSeen:
    """One tablet, and what is left of its replicas.

    Raises:
        KuduError: TABLET_NOT_FOUND; what keeps the masters from answering.
    """
    tablet = await masters.locations(tablet_id)
    names = {table.table_id: table.name for table in await _tables(masters)}
    return (await _look(masters, [(names.get(tablet.table_id, tablet.table_id), tablet)]))[0]


async def _look(masters: Masters, named: Sequence[tuple[str, master_pb2.TabletLocations]]) -> list[TabletSeen]:
    servers = {server.uuid: server for server in await masters.servers()}
    listening_s = await masters.running_s()
    addresses = {replica.ts_uuid: replica.rpc_address for _, tablet in named for replica in tablet.replicas}
    addresses.update({server.uuid: server.rpc_address for server in servers.values()})
    uuids = sorted(addresses)
    answers = await asyncio.gather(*[_ask_server(masters.dialer, uuid, addresses[uuid]) for uuid in uuids])
    seen = dict(zip(uuids, answers, strict=True))
    return [tablet_seen(table, tablet, servers, seen, listening_s=listening_s) for table, tablet in named]


async def _tables(masters: Masters) -> list[master_pb2.ListTablesResponse.TableInfo]:
    answer = await masters.ask(lambda stub: stub.ListTables(master_pb2.ListTablesRequest(), timeout=CALL_TIMEOUT_S))
    return list(answer.tables)


async def _tablets(masters: Masters, tables: Sequence[str]) -> list[tuple[str, master_pb2.TabletLocations]]:
    ids = {table.name: table.table_id for table in await _tables(masters)}
    unknown = [name for name in tables if name not in ids]
    if unknown:
        raise KuduError(ErrorCode.TABLE_NOT_FOUND, f"there is no table {unknown[0]!r}")
    found: list[tuple[str, master_pb2.TabletLocations]] = []
    for name in sorted(tables or ids):
        found += [(name, tablet) for tablet in await _locations(masters, ids[name])]
    return found


async def _locations(masters: Masters, table_id: str) -> list[master_pb2.TabletLocations]:
    request = master_pb2.GetTableLocationsRequest(table_id=table_id)
    answer = await masters.ask(lambda stub: stub.GetTableLocations(request, timeout=CALL_TIMEOUT_S))
    return list(answer.tablet_locations)


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What a server said of its replicas, or why it said nothing.

    Attributes:
        is_there: whether a server of that uuid answered.
        error: if not, why.
    """

    is_there: bool
    error: str = ""
    replicas: dict[str, tserver_pb2.TabletStatus] | None = None


async def _ask_server(dialer: Dialer, uuid: str, address: str) -> ServerAnswer:
    channel = dialer.channel(address)
    try:
        stub = server_pb2_grpc.GenericServiceStub(channel)
        node = await call(stub.GetStatus(server_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S), address=address)
        if node.registration.uuid != uuid:
            return ServerAnswer(False, f"is gone: {node.registration.uuid} lives at its address")
        tablets = tserver_pb2_grpc.TabletServerServiceStub(channel)
        answer = await call(tablets.ListTablets(tserver_pb2.ListTabletsRequest(), timeout=CALL_TIMEOUT_S))
    except KuduError:
        return ServerAnswer(False, "does not answer")
    return ServerAnswer(True, replicas={status.tablet_id: status for status in answer.tablets})


def tablet_seen(
    table_name: str,
    tablet: master_pb2.TabletLocations,
    servers: dict[str, ServerSeen],
    answers: dict[str, ServerAnswer],
    *,
    listening_s: float,
) -> TabletSeen:
    """A tablet as it is judged, out of what was asked: the members of the newest committed config that anybody told of.

    Args:
        servers: by uuid, as the masters know them.
        answers: by uuid, of all servers of which anything is known.
        listening_s: for how long the masters have listened for servers.
    """
    configs = [
        status.consensus_state.committed_config
        for answer in answers.values()
        if (status := (answer.replicas or {}).get(tablet.tablet_id)) is not None and status.state == tserver_pb2.RUNNING
    ]
    newest = max(configs, key=lambda config: config.config_index, default=None)
    if newest is None or newest.config_index < tablet.config_index:
        newest = RaftConfig(
            config_index=tablet.config_index,
            members=[
                consensus_pb2.Member(uuid=replica.ts_uuid, member_type=replica.member_type, address=replica.rpc_address)
                for replica in tablet.replicas
            ],
        )
    members = [
        replica_seen(
            member, tablet.tablet_id, servers.get(member.uuid), answers.get(member.uuid), listening_s=listening_s
        )
        for member in newest.members
    ]
    voters = sum(member.is_voter for member in members)
    return TabletSeen(tablet.tablet_id, table_name, newest.config_index, tuple(members), tablet.wanted_voters or voters)


def replica_seen(
    member: consensus_pb2.Member,
    tablet_id: str,
    server: ServerSeen | None,
    answer: ServerAnswer | None,
    *,
    listening_s: float,
) -> ReplicaSeen:
    """How one member stands.

    Args:
        server: as the masters know it; None if they have not heard of it since they started.
        answer: what it said itself; None if nobody knows where it lives.
        listening_s: for how long the masters have listened for servers.
    """
    is_voter = member.member_type == consensus_pb2.VOTER
    address = server.rpc_address if server is not None else member.address
    if answer is None or not answer.is_there:
        error = answer.error if answer is not None else "does not answer"
        standing, why = _of_a_silent_server(server, error, listening_s)
        return ReplicaSeen(member.uuid, address, is_voter, standing, why)
    status = (answer.replicas or {}).get(tablet_id)
    if status is None:
        return ReplicaSeen(member.uuid, address, is_voter, Standing.GONE, "its server has no replica of it")
    if status.state == tserver_pb2.RUNNING:
        state = status.consensus_state
        return ReplicaSeen(
            member.uuid,
            address,
            is_voter,
            Standing.RUNS,
            term=state.term,
            last_op_id=OpId(state.last_op_id.term, state.last_op_id.index),
            committed_index=state.committed_index,
            complete_through_micros=physical_micros(HybridTime(status.safe_timestamp)),
            row_count=status.row_count,
        )
    if status.data_state == tserver_pb2.DELETED:
        if not status.HasField("tombstone_last_op_id"):
            why = "was deleted, and does not know where its log ended"
            return ReplicaSeen(member.uuid, address, is_voter, Standing.GONE, why)
        end = OpId(status.tombstone_last_op_id.term, status.tombstone_last_op_id.index)
        return ReplicaSeen(member.uuid, address, is_voter, Standing.VOTES, "was deleted, and votes", last_op_id=end)
    if status.state == tserver_pb2.FAILED:
        return ReplicaSeen(member.uuid, address, is_voter, Standing.GONE, f"has failed: {status.error}")
    doing = "is being copied" if status.data_state == tserver_pb2.COPYING else "starts or stops"
    return ReplicaSeen(member.uuid, address, is_voter, Standing.AWAY, doing)


def _of_a_silent_server(server: ServerSeen | None, error: str, listening_s: float) -> tuple[Standing, str]:
    if server is None and listening_s < LISTENING_PATIENCE_S:
        # After a power cut all are started at once, and nobody knows yet who comes back.
        ran = duration_text(listening_s)
        return Standing.AWAY, f"{error}; the masters have not heard of it yet, and have run for {ran} only"
    if server is None:
        return Standing.GONE, f"{error}; the masters have not heard of it since they started"
    if server.state == master_pb2.LIVE:
        heard = duration_text(server.millis_since_heartbeat / 1000)
        return Standing.AWAY, f"{error}; the masters heard of it {heard} ago, and do not take it for dead yet"
    if server.mode == master_pb2.MAINTENANCE:
        return (
            Standing.AWAY,
            f"{error}, and is expected back from maintenance (`tserver exit_maintenance` says otherwise)",
        )
    return Standing.GONE, f"{error}, silent for {duration_text(server.millis_since_heartbeat / 1000)}"


def losses(tablets: Iterable[TabletSeen]) -> list[Loss]:
    """Those that cannot elect a leader."""
    return [loss for tablet in tablets if (loss := assess(tablet)) is not None]


def still_as_seen(before: Iterable[Loss], now: Iterable[Loss]) -> list[Loss]:
    """Those of `before` that would be kept and given up now as they were then, by the same replicas."""
    still = {loss.tablet.tablet_id: _who(loss) for loss in now}
    return [loss for loss in before if still.get(loss.tablet.tablet_id) == _who(loss)]


def _who(loss: Loss) -> tuple[list[str], list[str]]:
    return [replica.uuid for replica in loss.kept], [replica.uuid for replica in loss.given_up]


# Bringing back.


async def bring_back(masters: Masters, found: Sequence[Loss], *, caller_id: str) -> list[Outcome]:
    """Carries out what the head of this module says for each of `found` that has a survivor; returns when all have
    their voters, or cannot get them.

    Shows progress meanwhile. Cancelling it leaves everything to the masters.

    Args:
        caller_id: who wants it, for the servers' logs.
    """
    turns = asyncio.Semaphore(AT_ONCE)
    done: list[Outcome] = []

    async def one(loss: Loss) -> Outcome:
        async with turns:
            outcome = await _bring_back_one(masters, loss, caller_id, copied)
        done.append(outcome)
        return outcome

    copied: set[str] = set()
    ticker = asyncio.create_task(_show_progress(masters, found, done, copied), name="progress of a recovery")
    try:
        return list(await asyncio.gather(*[one(loss) for loss in found]))
    finally:
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)


async def _bring_back_one(masters: Masters, loss: Loss, caller_id: str, copied: set[str]) -> Outcome:
    survivor, wanted = loss.survivor, loss.tablet.wanted_voters
    try:
        await unsafe_change_config(
            masters.dialer,
            uuid=survivor.uuid,
            address=survivor.address,
            tablet_id=loss.tablet.tablet_id,
            member_uuids=[replica.uuid for replica in loss.kept],
            caller_id=caller_id,
        )
        await _await_leader(masters.dialer, loss)
    except KuduError as error:
        return Outcome(loss, 0, wanted, error.message)
    return await _grow(masters, loss, wanted, copied)


async def _await_leader(dialer: Dialer, loss: Loss) -> None:
    """Waits until the survivor leads the members that it was given.

    Raises:
        KuduError: TIMED_OUT that says how it stands.
    """
    deadline = asyncio.get_running_loop().time() + LEADER_TIMEOUT_S
    kept = {replica.uuid for replica in loss.kept}
    stub = consensus_pb2_grpc.ConsensusServiceStub(dialer.channel(loss.survivor.address))
    request = consensus_pb2.GetConsensusStateRequest(dest_uuid=loss.survivor.uuid, tablet_ids=[loss.tablet.tablet_id])
    while True:
        answer = await call(stub.GetConsensusState(request, timeout=CALL_TIMEOUT_S), address=loss.survivor.address)
        state = answer.tablets[0].state
        members = {member.uuid for member in state.committed_config.members}
        # The masters may have begun to add replicas already.
        is_rewritten = kept <= members and state.committed_config.config_index > loss.tablet.config_index
        if state.role == consensus_pb2.LEADER and is_rewritten:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise KuduError(
                ErrorCode.TIMED_OUT,
                f"the config was rewritten, but after {LEADER_TIMEOUT_S:.0f} s replica {loss.survivor.uuid} is "
                f"{consensus_pb2.Role.Name(state.role)} in term {state.term}; run the same command again",
            )
        await asyncio.sleep(POLL_INTERVAL_S / 2)


async def _grow(masters: Masters, loss: Loss, wanted: int, copied: set[str]) -> Outcome:
    """Watches until the tablet has its voters; asks the masters for one if they do not begin by themselves."""
    loop = asyncio.get_running_loop()
    tablet_id = loss.tablet.tablet_id
    seen_index, since = 0, loop.time()
    standstill = Standstill(loop.time())
    voters = len(loss.kept)
    while True:
        state = await leader_state(masters, tablet_id)
        if state is not None:
            config = state.committed_config
            if config.config_index != seen_index:
                seen_index, since = config.config_index, loop.time()
            voters = sum(member.member_type == consensus_pb2.VOTER for member in config.members)
            servers = await masters.servers()
            goal = goal_of(wanted, config, servers)
            if voters >= goal:
                missing = wanted - voters
                why = f"{counted(missing, 'voter')} short: start more tablet servers, and the masters do the rest"
                return Outcome(loss, voters, wanted, why if missing > 0 else "")
            if len(counting(config)) < goal and loop.time() - since > MASTERS_PATIENCE_S:
                error = await _add(masters, tablet_id, config, servers)
                if error:
                    return Outcome(loss, voters, wanted, error)
                since = loop.time()
        if standstill.lasts_s(voters, loop.time(), is_copying=bool(copied)) > STANDSTILL_S:
            why = f"nothing was copied for {duration_text(STANDSTILL_S)}: the log of its leader says why"
            return Outcome(loss, voters, wanted, why)
        await asyncio.sleep(POLL_INTERVAL_S)


class Standstill:
    """For how long a tablet has not come nearer to its voters, while no tablet was being copied: then its turn would
    come."""

    def __init__(self, now: float) -> None:
        self._voters = 0
        self._since = now

    def lasts_s(self, voters: int, now: float, *, is_copying: bool) -> float:
        """How long it has lasted, with what is seen at `now`."""
        if voters > self._voters or is_copying:
            self._since = now
        self._voters = max(voters, self._voters)
        return now - self._since


async def _add(masters: Masters, tablet_id: str, config: RaftConfig, servers: Sequence[ServerSeen]) -> str:
    """Asks for one more replica; why there will be none, or nothing."""
    server = choose_server(config, servers)
    if server is None:
        return "no live tablet server is left for another replica"
    request = master_pb2.AddReplicaRequest(
        tablet_id=tablet_id, ts_uuid=server.uuid, expected_config_index=config.config_index
    )
    try:
        await masters.tell(lambda stub: stub.AddReplica(request, timeout=LEADER_TIMEOUT_S))
    except KuduError as error:
        # Somebody else changed the members, or does so now: then that is watched.
        if error.code not in (ErrorCode.CAS_FAILED, ErrorCode.CONFIG_CHANGE_PENDING, ErrorCode.TIMED_OUT):
            return error.message
    return ""


def counting(config: RaftConfig) -> list[str]:
    """The members that count, or will by themselves."""
    return [m.uuid for m in config.members if m.member_type == consensus_pb2.VOTER or m.promote]


def goal_of(wanted: int, config: RaftConfig, servers: Sequence[ServerSeen]) -> int:
    """How many voters the tablet can have: as many as wanted, or as there are servers that may hold one."""
    members = {member.uuid for member in config.members}
    return min(wanted, sum(server.uuid in members or _may_take_one(server) for server in servers))


def choose_server(config: RaftConfig, servers: Sequence[ServerSeen]) -> ServerSeen | None:
    """The server for one more replica: in a fault domain of its own if there is one, then the least loaded."""
    members = {member.uuid for member in config.members}
    domains = {server.fault_domain for server in servers if server.uuid in members}
    free = [server for server in servers if server.uuid not in members and _may_take_one(server)]
    return min(
        free,
        key=lambda server: (server.fault_domain in domains, server.live_tablet_count, server.uuid),
        default=None,
    )


def _may_take_one(server: ServerSeen) -> bool:
    return server.state == master_pb2.LIVE and server.mode in (
        master_pb2.NORMAL,
        master_pb2.UNKNOWN_TABLET_SERVER_MODE,
    )


async def _show_progress(
    masters: Masters, found: Sequence[Loss], done: Sequence[Outcome], now_copied: set[str]
) -> None:
    """Shows how far the recovery is, and fills in what is copied; ends when cancelled."""
    tablet_ids = {loss.tablet.tablet_id for loss in found}
    loop = asyncio.get_running_loop()
    with ProgressLine() as line:
        while True:
            try:
                servers = [server for server in await masters.servers() if server.state == master_pb2.LIVE]
                sessions, _ = await gather_copies(masters.dialer, servers)
            except KuduError:
                sessions = []  # progress is worth no failure
            copied = [session for session in sessions if session.tablet_id in tablet_ids and session.state in GOING_ON]
            now_copied.clear()
            now_copied.update(session.tablet_id for session in copied)
            line.show(
                Progress(
                    "bringing tablets back",
                    steps_done=len(done),
                    steps_total=len(found),
                    bytes_done=sum(session.bytes_done for session in copied),
                    bytes_total=sum(session.bytes_total for session in copied),
                    bytes_per_s=sum(session.bytes_per_s for session in copied),
                ),
                loop.time(),
            )
            await asyncio.sleep(POLL_INTERVAL_S)


# Reporting.


def outcome_text(outcome: Outcome) -> str:
    """What became of a tablet, for people."""
    head = f"tablet {outcome.loss.tablet.tablet_id} of table {outcome.loss.tablet.table_name}"
    if not outcome.voters:
        return f"{head}: NOT brought back: {outcome.error}"
    text = f"{head}: takes writes again, {outcome.voters} of {counted(outcome.voters_wanted, 'voter')}"
    return f"{text} ({outcome.error})" if outcome.error else text


def recovery_json(
    tablets: Sequence[TabletSeen], found: Sequence[Loss], outcomes: Sequence[Outcome]
) -> dict[str, object]:
    """For programs; keys are stable. `outcome` is null of a tablet for which nothing was done."""
    by_tablet = {outcome.loss.tablet.tablet_id: outcome for outcome in outcomes}
    return {
        "tablets_checked": len(tablets),
        "losses": [
            {**loss_json(loss), "outcome": _outcome_json(by_tablet.get(loss.tablet.tablet_id))} for loss in found
        ],
    }


def _outcome_json(outcome: Outcome | None) -> dict[str, object] | None:
    if outcome is None:
        return None
    return {
        "recovered": outcome.voters > 0,
        "voters": outcome.voters,
        "voters_wanted": outcome.voters_wanted,
        "error": outcome.error,
    }
