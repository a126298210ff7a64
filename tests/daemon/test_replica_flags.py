"""What flags mean for replicas."""

from __future__ import annotations

import pytest

from kudu_py.daemon.options import MasterOptions, TabletServerOptions, load_options
from kudu_py.daemon.replica_flags import replica_options


@pytest.mark.parametrize("kind", [MasterOptions, TabletServerOptions])
def test_copies_are_bounded_by_flags_on_both_daemons(kind):
    options = replica_options(
        kind(
            fs_wal_dir="/data",
            num_tablets_to_copy_simultaneously=3,
            tablet_copy_bytes_per_s=0,
            tablet_copy_idle_timeout_sec=7,
        )
    )
    assert (options.copy.copies_max, options.copy.bytes_per_s, options.copy.idle_timeout_s) == (3, 0, 7.0)


def test_the_throttle_of_copies_goes_by_upstreams_name_too():
    argv = ["--fs_wal_dir=/data", "--tablet_copy_throttler_bytes_per_sec=1000"]
    loaded = load_options(TabletServerOptions, argv, {})
    assert loaded.options is not None
    assert loaded.options.tablet_copy_bytes_per_s == 1000


def test_copies_are_throttled_unless_told_otherwise():
    assert 0 < replica_options(TabletServerOptions(fs_wal_dir="/data")).copy.bytes_per_s < 1 << 30
