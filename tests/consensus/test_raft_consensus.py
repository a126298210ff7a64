"""Whole groups on virtual time, over both transports."""

from __future__ import annotations

import asyncio

import pytest

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.consensus.core.model import EntryKind, Role
from kudu_py.testing.consensus_group import SimGroup


def test_three_replicas_elect_one_leader_and_commit(simulate, link_options):
    async def story():
        group = SimGroup(link_options=link_options)
        await group.start()
        leader = await group.leader()
        rounds = [leader.raft.propose(EntryKind.WRITE, f"w{i}".encode()) for i in range(100)]
        results = await asyncio.gather(*(r.future for r in rounds))
        assert results == [r.op_id.index for r in rounds]
        await group.settle()
        for server in group.servers:
            assert server.machine.payloads == [f"w{i}".encode() for i in range(100)]
        assert [s.raft.role for s in group.servers].count(Role.LEADER) == 1
        await group.stop()
        assert all(server.fatal is None for server in group.servers)

    simulate(story())
