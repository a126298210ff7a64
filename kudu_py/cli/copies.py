"""Tablet copies as a command sees them: asked of all servers, each copy once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from kudu_py.cli.amounts import bytes_text
from kudu_py.cli.ksck import CALL_TIMEOUT_S
from kudu_py.cli.masters import ServerSeen
from kudu_py.cli.progress import copy_text
from kudu_py.common.errors import KuduError
from kudu_py.pb import tablet_copy_pb2, tablet_copy_pb2_grpc
from kudu_py.pb.tablet_copy_pb2 import CopySession
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer

CLOCK_SKEW_MICROS: Final = 1_000_000
"""How far the clocks of two servers may be apart, where their times are compared for people."""

GOING_ON: Final = frozenset({tablet_copy_pb2.QUEUED, tablet_copy_pb2.FETCHING, tablet_copy_pb2.INSTALLING})


async def gather_copies(dialer: Dialer, servers: Iterable[ServerSeen]) -> tuple[list[CopySession], list[str]]:
    """Every server's copies, each once, and what kept servers from answering."""

    async def ask(server: ServerSeen) -> list[CopySession] | str:
        try:
            return await copies_of(dialer, server.uuid, server.rpc_address)
        except KuduError as error:
            return f"tablet server {server.uuid} at {server.rpc_address}: {error.message}"

    answers = await asyncio.gather(*[ask(server) for server in servers])
    sessions = [session for answer in answers if not isinstance(answer, str) for session in answer]
    names = {session.tablet_id: session.table_name for session in sessions if session.table_name}
    for session in sessions:
        session.table_name = names.get(session.tablet_id, "")  # a target that never had the tablet may not know it
    return each_once(sessions), [answer for answer in answers if isinstance(answer, str)]


async def copies_of(dialer: Dialer, uuid: str, address: str) -> list[CopySession]:
    """The copies that one server takes part in, and those that ended lately.

    Raises:
        KuduError: it does not answer.
    """
    stub = tablet_copy_pb2_grpc.TabletCopyServiceStub(dialer.channel(address))
    request = tablet_copy_pb2.ListCopySessionsRequest(dest_uuid=uuid)
    answer = await call(stub.ListCopySessions(request, timeout=CALL_TIMEOUT_S), address=address)
    return list(answer.sessions)


def each_once(sessions: Iterable[CopySession]) -> list[CopySession]:
    """The sessions, newest first; of one that both its servers tell of, what the target says, which knows more.

    A target is there first, and may not know the session's id.
    """
    told = list(sessions)
    targets = [session for session in told if not session.is_source]
    sources = [
        session for session in told if session.is_source and not any(_are_one(session, target) for target in targets)
    ]
    return sorted((*targets, *sources), key=lambda session: -session.started_micros)


def _are_one(source: CopySession, target: CopySession) -> bool:
    """Whether a source's and a target's session are the same: of the same replicas, at the same time."""
    same_way = (source.tablet_id, source.source_uuid, source.target_uuid) == (
        target.tablet_id,
        target.source_uuid,
        target.target_uuid,
    )
    begins_within = source.started_micros >= target.started_micros - CLOCK_SKEW_MICROS
    ends_after = not target.ended_micros or source.started_micros <= target.ended_micros + CLOCK_SKEW_MICROS
    return same_way and begins_within and ends_after


def under_way(sessions: Iterable[CopySession], tablet_id: str, target_uuid: str) -> CopySession | None:
    """The copy of a tablet to a server that goes on now."""
    return next(
        (
            session
            for session in sessions
            if session.tablet_id == tablet_id and session.target_uuid == target_uuid and session.state in GOING_ON
        ),
        None,
    )


def how_far_text(session: CopySession) -> str:
    """Bytes, rate and time left of one that goes on; how another ended."""
    if session.state in GOING_ON:
        text = copy_text(session.bytes_done, session.bytes_total, session.bytes_per_s)
        return f"{text}, {bytes_text(session.bytes_resumed)} of them from before" if session.bytes_resumed else text
    return session.error or bytes_text(session.bytes_done)


def session_json(session: CopySession) -> dict[str, object]:
    """For programs; keys are stable."""
    return {
        "id": session.session_id,
        "tablet": session.tablet_id,
        "table": session.table_name,
        "source": session.source_uuid,
        "target": session.target_uuid,
        "state": tablet_copy_pb2.CopySessionState.Name(session.state),
        "bytes_total": session.bytes_total,
        "bytes_done": session.bytes_done,
        "bytes_resumed": session.bytes_resumed,
        "bytes_per_s": session.bytes_per_s,
        "started_micros": session.started_micros,
        "ended_micros": session.ended_micros or None,
        "error": session.error,
    }
