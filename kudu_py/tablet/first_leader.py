"""Who leads a new tablet first: spreads the leaders of a table evenly over its servers.

Without a rule, the server that happens to create its replicas first campaigns first, and wins all of a table's
tablets. Here each replica computes the same member from the tablet's partition, and the others give it a head start
at the very first election (seed 003: the leader of a new config is hinted). It is a hint only: if that member is late
or dead, another leads a moment later, and no later election looks at it.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

from kudu_py.common.ids import ServerId
from kudu_py.common.partition import Partition
from kudu_py.consensus.core.model import RaftConfig, RaftOptions

HEAD_START = 3.0
"""The others wait this many times longer: the slowest draw of the first (2 units) is over before their fastest (3)."""


def first_leader(config: RaftConfig, table_id: str, partition: Partition) -> ServerId | None:
    """The voter that should lead first: neighbouring partitions get different ones, tables begin at different ones."""
    voters = config.voters
    if not voters:
        return None
    offset = zlib.crc32(table_id.encode()) + zlib.crc32(partition.range_lower) + sum(partition.hash_buckets)
    return voters[offset % len(voters)]


def with_head_start(options: RaftOptions, *, uuid: ServerId, first: ServerId | None) -> RaftOptions:
    """The options of replica `uuid`: as they are for the first leader, patient for the others."""
    if first is None or first == uuid:
        return options
    patient_s = min(options.initial_election_timeout_s * HEAD_START, options.election_timeout_s)
    return replace(options, initial_election_timeout_s=patient_s)
