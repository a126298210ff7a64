"""What a caller's wish makes of a config."""

import pytest

from kudu_py.common.errors import KuduError
from kudu_py.consensus.core.config_request import requested_config
from kudu_py.consensus.core.model import ConfigChange, Member, MemberType, RaftConfig
from kudu_py.testing.core_builder import config_of, server

ADD, REMOVE, CHANGE = ConfigChange.ADD_SERVER, ConfigChange.REMOVE_SERVER, ConfigChange.CHANGE_ROLE
COMMITTED = config_of("abc", "d", "e", config_index=7)


def voter(name, **marks):
    return Member(server(name), MemberType.VOTER, f"{name}:7050", **marks)


def pre_voter(name, **marks):
    return Member(server(name), MemberType.PRE_VOTER, f"{name}:7050", **marks)


def with_member(member):
    others = [known for known in COMMITTED.members if known.uuid != member.uuid]
    return RaftConfig(0, tuple(sorted([*others, member], key=lambda known: known.uuid)))


@pytest.mark.parametrize(
    ("change", "member", "becomes"),
    [
        (ADD, voter("f"), pre_voter("f", promote=True)),
        (ADD, pre_voter("f"), pre_voter("f")),
        (ADD, pre_voter("f", promote=True, replace=True), pre_voter("f", promote=True, replace=True)),
        (CHANGE, pre_voter("a"), pre_voter("a")),
        (CHANGE, pre_voter("a", promote=True), pre_voter("a", promote=True)),
        (CHANGE, voter("a", replace=True), voter("a", replace=True)),
        (CHANGE, voter("d"), pre_voter("d", promote=True)),
        (CHANGE, pre_voter("e"), pre_voter("e")),
        (
            CHANGE,
            Member(server("a"), MemberType.VOTER, "elsewhere:1"),
            Member(server("a"), MemberType.VOTER, "elsewhere:1"),
        ),
    ],
)
def test_one_member_is_as_wanted_and_all_others_as_before(change, member, becomes):
    assert requested_config(COMMITTED, change, member) == with_member(becomes)


def test_of_a_member_to_remove_or_to_change_the_uuid_is_enough():
    gone = requested_config(COMMITTED, REMOVE, Member(server("d"), MemberType.VOTER))
    assert gone == RaftConfig(0, config_of("abc", "", "e").members)
    changed = requested_config(COMMITTED, CHANGE, Member(server("a"), MemberType.VOTER, replace=True))
    assert changed.member(server("a")) == voter("a", replace=True)


@pytest.mark.parametrize(
    ("change", "member"),
    [
        (ADD, voter("a")),
        (ADD, pre_voter("d")),
        (ADD, voter("e")),
        (ADD, pre_voter("e", promote=True)),
        (REMOVE, voter("f")),
        (CHANGE, Member(server("a"), MemberType.VOTER)),
        (CHANGE, voter("e")),
    ],
)
def test_what_is_so_already_is_the_committed_config_itself(change, member):
    assert requested_config(COMMITTED, change, member) is COMMITTED


@pytest.mark.parametrize(
    ("change", "member", "code", "word"),
    [
        (ADD, Member(server("f"), MemberType.VOTER), "INVALID_ARGUMENT", "address"),
        (ADD, pre_voter("a"), "ALREADY_PRESENT", "as VOTER at a:7050"),
        (ADD, voter("d"), "ALREADY_PRESENT", "as PRE_VOTER at"),
        (ADD, pre_voter("e"), "ALREADY_PRESENT", "PRE_VOTER to be promoted"),
        (ADD, Member(server("a"), MemberType.VOTER, "elsewhere:1"), "ALREADY_PRESENT", "change its role"),
        (CHANGE, voter("f"), "NOT_FOUND", "f is not a member"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(change, member, code, word):
    with pytest.raises(KuduError) as refused:
        requested_config(COMMITTED, change, member)
    assert refused.value.code.value == code
    assert word in refused.value.message
