"""The daemons' own options."""

from __future__ import annotations

import pytest

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.daemon.flags import flags_of, help_text
from kudu_py.daemon.options import CommonOptions, MasterOptions, TabletServerOptions, load_options, reachable_address

KINDS = [MasterOptions, TabletServerOptions]


def refused(kind, **values):
    with pytest.raises(KuduError) as raised:
        kind(fs_wal_dir="/d", **values)
    assert raised.value.code is ErrorCode.CONFIGURATION_ERROR
    return raised.value.message


@pytest.mark.parametrize("kind", KINDS)
def test_the_defaults_are_valid_and_every_flag_is_explained(kind):
    options = kind(fs_wal_dir="/d")

    assert options.rpc_bind_address == f"127.0.0.1:{kind.rpc_port_default}"
    for flag in flags_of(kind):
        assert flag.help.endswith("."), flag.name
        assert flag.help in " ".join(help_text(kind, program="p", about="a").split()), flag.name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rpc_bind_addresses": "a:1,b:2"}, "--rpc_bind_addresses takes one address"),
        ({"rpc_bind_addresses": "a:b"}, "--rpc_bind_addresses must be host:port"),
        ({"rpc_advertised_addresses": ":1"}, "--rpc_advertised_addresses must be host:port"),
        ({"webserver_interface": "a b"}, "--webserver_interface must be"),
        ({"expected_server_uuid": "xyz"}, "--expected_server_uuid must be 32 lower-case"),
        ({"memory_limit_bytes": 1}, "--memory_limit_bytes must be at least 268435456"),
        ({"leader_failure_max_missed_heartbeat_periods": 1.0}, "must be at least 2"),
        ({"log_level": "loud"}, "--log_level must be one of"),
    ],
)
def test_a_senseless_value_is_refused_by_the_flags_name(kind, values, named):
    assert named in refused(kind, **values)


def test_an_empty_data_directory_is_refused():
    with pytest.raises(KuduError, match="--fs_wal_dir must name a directory"):
        MasterOptions(fs_wal_dir=" ")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"default_num_replicas": 2}, "--default_num_replicas must be odd"),
        ({"default_num_replicas": 5, "max_num_replicas": 3}, "at most --max_num_replicas (3), not 5"),
        ({"master_addresses": "a:1,a:1"}, "--master_addresses names an address twice"),
    ],
)
def test_a_masters_senseless_values_are_refused(values, named):
    assert named in refused(MasterOptions, **values)


def test_history_is_kept_for_as_long_as_a_scan_needs_it():
    """Without any, no snapshot could be read: even the latest lies behind the clock."""
    message = refused(TabletServerOptions, tablet_history_max_age_sec=0)

    assert "--tablet_history_max_age_sec must be at least 60" in message


def test_master_addresses_may_leave_out_the_usual_port():
    options = TabletServerOptions(fs_wal_dir="/d", tserver_master_addrs="m1,m2:9")

    assert options.master_addresses == ("m1:7051", "m2:9")
    assert MasterOptions(fs_wal_dir="/d").all_master_addresses == ()
    assert "--tserver_master_addrs must be" in refused(TabletServerOptions, tserver_master_addrs="")


def test_what_is_advertised_can_be_dialled():
    options = TabletServerOptions(fs_wal_dir="/d")

    assert options.advertised_address("127.0.0.1:7050", "host-1") == "127.0.0.1:7050"
    assert options.advertised_address("0.0.0.0:7050", "host-1") == "host-1:7050"
    assert reachable_address("[::]:7050", "host-1") == "host-1:7050"
    named = TabletServerOptions(fs_wal_dir="/d", rpc_advertised_addresses="public:1")
    assert named.advertised_address("0.0.0.0:7050", "host-1") == "public:1"


def test_the_host_is_the_smallest_fault_domain():
    assert TabletServerOptions(fs_wal_dir="/d").fault_domain_or("host-1") == "host-1"
    assert TabletServerOptions(fs_wal_dir="/d", fault_domain="rack-2").fault_domain_or("host-1") == "rack-2"


def test_the_election_timeout_follows_from_upstreams_two_flags():
    options = MasterOptions(
        fs_wal_dir="/d", raft_heartbeat_interval_ms=500, leader_failure_max_missed_heartbeat_periods=3.0
    )

    assert options.election_timeout_s == pytest.approx(1.5)


def test_a_flag_of_the_other_daemon_is_refused_here():
    with pytest.raises(KuduError, match="--tserver_master_addrs is not a flag of this daemon"):
        load_options(MasterOptions, ["--fs_wal_dir=/d", "--tserver_master_addrs=a:1"], {})


def test_both_daemons_share_the_common_flags():
    common = {flag.name for flag in flags_of(CommonOptions)}

    for kind in KINDS:
        assert common <= {flag.name for flag in flags_of(kind)}


def test_a_real_file_is_read(tmp_path):
    path = tmp_path / "kudu.toml"
    path.write_text('fs_wal_dir = "/d"\n[master]\ndefault_num_replicas = 1\n', encoding="utf-8")

    loaded = load_options(MasterOptions, [f"--config={path}"], {})

    assert loaded.options is not None
    assert loaded.options.default_num_replicas == 1
