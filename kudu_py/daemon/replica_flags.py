"""What the flags that both daemons have mean for their replicas."""

from __future__ import annotations

from kudu_py.consensus.core.model import RaftOptions
from kudu_py.consensus.options import ConsensusOptions
from kudu_py.consensus.peer_links import PeerLinkOptions
from kudu_py.daemon.options import CommonOptions
from kudu_py.tablet.context import ReplicaOptions
from kudu_py.tablet.quarantine import QuarantineOptions
from kudu_py.tablet.tablet import TabletOptions
from kudu_py.tablet.tablet_copy.options import TabletCopyOptions
from kudu_py.wal.options import WalOptions

_MESSAGE_OVERHEAD_BYTES = 64 << 10
"""What wraps a write on its way to a follower: entry, request, stream item; far less than this."""


def replica_options(options: CommonOptions) -> ReplicaOptions:
    """Of every replica of a daemon, the masters' sys catalog among them."""
    message_bytes_max = options.rpc_max_message_size
    segment_bytes_max = options.log_segment_size_mb << 20
    return ReplicaOptions(
        consensus=ConsensusOptions(
            raft=RaftOptions(
                heartbeat_interval_s=options.raft_heartbeat_interval_ms / 1000,
                election_timeout_s=options.election_timeout_s,
                initial_election_timeout_s=min(RaftOptions().initial_election_timeout_s, options.election_timeout_s),
                config_change_timeout_s=max(RaftOptions().config_change_timeout_s, 2 * options.election_timeout_s),
                check_invariants=options.raft_check_invariants,
            ),
            follower_unavailable_considered_failed_s=options.follower_unavailable_considered_failed_sec,
            append_bytes_max=min(ConsensusOptions().append_bytes_max, message_bytes_max // 2),
        ),
        links=PeerLinkOptions(message_bytes_max=min(PeerLinkOptions().message_bytes_max, message_bytes_max // 2)),
        wal=WalOptions(
            segment_size_bytes_min=min(WalOptions().segment_size_bytes_min, segment_bytes_max),
            segment_size_bytes_max=segment_bytes_max,
            disk_reserved_bytes=options.fs_wal_dir_reserved_bytes,
        ),
        tablet=TabletOptions(flush_bytes=options.flush_threshold_mb << 20),
        copy=TabletCopyOptions(
            copies_max=options.num_tablets_to_copy_simultaneously,
            bytes_per_s=options.tablet_copy_bytes_per_s,
            # An eighth of a second's worth: a slow copy is slow from the beginning.
            burst_bytes=max(1, min(TabletCopyOptions().burst_bytes, options.tablet_copy_bytes_per_s // 8)),
            idle_timeout_s=float(options.tablet_copy_idle_timeout_sec),
        ),
        quarantine=QuarantineOptions(
            retention_s=float(options.quarantine_retention_s), bytes_max=options.quarantine_bytes_max
        ),
        # What a client can send must also fit into a message to a follower, else the tablet would stand still.
        write_bytes_max=min(ReplicaOptions().write_bytes_max, message_bytes_max - _MESSAGE_OVERHEAD_BYTES),
        log_retain_bytes=options.log_retain_mb << 20,
    )
