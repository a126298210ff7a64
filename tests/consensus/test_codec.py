"""Core values to protobuf and back."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.hybrid_time import HybridTime
from kudu_py.common.ids import ServerId
from kudu_py.common.opid import OpId
from kudu_py.consensus import codec
from kudu_py.consensus.core.model import EntryKind, Member, MemberType, RaftConfig, Role
from kudu_py.pb import consensus_pb2

A, B = (ServerId(letter * 32) for letter in "ab")
CONFIG = RaftConfig(9, (Member(A, MemberType.VOTER, "a:1"), Member(B, MemberType.PRE_VOTER, "b:2")))


@pytest.mark.parametrize("kind", list(EntryKind))
def test_an_entry_survives_the_log(kind):
    record = codec.encode_record(OpId(3, 2**40), HybridTime(2**62), kind, b"payload")
    entry = codec.decode_record(record)
    assert (entry.op_id, entry.timestamp, entry.kind, entry.payload) == (OpId(3, 2**40), 2**62, kind, b"payload")
    assert entry.record == record


def test_a_config_survives_and_takes_the_index_of_its_entry():
    payload = codec.config_to_pb(CONFIG).SerializeToString()
    record = codec.encode_record(OpId(3, 9), HybridTime(1), EntryKind.CONFIG_CHANGE, payload)
    assert codec.core_entry(codec.decode_record(record)).config == CONFIG


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: setattr(m.members[0], "uuid", "../../etc"),
        lambda m: setattr(m.members[0], "uuid", B),
        lambda m: setattr(m.members[0], "member_type", 0),
    ],
)
def test_a_malformed_config_is_refused(spoil):
    message = codec.config_to_pb(CONFIG)
    spoil(message)
    with pytest.raises(KuduError) as refused:
        codec.config_from_pb(message)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_every_role_has_a_form_on_the_wire():
    assert len({codec.role_to_pb(role) for role in Role}) == len(Role)


@pytest.mark.parametrize("record", [b"\xff\xff\xff", consensus_pb2.LogEntry(type=0).SerializeToString()])
def test_bytes_that_are_no_entry_are_corruption(record):
    with pytest.raises(KuduError) as refused:
        codec.decode_record(record)
    assert refused.value.code is ErrorCode.CORRUPTION


PRECEDING = OpId(2, 5)


def request(*op_ids, preceding=PRECEDING, term=4):
    message = consensus_pb2.UpdateConsensusRequest(caller_term=term)
    message.preceding_op_id.term, message.preceding_op_id.index = preceding
    for op_id in op_ids:
        entry = message.entries.add(type=consensus_pb2.WRITE)
        entry.op_id.term, entry.op_id.index = op_id
    return message


def test_entries_of_a_request_are_taken_in_order():
    entries = codec.entries_from_request(request(OpId(2, 6), OpId(4, 7)))
    assert [entry.op_id for entry in entries] == [OpId(2, 6), OpId(4, 7)]


@pytest.mark.parametrize(
    "bad",
    [
        request(OpId(2, 7)),
        request(OpId(2, 6), OpId(2, 6)),
        request(OpId(1, 6)),
        request(OpId(3, 6), OpId(2, 7)),
        request(OpId(5, 6)),
        request(preceding=OpId(5, 5)),
    ],
)
def test_entries_that_no_leader_sends_are_refused(bad):
    with pytest.raises(KuduError) as refused:
        codec.entries_from_request(bad)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
