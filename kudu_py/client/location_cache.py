"""`LocationCache`: partitions to tablets, tablets to replicas and leader; invalidated by errors and refreshed by hints.

Decisions only, no I/O: who asks the servers is `leader_probe.py` and `client.py`. What is cached may be old at any
time; every user of it must be able to be told so by the server that it asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kudu_py.common.partition import Partition, PartitionSchema
from kudu_py.common.partition_hash import HashLevelBuckets
from kudu_py.common.partitioner import Partitioner
from kudu_py.common.schema import Schema
from kudu_py.common.wire import partition_from_pb
from kudu_py.pb import consensus_pb2, master_pb2


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a tablet.

    Attributes:
        uuid: of its tablet server.
        address: `host:port` of that server.
        votes: whether it is a voter.
    """

    uuid: str
    address: str
    votes: bool = True


@dataclass(frozen=True, slots=True)
class Tablet:
    """A tablet as the master last described it."""

    tablet_id: str
    partition: Partition
    config_index: int
    replicas: tuple[Replica, ...]
    leader_uuid: str | None = None


@dataclass(frozen=True, eq=False)
class TableLocations:
    """All tablets of a table at one time, in partition order.

    Attributes:
        partitioner: its positions are those in `tablets`.
        hash_levels: of a table with hash partitions only; else empty.
        by_buckets: there, positions by bucket of each level.
    """

    tablets: tuple[Tablet, ...]
    partitioner: Partitioner
    hash_levels: tuple[HashLevelBuckets, ...]
    by_buckets: Mapping[tuple[int, ...], int]

    @classmethod
    def of(cls, schema: Schema, partition_schema: PartitionSchema, tablets: Iterable[Tablet]) -> TableLocations:
        """Sorts the tablets by partition."""
        ordered = tuple(sorted(tablets, key=lambda tablet: tablet.partition))
        partitions = [tablet.partition for tablet in ordered]
        levels: tuple[HashLevelBuckets, ...] = ()
        by_buckets: dict[tuple[int, ...], int] = {}
        if not any(partition.range_lower or partition.range_upper for partition in partitions):
            levels = tuple(HashLevelBuckets.of(schema, level) for level in partition_schema.hash_levels)
            by_buckets = {partition.hash_buckets: i for i, partition in enumerate(partitions)}
        return cls(ordered, Partitioner(schema, partition_schema, partitions), levels, by_buckets)

    def position_of(self, key: Sequence[object]) -> int:
        """`Partitioner.row_to_partition`, by a dict where there are hash partitions only: NumPy's part of it is most of
        what placing one row costs.

        Args:
            key: begins with the canonical values of the key columns.
        """
        if not self.hash_levels:
            return self.partitioner.row_to_partition(key)
        return self.by_buckets.get(tuple([level.bucket_of(key) for level in self.hash_levels]), -1)


def tablet_from_pb(pb: master_pb2.TabletLocations) -> Tablet:
    """A tablet of a master's answer."""
    replicas = []
    leader: str | None = None
    for replica in pb.replicas:
        if not replica.rpc_address:
            continue  # its server has not been heard of since the master started
        votes = replica.member_type in (consensus_pb2.VOTER, 0)
        replicas.append(Replica(replica.ts_uuid, replica.rpc_address, votes))
        if replica.role == consensus_pb2.LEADER:
            leader = replica.ts_uuid
    return Tablet(pb.tablet_id, partition_from_pb(pb.partition), pb.config_index, tuple(replicas), leader)


class LocationCache:
    """What a client knows of where tablets are. One per client; not thread-safe."""

    def __init__(self) -> None:
        self._tablets: dict[str, Tablet] = {}
        self._leaders: dict[str, str] = {}

    def learn(self, tablets: Iterable[Tablet]) -> None:
        """Takes a master's answer in. An older config than the known one does not replace it.

        The master's word on the leader counts only where none is known: what a replica said is newer.
        """
        for tablet in tablets:
            known = self._tablets.get(tablet.tablet_id)
            if known is None or known.config_index <= tablet.config_index:
                self._tablets[tablet.tablet_id] = tablet
            if tablet.tablet_id not in self._leaders:
                for replica in tablet.replicas:
                    if replica.uuid == tablet.leader_uuid:
                        self._leaders[tablet.tablet_id] = replica.address

    def tablet(self, tablet_id: str) -> Tablet | None:
        """What is known of a tablet."""
        return self._tablets.get(tablet_id)

    def replicas(self, tablet_id: str) -> tuple[Replica, ...]:
        """The known replicas; none if the tablet is unknown."""
        tablet = self._tablets.get(tablet_id)
        return tablet.replicas if tablet is not None else ()

    def address_of(self, tablet_id: str, uuid: str) -> str | None:
        """Where a tablet's replica on server `uuid` is."""
        return next((replica.address for replica in self.replicas(tablet_id) if replica.uuid == uuid), None)

    def leader(self, tablet_id: str) -> str | None:
        """The address of the server that is taken for the leader's; None: ask."""
        return self._leaders.get(tablet_id)

    def leads(self, tablet_id: str, address: str) -> None:
        """Someone said that the leader is there."""
        self._leaders[tablet_id] = address

    def does_not_lead(self, tablet_id: str, address: str) -> None:
        """The server at `address` failed, or said that it does not lead."""
        if self._leaders.get(tablet_id) == address:
            del self._leaders[tablet_id]

    def forget(self, tablet_ids: Iterable[str]) -> None:
        """The table was deleted."""
        for tablet_id in tablet_ids:
            self._tablets.pop(tablet_id, None)
            self._leaders.pop(tablet_id, None)
