"""What a caller asks of a config, as the config that it would be.

One member at a time. Nobody becomes a voter by request: a VOTER joins as a PRE_VOTER that is to be promoted, and a
PRE_VOTER that is asked to be a voter is marked so; the leader promotes it once it has caught up (seed 000).
"""

from __future__ import annotations

from dataclasses import replace

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.consensus.core.model import ConfigChange, Member, MemberType, RaftConfig


def requested_config(
    committed: RaftConfig, change: ConfigChange, member: Member, *, group: str = "the tablet"
) -> RaftConfig:
    """The members as they are to be; `committed` itself if that is what they are already.

    Args:
        committed: what the change starts from.
        change: what is to be done with `member`, of which REMOVE_SERVER reads only the uuid, and of which CHANGE_ROLE
            keeps the address that is known if none is given.
        group: how errors name the group.

    Raises:
        KuduError: INVALID_ARGUMENT without an address to add; ALREADY_PRESENT for a member that is there in another
            way; NOT_FOUND for one that is not there to be changed.
    """
    present = committed.member(member.uuid)
    wanted: Member | None
    match change:
        case ConfigChange.ADD_SERVER:
            wanted = _added(committed, member, present, group)
        case ConfigChange.REMOVE_SERVER:
            wanted = None
        case ConfigChange.CHANGE_ROLE:
            wanted = _changed(member, present, group)
    if wanted == present:
        return committed
    members = [known for known in committed.members if known.uuid != member.uuid]
    if wanted is not None:
        members.append(wanted)
    return RaftConfig(0, tuple(sorted(members, key=lambda known: known.uuid)))


def _added(committed: RaftConfig, member: Member, present: Member | None, group: str) -> Member:
    if not member.address:
        raise KuduError(ErrorCode.INVALID_ARGUMENT, f"to add {member.uuid} to {group} its address is needed")
    wanted = member
    if member.member_type is MemberType.VOTER:
        wanted = replace(member, member_type=MemberType.PRE_VOTER, promote=True)
    if present is None:
        return wanted
    is_voter = present.member_type is MemberType.VOTER
    if present.address == wanted.address and (
        (is_voter and wanted.promote) or (not is_voter and present.promote == wanted.promote)
    ):
        return present
    kind = present.member_type.value + (" to be promoted" if present.promote else "")
    raise KuduError(
        ErrorCode.ALREADY_PRESENT,
        f"server {member.uuid} is a member of {group} already, as {kind} at {present.address}; change its role instead",
        details={"config_index": str(committed.config_index)},
    )


def _changed(member: Member, present: Member | None, group: str) -> Member:
    if present is None:
        raise KuduError(
            ErrorCode.NOT_FOUND, f"server {member.uuid} is not a member of {group}, so its role cannot be changed"
        )
    address = member.address or present.address
    if member.member_type is MemberType.VOTER:
        if present.member_type is MemberType.VOTER:
            return Member(member.uuid, MemberType.VOTER, address, replace=member.replace)
        return Member(member.uuid, MemberType.PRE_VOTER, address, promote=True, replace=member.replace)
    return Member(member.uuid, MemberType.PRE_VOTER, address, promote=member.promote, replace=member.replace)
