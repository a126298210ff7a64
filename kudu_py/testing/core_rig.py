"""`CoreRig`: replicas of one group, joined by a fake link, over fake disks, on fake time, all drawn from one seed.

It is the smallest driver that keeps the rules of `Output`, and it breaks everything a driver may meet: messages are
lost, doubled and overtaken, writes lie in a queue and are lost in part by a crash, servers restart with what their
disks hold. No event loop, so that hundreds of seeds run in seconds. `CoreObserver` watches.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from kudu_py.common.ids import ServerId
from kudu_py.common.opid import MIN_OP_ID, OpId
from kudu_py.consensus.core.events import (
    AppendAnswered,
    AppendReceived,
    ClockAdvanced,
    ConfigChangeAborted,
    ConfigChangeProposed,
    ElectionRequested,
    EntriesDurable,
    EntryProposed,
    Event,
    HardStateDurable,
    ReadIndexRequested,
    RequestFailed,
    RoundsApplied,
    StepDownRequested,
    VoteAnswered,
    VoteRequested,
)
from kudu_py.consensus.core.log_view import LogView
from kudu_py.consensus.core.model import (
    EntryKind,
    HardState,
    LogEntry,
    Member,
    MemberType,
    RaftConfig,
    RaftOptions,
    Role,
)
from kudu_py.consensus.core.output import (
    AppendReply,
    Message,
    Output,
    Reply,
    SendAppend,
    SendRunElection,
    SendVoteRequest,
    VoteReply,
)
from kudu_py.consensus.core.raft import Raft
from kudu_py.testing.core_observer import CoreObserver


@dataclass(frozen=True, slots=True)
class RigFaults:
    """Probabilities and seconds; all zero is a perfect world.

    Attributes:
        lose, double: of each message.
        delay_s: of most messages, at most; one in ten is late by up to ten times as much.
        sync_s: of a write's sync, at most.
    """

    lose: float = 0.0
    double: float = 0.0
    delay_s: float = 0.002
    sync_s: float = 0.005


@dataclass(slots=True)
class DiskImage:
    """What a server finds after a crash."""

    log: list[LogEntry] = field(default_factory=list)
    hard_state: HardState = field(default_factory=lambda: HardState(0, None))
    config: RaftConfig | None = None


@dataclass(frozen=True, slots=True)
class LogWrite:
    """A write to the log on its way to the disk."""

    truncate_after: int | None
    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class MetadataWrite:
    """The consensus metadata on its way to the disk; one record, replaced as a whole."""

    hard_state: HardState
    config: RaftConfig


class RigServer:
    """A server: its disk, which survives, and its memory, which does not.

    Attributes:
        raft: None while the server is down.
        log: entries accepted, in memory.
        incarnation: counts the starts; what was sent to an earlier one is lost.
        paused_until: when a stopped process goes on.
    """

    def __init__(self, rig: CoreRig, uuid: ServerId) -> None:
        self.rig = rig
        self.uuid = uuid
        self.disk = DiskImage()
        self.incarnation = 0
        self.raft: Raft | None = None
        self.log: list[LogEntry] = []
        self.paused_until = 0.0
        self._forget()

    def _forget(self) -> None:
        self.log_queue: deque[LogWrite] = deque()
        self.metadata_queue: deque[MetadataWrite] = deque()
        self.log_writes_asked = self.log_writes_done = 0
        self.metadata_writes_asked = self.metadata_writes_done = 0
        self.held: deque[tuple[int, int, Callable[[], None]]] = deque()
        self.waits: dict[int, Message] = {}
        self.reads: dict[int, int] = {}
        self.timer = 0
        self.last_token = 0

    # Life and death.

    def start(self, config: RaftConfig, committed_index: int = 0) -> None:
        """Starts on what the disk holds."""
        assert self.raft is None, f"{self.uuid} runs already"
        self._forget()
        self.incarnation += 1
        self.log = list(self.disk.log)
        if self.disk.config is None:
            self.disk.config = config
        runs: list[tuple[int, int]] = []
        for entry in self.log:
            if not runs or runs[-1][1] != entry.op_id.term:
                runs.append((entry.op_id.index, entry.op_id.term))
        self.rig.observer.saw_restart(self.uuid, committed_index)
        self.raft = Raft(
            uuid=self.uuid,
            config=self.disk.config,
            pending_configs=[entry.config for entry in self.log if entry.config is not None],
            hard_state=self.disk.hard_state,
            log=LogView(runs=runs, last_index=len(self.log), committed_index=committed_index),
            options=self.rig.options,
            rng=self.rig.rng,
        )
        self.step(ClockAdvanced())

    def crash(self) -> int:
        """Stops at once; writes under way may have reached the disk in part, but in order.

        Returns:
            An index that is known to be committed, as the log may have recorded it.
        """
        assert self.raft is not None, f"{self.uuid} is down already"
        rng = self.rig.rng
        known = rng.randint(0, min(self.raft.commit_index, self.raft.durable_index))
        for write in list(self.log_queue)[: rng.randint(0, len(self.log_queue))]:
            self._write_log(write)
        if self.log_queue and rng.random() < 0.5:
            torn = self.log_queue[-1]
            if len(self.disk.log) + 1 == (torn.entries[0].op_id.index if torn.entries else 0):
                self.disk.log.extend(torn.entries[: rng.randint(0, len(torn.entries))])
        for record in list(self.metadata_queue)[: rng.randint(0, len(self.metadata_queue))]:
            self._write_metadata(record)
        self.raft = None
        self._forget()
        return known

    # The driver.

    def step(self, event: Event) -> Output:
        """Feeds the machine and does what it says."""
        assert self.raft is not None, f"{self.uuid} is down"
        out = self.raft.step(self.rig.now, event)
        self.rig.trace(self.uuid, event, out)
        self._keep_metadata(out)
        # What a leader commits comes before what it appends in the same step; a follower commits what it just got.
        is_led = self.raft.role is Role.LEADER
        if out.commit_to is not None and is_led:
            self._note_commit(out.commit_to)
        self._keep_log(out)
        self._check_durable()
        for message in out.send:
            self._send(message)
        for reply in out.replies:
            self._answer(reply)
        self._hold(out)
        if out.role is not None and out.role.role is Role.LEADER:
            self.rig.observer.saw_leader(self.uuid, out.role.term, self.log)
        if out.commit_to is not None:
            if not is_led:
                self._note_commit(out.commit_to)
            self.rig.later(0.0, self, partial(self.step, RoundsApplied(out.commit_to)))
        for ready in out.reads_ready:
            self.rig.observer.saw_read(self.uuid, ready.index, self.reads.pop(ready.token))
            self.rig.reads_served += 1
        self._arm(out.deadline)
        return out

    def _note_commit(self, index: int) -> None:
        assert self.raft is not None, f"{self.uuid} is down"
        disks = [(server.uuid, server.disk.log) for server in self.rig.servers.values()]
        self.rig.observer.saw_commit(self.uuid, self.raft.term, index, self.log, disks)

    def ask(self, request: Callable[[RigServer], object]) -> None:
        """A client's request reaches this server, now or once it goes on."""
        self.rig.later(0.0, self, lambda: request(self))

    def propose(self) -> Output:
        """A client's write."""
        return self.step(EntryProposed(EntryKind.WRITE, self._token()))

    def read(self) -> Output:
        """A client's linearizable read, which sees what is committed when it is asked for."""
        token = self._token()
        self.reads[token] = self.rig.observer.read_floor()
        return self.step(ReadIndexRequested(token))

    def step_down(self, successor: ServerId | None = None) -> Output:
        """An operator's request to hand over."""
        return self.step(StepDownRequested(self._token(), successor))

    def change_config(self, new: RaftConfig, expected_config_index: int | None = None) -> Output:
        """A change of members."""
        return self.step(ConfigChangeProposed(new, expected_config_index, self._token()))

    def abort_config_change(self) -> Output:
        """A caller wants the open change undone."""
        return self.step(ConfigChangeAborted(None, self._token()))

    def _token(self) -> int:
        self.last_token += 1
        return self.last_token

    def _arm(self, deadline: float | None) -> None:
        self.timer += 1
        if deadline is None:
            return
        armed = self.timer

        def fire() -> None:
            if self.timer == armed:
                self.step(ClockAdvanced())

        self.rig.later(max(0.0, deadline - self.rig.now), self, fire)

    # The disk: two files, each written in order.

    def _keep_metadata(self, out: Output) -> None:
        assert self.raft is not None, f"{self.uuid} is down"
        if out.hard_state is not None or (out.config is not None and out.config.persist):
            self.metadata_queue.append(MetadataWrite(self.raft.hard_state, self.raft.committed_config))
            self.metadata_writes_asked += 1
            if len(self.metadata_queue) == 1:
                self.rig.later(self.rig.sync_time(), self, self._metadata_synced)

    def _metadata_synced(self) -> None:
        record = self.metadata_queue.popleft()
        self._write_metadata(record)
        self.metadata_writes_done += 1
        if self.metadata_queue:
            self.rig.later(self.rig.sync_time(), self, self._metadata_synced)
        self.step(HardStateDurable(record.hard_state))
        self._release()

    def _write_metadata(self, record: MetadataWrite) -> None:
        self.disk.hard_state, self.disk.config = record.hard_state, record.config
        self.rig.observer.saw_hard_state(self.uuid, record.hard_state)

    def _keep_log(self, out: Output) -> None:
        if out.truncate_after is None and not out.append:
            return
        if out.truncate_after is not None:
            del self.log[out.truncate_after :]
        for entry in out.append:
            preceding = self.log[-1].op_id if self.log else MIN_OP_ID
            assert entry.op_id.index == preceding.index + 1, f"{entry} does not follow {preceding}"
            self.rig.observer.saw_append(self.uuid, preceding, entry)
            self.log.append(entry)
        self.log_queue.append(LogWrite(out.truncate_after, tuple(out.append)))
        self.log_writes_asked += 1
        if len(self.log_queue) == 1:
            self.rig.later(self.rig.sync_time(), self, self._log_synced)

    def _log_synced(self) -> None:
        """A group of writes is synced; as a real log, it reports the last entry of the group only."""
        group = [self.log_queue.popleft() for _ in range(self.rig.rng.randint(1, len(self.log_queue)))]
        for write in group:
            self._write_log(write)
        self.log_writes_done += len(group)
        if self.log_queue:
            self.rig.later(self.rig.sync_time(), self, self._log_synced)
        self.step(EntriesDurable(self.disk.log[-1].op_id))
        self._release()

    def _check_durable(self) -> None:
        """What the machine believes durable is on the disk, and no write under way will take it away."""
        assert self.raft is not None, f"{self.uuid} is down"
        index = self.raft.durable_index
        assert self.disk.log[:index] == self.log[:index], f"{self.uuid} believes {index} durable; {self.rig.describe()}"
        for write in self.log_queue:
            assert write.truncate_after is None or write.truncate_after >= index, (
                f"{self.uuid} cuts durable entries: {write}"
            )

    def _write_log(self, write: LogWrite) -> None:
        if write.truncate_after is not None:
            del self.disk.log[write.truncate_after :]
        self.disk.log.extend(write.entries)

    def _hold(self, out: Output) -> None:
        for message in out.send_after_durable:
            self._hold_one(partial(self._send, message))
        for reply in out.replies_after_durable:
            self._hold_one(partial(self._answer, reply))
        self._release()

    def _hold_one(self, action: Callable[[], None]) -> None:
        self.held.append((self.log_writes_asked, self.metadata_writes_asked, action))

    def _release(self) -> None:
        while self.held:
            log_writes, metadata_writes, action = self.held[0]
            if self.log_writes_done < log_writes or self.metadata_writes_done < metadata_writes:
                return
            self.held.popleft()
            action()

    # The network.

    def _send(self, message: Message) -> None:
        token_of = self.rig.register
        to, sender, incarnation = self.rig.servers.get(message.to), self, self.incarnation
        if isinstance(message, SendAppend):
            entries = tuple(self.log[message.preceding.index : message.last_index])
            if len(entries) > 1 and self.rig.rng.random() < 0.2:
                entries = entries[: self.rig.rng.randint(1, len(entries))]  # bounded by bytes

            def append_event() -> Event:
                token = token_of(sender, incarnation, message)
                return AppendReceived(
                    token, sender.uuid, message.term, message.preceding, entries, message.commit_index
                )

            delivered = self.rig.deliver(self, to, append_event)
            if not delivered and self.rig.rng.random() < 0.7:
                self.rig.later(0.01, self, lambda: self.step(RequestFailed(message.to, message.request)))
        elif isinstance(message, SendVoteRequest):

            def vote_event() -> Event:
                token = token_of(sender, incarnation, message)
                return VoteRequested(
                    token,
                    sender.uuid,
                    message.term,
                    message.last_op_id,
                    message.is_pre_vote,
                    message.ignore_live_leader,
                )

            self.rig.deliver(self, to, vote_event)
        else:
            term = message.term
            self.rig.deliver(self, to, lambda: ElectionRequested(token_of(sender, incarnation, message), term))

    def _answer(self, reply: Reply) -> None:
        call = self.rig.calls.pop(reply.token, None)
        if call is None:
            return
        sender, incarnation, message = call
        if isinstance(reply, AppendReply):
            assert isinstance(message, SendAppend), f"{reply} answers {message}"
            if reply.accepted:
                self.rig.observer.saw_acknowledgement(self.uuid, reply.last_received, self._durable_prefix(reply))
            answer: Event = AppendAnswered(
                self.uuid,
                message.request,
                reply.term,
                reply.accepted,
                reply.last_received,
                reply.last_committed_index,
            )
        elif isinstance(reply, VoteReply):
            assert isinstance(message, SendVoteRequest), f"{reply} answers {message}"
            if reply.granted and not message.is_pre_vote:
                self.rig.observer.saw_vote(self.uuid, message.term, sender.uuid)
            answer = VoteAnswered(self.uuid, reply.term, reply.granted, message.is_pre_vote, message.term)
        else:
            assert isinstance(message, SendRunElection), f"{reply} answers {message}"
            return
        self.rig.deliver(self, sender, lambda: answer, incarnation)

    def _durable_prefix(self, reply: AppendReply) -> int:
        """How far the disk holds what is acknowledged; a claim on overwritten entries proves nothing."""
        op_id, log = reply.last_received, self.disk.log
        if op_id.index == 0:
            return 0
        still_held = len(self.log) >= op_id.index and self.log[op_id.index - 1].op_id == op_id
        on_disk = len(log) >= op_id.index and log[op_id.index - 1].op_id == op_id
        return op_id.index if on_disk or not still_held else 0


class CoreRig:
    """Servers, the link between them, and time.

    Attributes:
        now: seconds.
        cut: pairs (from, to) between which no message passes.
        reads_served: how many linearizable reads were answered.
    """

    def __init__(
        self,
        seed: int,
        *,
        servers: int = 3,
        spares: int = 0,
        options: RaftOptions | None = None,
        faults: RigFaults | None = None,
        tracing: bool = False,
    ) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.options = options or RaftOptions(check_invariants=True, config_change_timeout_s=3.0)
        self.faults = faults or RigFaults()
        uuids = [ServerId(chr(ord("a") + i)) for i in range(servers + spares)]
        members = tuple(Member(uuid, MemberType.VOTER, f"{uuid}:7050") for uuid in uuids[:servers])
        self.config = RaftConfig(0, members)
        self.observer = CoreObserver(self.config)
        self.cut: set[tuple[ServerId, ServerId]] = set()
        self.calls: dict[int, tuple[RigServer, int, Message]] = {}
        self.reads_served = 0
        self.transcript: list[str] = []
        self._tracing = tracing
        self._last_call = 1_000_000
        self._heap: list[tuple[float, int, RigServer, int, Callable[[], object]]] = []
        self._order = 0
        self.servers = {uuid: RigServer(self, uuid) for uuid in uuids}

    # Running.

    def start(self) -> None:
        """Starts every server that is down."""
        for server in self.servers.values():
            if server.raft is None:
                server.start(self.config)

    def later(self, delay_s: float, server: RigServer, action: Callable[[], object]) -> None:
        """Does this at a later time, unless the server has crashed by then."""
        self._push(self.now + delay_s, server, server.incarnation, action)

    def _push(self, at: float, server: RigServer, incarnation: int, action: Callable[[], object]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, server, incarnation, action))

    def pause(self, uuid: ServerId, seconds: float) -> None:
        """Stops a process for a while, without its knowing (SIGSTOP)."""
        self.servers[uuid].paused_until = self.now + seconds

    def run(self, seconds: float) -> None:
        """Lets so much time pass."""
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            at, _, server, incarnation, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            if server.paused_until > self.now:
                # All that waits for a process that was stopped reaches it at once, in no particular order.
                self._push(server.paused_until + self.rng.random() * 0.001, server, incarnation, action)
            elif server.raft is not None and server.incarnation == incarnation:
                action()
        self.now = end

    def run_until(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Lets time pass until this holds, and asserts that it does in time."""
        end = self.now + seconds
        while not holds() and self.now < end:
            self.run(0.01)
        assert holds(), f"does not hold after {seconds} s: {self.describe()}"

    # Looking.

    @property
    def leaders(self) -> list[RigServer]:
        """Servers that believe that they lead; the one of the highest term last."""
        leading = [
            server for server in self.servers.values() if server.raft is not None and server.raft.role is Role.LEADER
        ]
        return sorted(leading, key=lambda server: server.raft.term if server.raft is not None else 0)

    @property
    def leader(self) -> RigServer:
        """The leader of the highest term."""
        assert self.leaders, f"nobody leads: {self.describe()}"
        return self.leaders[-1]

    def describe(self) -> str:
        """One line per server."""
        lines = []
        for server in self.servers.values():
            raft = server.raft
            if raft is None:
                lines.append(
                    f"{server.uuid}: down, disk ends at {server.disk.log[-1].op_id if server.disk.log else None}"
                )
            else:
                lines.append(
                    f"{server.uuid}: {raft.role.value} term {raft.term} leader {raft.leader}"
                    f" last {raft.last_op_id} committed {raft.commit_index}"
                )
        return "; ".join(lines)

    def trace(self, uuid: ServerId, event: Event, out: Output) -> None:
        """Keeps what happened, for whoever looks at a seed that failed."""
        if self._tracing:
            self.transcript.append(f"{self.now:.4f} {uuid} {event} -> {out}")

    # The link.

    def register(self, sender: RigServer, incarnation: int, message: Message) -> int:
        """A token for a call that was delivered, to find the caller by when it is answered."""
        self._last_call += 1
        self.calls[self._last_call] = (sender, incarnation, message)
        return self._last_call

    def deliver(
        self, sender: RigServer, to: RigServer | None, event_of: Callable[[], Event], incarnation: int | None = None
    ) -> bool:
        """Lets a message arrive, maybe late, twice, or not at all; whether it will."""
        faults, rng = self.faults, self.rng
        if to is None or to.raft is None or (sender.uuid, to.uuid) in self.cut or rng.random() < faults.lose:
            return False
        if incarnation is not None and to.incarnation != incarnation:
            return False
        for _ in range(2 if rng.random() < faults.double else 1):
            delay = rng.random() * faults.delay_s * (10 if rng.random() < 0.1 else 1)
            self.later(delay, to, lambda: to.step(event_of()))
        return True

    def sync_time(self) -> float:
        """How long this sync takes."""
        return self.rng.random() * self.faults.sync_s

    def isolate(self, uuid: ServerId) -> None:
        """Cuts a server off from all others."""
        self.separate([uuid], [other for other in self.servers if other != uuid])

    def separate(self, left: Sequence[ServerId], right: Sequence[ServerId]) -> None:
        """Cuts all links between two sides."""
        for one in left:
            for other in right:
                self.cut |= {(one, other), (other, one)}

    def heal(self) -> None:
        """Restores every link."""
        self.cut.clear()


def last_committed(rig: CoreRig) -> OpId:
    """The last OpId that anybody committed."""
    return rig.observer.committed[-1] if rig.observer.committed else MIN_OP_ID
