"""`CoreScript`: a group of machines driven by a script, one command a line; every decision comes back as text.

Nothing happens by itself: messages wait until delivered, disks until synced, time until told. The text is what golden
transcripts hold, so that a change of behaviour shows as a change that someone has to read.

    group abc [d [e]]    voters, pre-voters, and pre-voters that are to be promoted ("-" for none), started at time 0
    spare d              a server with an empty replica that is no member
    at 1.5               the time is now 1.5
    tick a               its clock is looked at
    sync a               its disk does all that is queued
    deliver [a b]        messages under way (from a to b) arrive, those that this causes do not
    settle               disks sync and messages arrive until nothing is left
    drop a b             messages under way from a to b are lost
    propose a            a write
    read a               a linearizable read
    change a abc [d [e]] a config change
    abort a              the config change that is open is to be undone
    force a ab           all members but these are given up
    step-down a [b]      a handover
    crash a, start a     memory and queued writes are lost; the disk is not
    state                one line per server
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kudu_py.common.ids import ServerId
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
    StepDownRequested,
    UnsafeConfigForced,
    VoteAnswered,
    VoteRequested,
)
from kudu_py.consensus.core.model import EntryKind, HardState, LogEntry, RaftConfig
from kudu_py.consensus.core.output import (
    AppendReply,
    Message,
    Output,
    Reply,
    SendAppend,
    SendVoteRequest,
    VoteReply,
)
from kudu_py.consensus.core.raft import Raft
from kudu_py.testing.core_builder import config_of, log_of, make_raft, server


@dataclass(slots=True)
class Machine:
    """A server of the script: what its disk holds, and what its memory does."""

    raft: Raft
    disk_log: list[LogEntry] = field(default_factory=list)
    disk_hard_state: HardState = field(default_factory=lambda: HardState(0, None))
    disk_config: RaftConfig = field(default_factory=lambda: RaftConfig(0, ()))
    log: list[LogEntry] = field(default_factory=list)
    hard_state: HardState | None = None
    log_is_behind: bool = False
    held: list[tuple[ServerId, Event, str]] = field(default_factory=list)


class CoreScript:
    """Runs commands; `run` answers each with what was decided."""

    def __init__(self) -> None:
        self._now = 0.0
        self._machines: dict[ServerId, Machine] = {}
        self._down: dict[ServerId, Machine] = {}
        self._link: list[tuple[ServerId, ServerId, Event, str]] = []
        self._calls: dict[int, tuple[ServerId, Message]] = {}
        self._last_token = 0
        self._lines: list[str] = []

    def run(self, command: str) -> list[str]:
        """Does one command and returns what was decided, line by line."""
        self._lines = []
        verb, *words = command.split()
        names = [server(word) for word in words]
        match verb:
            case "group":
                config = _config(words)
                for member in config.members:
                    self._machines[member.uuid] = Machine(make_raft(member.uuid, config), disk_config=config)
                    self._step(member.uuid, ClockAdvanced())
            case "spare":
                config = self._machines[min(self._machines)].disk_config
                self._machines[names[0]] = Machine(make_raft(names[0], config), disk_config=config)
                self._step(names[0], ClockAdvanced())
            case "at":
                self._now = float(words[0])
            case "tick":
                self._step(names[0], ClockAdvanced())
            case "sync":
                self._sync(names[0])
            case "deliver":
                self._deliver(names)
            case "settle":
                self._settle()
            case "drop":
                kept = [item for item in self._link if [item[0], item[1]] != names]
                self._lines.append(f"{len(self._link) - len(kept)} lost")
                self._link = kept
            case "propose":
                self._step(names[0], EntryProposed(EntryKind.WRITE, self._token()))
            case "read":
                self._step(names[0], ReadIndexRequested(self._token()))
            case "change":
                self._step(names[0], ConfigChangeProposed(_config(words[1:]), None, self._token()))
            case "abort":
                self._step(names[0], ConfigChangeAborted(None, self._token()))
            case "force":
                self._step(names[0], UnsafeConfigForced(tuple(server(name) for name in words[1]), self._token()))
            case "step-down":
                self._step(names[0], StepDownRequested(self._token(), names[1] if len(names) > 1 else None))
            case "crash":
                self._down[names[0]] = self._machines.pop(names[0])
                self._link = [item for item in self._link if names[0] not in item[:2]]
            case "start":
                self._start(names[0])
            case "state":
                for uuid in sorted({*self._machines, *self._down}):
                    self._lines.append(self._state_of(uuid))
            case _:
                raise AssertionError(f"no such command: {command}")
        return self._lines

    def _token(self) -> int:
        self._last_token += 1
        return self._last_token

    def _start(self, uuid: ServerId) -> None:
        old = self._down.pop(uuid)
        raft = make_raft(
            uuid,
            old.disk_config,
            log=log_of([entry.op_id.term for entry in old.disk_log]),
            pending_configs=[entry.config for entry in old.disk_log if entry.config is not None],
            term=old.disk_hard_state.term,
            voted_for=old.disk_hard_state.voted_for,
        )
        self._machines[uuid] = Machine(
            raft, list(old.disk_log), old.disk_hard_state, old.disk_config, log=list(old.disk_log)
        )
        self._step(uuid, ClockAdvanced())

    def _state_of(self, uuid: ServerId) -> str:
        if uuid in self._down:
            return f"{uuid}: down"
        machine = self._machines[uuid]
        raft = machine.raft
        terms = "".join(str(entry.op_id.term) for entry in machine.log)
        return (
            f"{uuid}: {raft.role.value} term={raft.term} leader={raft.leader or '-'} log=[{terms}]"
            f" durable={raft.durable_index} committed={raft.commit_index} voters={''.join(raft.active_config.voters)}"
        )

    # Steps.

    def _step(self, uuid: ServerId, event: Event) -> None:
        machine = self._machines[uuid]
        out = machine.raft.step(self._now, event)
        self._describe(uuid, out)
        if out.hard_state is not None:
            machine.hard_state = out.hard_state
        if out.config is not None and out.config.persist:
            machine.disk_config = out.config.committed
        if out.truncate_after is not None:
            del machine.log[out.truncate_after :]
        machine.log.extend(out.append)
        machine.log_is_behind = machine.log_is_behind or bool(out.append)
        for message in out.send:
            self._put(uuid, *self._message(uuid, message))
        for reply in out.replies:
            self._put(uuid, *self._reply(uuid, reply))
        machine.held += [self._message(uuid, message) for message in out.send_after_durable]
        machine.held += [self._reply(uuid, reply) for reply in out.replies_after_durable]
        self._release(uuid)

    def _sync(self, uuid: ServerId) -> None:
        machine = self._machines[uuid]
        hard_state, log_was_behind = machine.hard_state, machine.log_is_behind
        machine.disk_log = list(machine.log)
        machine.hard_state, machine.log_is_behind = None, False
        if hard_state is not None:
            machine.disk_hard_state = hard_state
            self._step(uuid, HardStateDurable(hard_state))
        if log_was_behind:
            self._step(uuid, EntriesDurable(machine.disk_log[-1].op_id))
        self._release(uuid)

    def _release(self, uuid: ServerId) -> None:
        machine = self._machines[uuid]
        if machine.hard_state is None and not machine.log_is_behind:
            for item in machine.held:
                self._put(uuid, *item)
            machine.held = []

    def _put(self, sender: ServerId, to: ServerId, event: Event, text: str) -> None:
        self._link.append((sender, to, event, text))

    def _deliver(self, names: list[ServerId]) -> None:
        due = [item for item in self._link if not names or [item[0], item[1]] == names]
        self._link = [item for item in self._link if item not in due]
        for sender, to, event, text in due:
            if to in self._machines:
                self._lines.append(f"{sender}->{to} {text}")
                self._step(to, event)

    def _settle(self) -> None:
        for _ in range(100):
            behind = [uuid for uuid, m in self._machines.items() if m.hard_state is not None or m.log_is_behind]
            for uuid in behind:
                self._sync(uuid)
            if not behind and not self._link:
                return
            self._deliver([])
        raise AssertionError("does not settle")

    # Messages and words.

    def _message(self, sender: ServerId, message: Message) -> tuple[ServerId, Event, str]:
        token = self._token()
        self._calls[token] = (sender, message)
        if isinstance(message, SendAppend):
            entries = tuple(self._machines[sender].log[message.preceding.index : message.last_index])
            event: Event = AppendReceived(token, sender, message.term, message.preceding, entries, message.commit_index)
            held = " ".join(str(entry.op_id) for entry in entries) or ("heartbeat" if message.is_heartbeat else "probe")
            text = f"append term={message.term} after {message.preceding}: {held}; commit={message.commit_index}"
            return message.to, event, text
        if isinstance(message, SendVoteRequest):
            event = VoteRequested(
                token,
                sender,
                message.term,
                message.last_op_id,
                message.is_pre_vote,
                message.ignore_live_leader,
            )
            kind = "pre-vote?" if message.is_pre_vote else "vote?"
            handover = " handover" if message.ignore_live_leader else ""
            return message.to, event, f"{kind} term={message.term} last={message.last_op_id}{handover}"
        return message.to, ElectionRequested(token, message.term), f"campaign! term={message.term}"

    def _reply(self, uuid: ServerId, reply: Reply) -> tuple[ServerId, Event, str]:
        sender, message = self._calls.get(reply.token, (uuid, None))
        if isinstance(reply, AppendReply):
            assert isinstance(message, SendAppend), f"{reply} answers {message}"
            event: Event = AppendAnswered(
                uuid,
                message.request,
                reply.term,
                reply.accepted,
                reply.last_received,
                reply.last_committed_index,
            )
            verdict = "accepted" if reply.accepted else "refused"
            return sender, event, f"{verdict} term={reply.term} last={reply.last_received}"
        if isinstance(reply, VoteReply):
            assert isinstance(message, SendVoteRequest), f"{reply} answers {message}"
            event = VoteAnswered(uuid, reply.term, reply.granted, message.is_pre_vote, message.term)
            return sender, event, f"{'yes' if reply.granted else 'no: ' + reply.reason} term={reply.term}"
        return uuid, ClockAdvanced(), "taken up"

    def _describe(self, uuid: ServerId, out: Output) -> None:
        """What was decided, but for messages, which show when they arrive."""
        say = self._lines.append
        if out.role is not None:
            say(f"  {uuid} is {out.role.role.value} term={out.role.term} leader={out.role.leader or '-'}")
        if out.hard_state is not None:
            say(f"  {uuid} keeps term={out.hard_state.term} vote={out.hard_state.voted_for or '-'}")
        if out.truncate_after is not None:
            say(f"  {uuid} cuts after {out.truncate_after}, aborts after {out.abort_after}")
        if out.append:
            say(f"  {uuid} appends " + " ".join(f"{entry.op_id}:{entry.kind.value}" for entry in out.append))
        if out.config is not None:
            voters = "".join(out.config.active.voters)
            say(f"  {uuid} config {out.config.active.config_index} voters={voters} persist={out.config.persist}")
        if out.undo is not None:
            say(f"  {uuid} undoes {out.undo.change} by {out.undo.undo}: {out.undo.reason}")
        if out.divergence is not None:
            say(f"  {uuid} has committed {out.divergence.committed}, its leader has {out.divergence.received}")
        if out.commit_to is not None:
            say(f"  {uuid} commits to {out.commit_to}")
        for refused in out.refused:
            say(f"  {uuid} refuses: {refused.error.code.value}")
        for ready in out.reads_ready:
            say(f"  {uuid} may read at {ready.index}")
        for to in out.copy_to:
            say(f"  {uuid} has {to} copied")


def _config(words: list[str]) -> RaftConfig:
    voters, pre_voters, promoted = [*("" if word == "-" else word for word in words), "", ""][:3]
    return config_of(voters, pre_voters, promoted)
