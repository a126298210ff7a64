"""`ReplicaMap`: what a server hosts, by tablet id, and who is at work on which tablet's files."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import TabletId, require_id
from kudu_py.tablet.metadata import Superblock
from kudu_py.tablet.tablet_replica import TabletReplica


class ReplicaMap:
    """The replicas and tombstones of one server. A tablet is in at most one of the two.

    Attributes:
        replicas: those with files, whatever their state; one that is being copied too.
        tombstones: those that were deleted, and remember.
        is_listed: whether the server has found out what it hosts.
        is_stopping: whether nothing is begun any more.
    """

    def __init__(self) -> None:
        self.replicas: dict[TabletId, TabletReplica] = {}
        self.tombstones: dict[TabletId, Superblock] = {}
        self.is_listed = False
        self.is_stopping = False
        self._transitions: dict[TabletId, str] = {}
        self._purging: set[TabletId] = set()

    def replica(self, tablet_id: str) -> TabletReplica:
        """The replica of a tablet, whatever its state.

        Raises:
            KuduError: TABLET_NOT_FOUND (also of a tombstone); TABLET_NOT_RUNNING while the server starts.
        """
        replica = self.replicas.get(TabletId(tablet_id))
        if replica is not None:
            return replica
        key = TabletId(require_id(tablet_id, "tablet_id"))
        if not self.is_listed:
            # "Not found" would make a leader copy the tablet here.
            raise KuduError(
                ErrorCode.TABLET_NOT_RUNNING,
                f"the server is starting; tablet {key} is not opened yet",
                verdict=Verdict.TRY_LATER,
            )
        doing = self._transitions.get(key)
        if doing is not None:
            raise KuduError(
                ErrorCode.TABLET_NOT_RUNNING, f"the replica of tablet {key} is {doing}", verdict=Verdict.TRY_LATER
            )
        is_tombstone = key in self.tombstones
        raise KuduError(
            ErrorCode.TABLET_NOT_FOUND,
            f"this server has {'deleted its' if is_tombstone else 'no'} replica of tablet {key}",
            details={"data_state": "DELETED" if is_tombstone else "DOES_NOT_EXIST"},
        )

    def become_replica(self, replica: TabletReplica) -> TabletReplica:
        """What the tablet has from now on, instead of a tombstone or another replica."""
        self.tombstones.pop(replica.tablet_id, None)
        self.replicas[replica.tablet_id] = replica
        return replica

    def become_tombstone(self, tombstone: Superblock) -> Superblock:
        """What the tablet has from now on, instead of a replica."""
        self.replicas.pop(tombstone.tablet_id, None)
        self.tombstones[tombstone.tablet_id] = tombstone
        return tombstone

    # Transitions.

    @property
    def changing(self) -> Collection[TabletId]:
        """Tablets whose files somebody is at work on."""
        return self._transitions.keys()

    @contextlib.contextmanager
    def transition(self, tablet_id: TabletId, doing: str) -> Iterator[None]:
        """Whoever changes the set of files of a tablet does it within this; there is one at a time.

        Args:
            doing: completes "the replica is ...".

        Raises:
            KuduError: ALREADY_IN_PROGRESS: another one is under way, or the server starts or stops.
        """
        already = self._transitions.get(tablet_id)
        if already is None and tablet_id in self._purging:
            already = "giving back room: its quarantine is being removed"
        if already is not None or self.is_stopping or not self.is_listed:
            what = already or ("stopping with its server" if self.is_stopping else "waiting for its server to start")
            raise KuduError(
                ErrorCode.ALREADY_IN_PROGRESS,
                f"the replica of tablet {tablet_id} is {what}",
                verdict=Verdict.TRY_LATER,
            )
        self._transitions[tablet_id] = doing
        try:
            yield
        finally:
            del self._transitions[tablet_id]

    @contextlib.contextmanager
    def purging(self, tablet_id: TabletId) -> Iterator[None]:
        """Something of the tablet's goes from the quarantine: no transition begins meanwhile; a tombstone votes."""
        assert tablet_id not in self._transitions, f"{tablet_id} is {self._transitions[tablet_id]}"
        self._purging.add(tablet_id)
        try:
            yield
        finally:
            self._purging.discard(tablet_id)
