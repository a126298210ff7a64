"""Core values to protobuf and back."""

from __future__ import annotations

from collections.abc import Sequence

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import ServerId, is_id, require_id
from kudu_py.common.opid import OpId
from kudu_py.common.wire import op_id_from_pb as op_id_from_pb
from kudu_py.common.wire import op_id_to_pb as op_id_to_pb
from kudu_py.consensus.core.model import ConfigChange, EntryKind, LogEntry, Member, MemberType, RaftConfig, Role
from kudu_py.consensus.entry import Entry
from kudu_py.pb import consensus_pb2
from kudu_py.rpc.address import parse_address

_KIND_TO_PB = {
    EntryKind.NO_OP: consensus_pb2.NO_OP,
    EntryKind.WRITE: consensus_pb2.WRITE,
    EntryKind.CONFIG_CHANGE: consensus_pb2.CONFIG_CHANGE,
    EntryKind.ALTER_SCHEMA: consensus_pb2.ALTER_SCHEMA,
}
_KIND_FROM_PB = {number: kind for kind, number in _KIND_TO_PB.items()}
_MEMBER_TYPE_TO_PB = {MemberType.VOTER: consensus_pb2.VOTER, MemberType.PRE_VOTER: consensus_pb2.PRE_VOTER}
_MEMBER_TYPE_FROM_PB = {number: kind for kind, number in _MEMBER_TYPE_TO_PB.items()}
_CHANGE_FROM_PB = {
    consensus_pb2.ADD_SERVER: ConfigChange.ADD_SERVER,
    consensus_pb2.REMOVE_SERVER: ConfigChange.REMOVE_SERVER,
    consensus_pb2.CHANGE_ROLE: ConfigChange.CHANGE_ROLE,
}
_ROLE_TO_PB = {
    Role.FOLLOWER: consensus_pb2.FOLLOWER,
    Role.LEADER: consensus_pb2.LEADER,
    Role.LEARNER: consensus_pb2.LEARNER,
    Role.NON_PARTICIPANT: consensus_pb2.NON_PARTICIPANT,
    Role.CANDIDATE: consensus_pb2.CANDIDATE,
}


def role_to_pb(role: Role) -> consensus_pb2.Role.ValueType:
    """A role for the wire."""
    return _ROLE_TO_PB[role]


def config_to_pb(config: RaftConfig) -> consensus_pb2.RaftConfig:
    """A config for wire, log and disk."""
    return consensus_pb2.RaftConfig(
        config_index=config.config_index,
        members=[
            consensus_pb2.Member(
                uuid=member.uuid,
                member_type=_MEMBER_TYPE_TO_PB[member.member_type],
                address=member.address,
                promote=member.promote,
                replace=member.replace,
            )
            for member in config.members
        ],
    )


def config_from_pb(message: consensus_pb2.RaftConfig, *, config_index: int | None = None) -> RaftConfig:
    """A config from wire, log or disk, its members in the order of their uuids.

    Args:
        message: the config.
        config_index: the index of the entry that carries it, if that says more than the message.

    Raises:
        KuduError: INVALID_CONFIG if a uuid is malformed or there twice, or a member type is unknown.
    """
    members = []
    for member in message.members:
        member_type = _MEMBER_TYPE_FROM_PB.get(member.member_type)
        if not is_id(member.uuid) or member_type is None:
            raise KuduError(
                ErrorCode.INVALID_CONFIG,
                f"member {member.uuid[:64]!r} of type {member.member_type} is not one that a config can have",
            )
        members.append(Member(ServerId(member.uuid), member_type, member.address, member.promote, member.replace))
    members.sort(key=lambda member: member.uuid)
    if len({member.uuid for member in members}) != len(members):
        raise KuduError(ErrorCode.INVALID_CONFIG, f"a server is a member twice in {[m.uuid for m in members]}")
    index = message.config_index if config_index is None else config_index
    return RaftConfig(index, tuple(members))


def config_change_from_pb(request: consensus_pb2.ChangeConfigRequest) -> tuple[ConfigChange, Member]:
    """What ChangeConfig asks for. A member to add without a type is a PRE_VOTER to be promoted.

    Raises:
        KuduError: INVALID_ARGUMENT that says which field is malformed.
    """
    change = _CHANGE_FROM_PB.get(request.type)
    if change is None:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"ChangeConfig: type {request.type} is not one of ADD_SERVER, REMOVE_SERVER, CHANGE_ROLE",
        )
    server = request.server
    uuid = ServerId(require_id(server.uuid, "server.uuid"))
    if server.address:
        parse_address(server.address, what="ChangeConfig: server.address")
    member_type, promote = _MEMBER_TYPE_FROM_PB.get(server.member_type), server.promote
    if server.member_type == consensus_pb2.UNKNOWN_MEMBER_TYPE and change is not ConfigChange.CHANGE_ROLE:
        member_type, promote = MemberType.PRE_VOTER, True
    if member_type is None:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"ChangeConfig: server.member_type {server.member_type} is not one of VOTER, PRE_VOTER",
        )
    return change, Member(uuid, member_type, server.address, promote, server.replace)


def encode_record(op_id: OpId, timestamp: HybridTime, kind: EntryKind, payload: bytes) -> bytes:
    """The bytes of an entry in the log and on the wire (a serialised kudu.consensus.v1.LogEntry)."""
    message = consensus_pb2.LogEntry(timestamp=timestamp, type=_KIND_TO_PB[kind], payload=payload)
    message.op_id.term, message.op_id.index = op_id
    return message.SerializeToString()


def decode_record(record: bytes) -> Entry:
    """An entry from the log's bytes.

    Raises:
        KuduError: CORRUPTION if they are not an entry; the log's checksum held, so this is a bug or a foreign file.
    """
    try:
        message = consensus_pb2.LogEntry.FromString(record)
    except Exception as error:  # protobuf's DecodeError; anything it raises means the same
        raise KuduError(ErrorCode.CORRUPTION, f"a record of {len(record)} bytes in the log is not an entry") from error
    return entry_from_pb(message, record)


def entry_from_pb(message: consensus_pb2.LogEntry, record: bytes) -> Entry:
    """An entry from its message and the same as bytes."""
    kind = _KIND_FROM_PB.get(message.type)
    if kind is None:
        raise KuduError(ErrorCode.CORRUPTION, f"entry {message.op_id.index} is of the unknown type {message.type}")
    op_id = op_id_from_pb(message.op_id)
    return Entry(op_id, HybridTime(message.timestamp), kind, message.payload, record)


def core_entry(entry: Entry) -> LogEntry:
    """What the machine needs to know of an entry."""
    if entry.kind is not EntryKind.CONFIG_CHANGE:
        return LogEntry(entry.op_id, entry.kind)
    return LogEntry(entry.op_id, entry.kind, decode_config(entry))


def decode_config(entry: Entry) -> RaftConfig:
    """The config that a CONFIG_CHANGE entry carries."""
    assert entry.kind is EntryKind.CONFIG_CHANGE, entry.kind
    return config_from_pb(consensus_pb2.RaftConfig.FromString(entry.payload), config_index=entry.op_id.index)


def entries_from_request(request: consensus_pb2.UpdateConsensusRequest) -> Sequence[Entry]:
    """The entries of UpdateConsensus, checked: contiguous after the preceding one, terms between its and the leader's.

    Raises:
        KuduError: INVALID_ARGUMENT that says what is wrong with which entry.
    """
    term, index = request.preceding_op_id.term, request.preceding_op_id.index
    if term > request.caller_term:
        raise _bad_request(f"preceding entry {term}.{index} is above the leader's term {request.caller_term}")
    entries = []
    for message in request.entries:
        index += 1
        op_id = message.op_id
        if op_id.index != index or not term <= op_id.term <= request.caller_term:
            raise _bad_request(f"entry {op_id.term}.{op_id.index} cannot be the one at {index} after term {term}")
        term = op_id.term
        if message.type not in _KIND_FROM_PB:
            raise _bad_request(f"entry {op_id.term}.{op_id.index} is of the unknown type {message.type}")
        entries.append(entry_from_pb(message, message.SerializeToString()))
    return entries


def _bad_request(what: str) -> KuduError:
    return KuduError(ErrorCode.INVALID_ARGUMENT, f"UpdateConsensus: {what}")
