"""`UnsafeChangeConfig` as commands call it, and the question before it."""

from __future__ import annotations

import getpass
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

import typer

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb import consensus_pb2, consensus_pb2_grpc
from kudu_py.pb.consensus_pb2 import RaftConfig
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import Dialer

UNSAFE_TIMEOUT_S: Final = 30.0

NO_WAY_BACK: Final = """\
Writes that were acknowledged may be lost for good, and there is no way back.
Switch off for good what is given up: if a majority of the old members came back on its own, two groups would take
writes as one tablet. A server that comes back later, one by one, has its replica deleted."""


FORGETS_ITS_VOTES: Final = """\
A replica that forgets what it voted may vote twice in one term, and then two leaders take writes as one. Do it only if
the replica is no member of its tablet any more, or the tablet itself is gone."""

DELETES_A_MEMBER: Final = """\
If the replica is a voter, one copy less holds what was acknowledged, until its leader has copied it anew: make sure
first that a majority of the others runs (`cluster ksck`)."""


def confirm(question: str, *, yes: bool) -> None:
    """Returns if the user wants it: said by `--yes`, or answered on a terminal.

    Raises:
        typer.Exit: 1, the answer was no.
        KuduError: INVALID_ARGUMENT if nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT, "nothing was done: nobody is there to be asked; add --yes if you are sure"
        )
    if not typer.confirm(question, err=True):
        print("nothing was done", file=sys.stderr)
        raise typer.Exit(1)


def caller_id(command: str) -> str:
    """Who wants it, for the log of the server that is told: command, user and host."""
    return f"kudu-py {command} of {getpass.getuser()} at {socket.gethostname()}"


def now_micros() -> int:
    """Wall time, microseconds since the epoch."""
    return time.time_ns() // 1000


async def unsafe_change_config(
    dialer: Dialer, *, uuid: str, address: str, tablet_id: str, member_uuids: Sequence[str], caller_id: str
) -> RaftConfig:
    """Makes `member_uuids` the members of the tablet, as far as the replica on server `uuid` is concerned, which leads
    them; the config it took.

    Raises:
        KuduError: what the server refused; UNKNOWN if its answer got lost.
    """
    stub = consensus_pb2_grpc.ConsensusServiceStub(dialer.channel(address))
    request = consensus_pb2.UnsafeChangeConfigRequest(
        dest_uuid=uuid, tablet_id=tablet_id, caller_id=caller_id, member_uuids=member_uuids
    )
    answer = await call(stub.UnsafeChangeConfig(request, timeout=UNSAFE_TIMEOUT_S), address=address, wrote=True)
    return answer.config
