"""What administrators must not do with replicas is refused with an exact reason, by masters and servers alike, and
changes nothing."""

import re
from dataclasses import dataclass

import pytest

import kudu_py as kudu
from kudu_py.common.errors import ErrorCode
from kudu_py.pb import consensus_pb2, master_pb2, tablet_copy_pb2, tserver_admin_pb2
from kudu_py.testing.admin_calls import AdminCalls
from kudu_py.testing.process_cluster import ProcessCluster, run_command, wait_until
from kudu_py.testing.refusals import refusal_of
from kudu_py.testing.workload import make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

CONFIG = """
heartbeat_interval_ms = 200
follower_unavailable_considered_failed_sec = 600
[master]
tserver_unresponsive_timeout_ms = 1500
auto_rebalancing_enabled = false
"""
NOBODY = "f" * 32
PATH = "../../etc/passwd"
TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Scene:
    """One tablet of three replicas, one of a single replica, and six tablet servers: three more, of which one is dead
    and one retired."""

    admin: AdminCalls
    addresses: dict[str, str]
    tablet: str
    leader: str
    follower: str
    free: str
    dead: str
    retired: str
    lone_tablet: str
    lone_voter: str

    def add(self, tablet, server, **more):
        request = master_pb2.AddReplicaRequest(tablet_id=tablet, ts_uuid=server, **more)
        return self.admin.master().AddReplica(request, timeout=TIMEOUT_S)

    def remove(self, tablet, server, **more):
        request = master_pb2.RemoveReplicaRequest(tablet_id=tablet, ts_uuid=server, **more)
        return self.admin.master().RemoveReplica(request, timeout=TIMEOUT_S)

    def move(self, tablet, source, target):
        request = master_pb2.MoveReplicaRequest(tablet_id=tablet, from_ts_uuid=source, to_ts_uuid=target)
        return self.admin.master().MoveReplica(request, timeout=TIMEOUT_S)

    def count(self, count, **named):
        request = master_pb2.ChangeVotingReplicaCountRequest(count=count, **named)
        return self.admin.master().ChangeVotingReplicaCount(request, timeout=TIMEOUT_S)

    def retire(self, server):
        request = master_pb2.RetireTabletServerRequest(ts_uuid=server)
        return self.admin.master().RetireTabletServer(request, timeout=TIMEOUT_S)

    def cancel(self, operation):
        request = master_pb2.CancelOperationRequest(operation_id=operation)
        return self.admin.master().CancelOperation(request, timeout=TIMEOUT_S)

    def change(self, at, **more):
        more.setdefault("dest_uuid", at)
        request = consensus_pb2.ChangeConfigRequest(tablet_id=self.tablet, **more)
        return self.admin.consensus(at).ChangeConfig(request, timeout=TIMEOUT_S)

    def newcomer(self, **more):
        return consensus_pb2.Member(uuid=self.free, address=self.addresses[self.free], **more)

    def give_up(self, at, *members):
        request = consensus_pb2.UnsafeChangeConfigRequest(
            dest_uuid=at, tablet_id=self.tablet, caller_id="a test", member_uuids=members
        )
        return self.admin.consensus(at).UnsafeChangeConfig(request, timeout=TIMEOUT_S)

    def copy(self, to, **more):
        given = {
            "dest_uuid": to,
            "tablet_id": self.tablet,
            "caller_uuid": self.leader,
            "caller_term": 1 << 20,
            "source_uuid": self.leader,
            "source_address": self.addresses[self.leader],
        }
        request = consensus_pb2.StartTabletCopyRequest(**given | more)
        return self.admin.consensus(to).StartTabletCopy(request, timeout=TIMEOUT_S)

    def state(self):
        """All that a refused call might have changed."""
        operations = master_pb2.ListOperationsRequest(include_ended=True)
        servers = self.admin.master().ListTabletServers(master_pb2.ListTabletServersRequest(), timeout=TIMEOUT_S)
        copies = [self.admin.copy_sessions(server, self.tablet) for server in (self.leader, self.follower, self.free)]
        return (
            [
                (state.committed_config, state.pending_config, state.term)
                for state in (self.admin.consensus_state(each, self.tablet) for each in (self.leader, self.follower))
            ],
            self.admin.tablet(self.tablet).wanted_voters,
            self.admin.master().ListOperations(operations, timeout=TIMEOUT_S).operations,
            [(server.uuid, server.mode) for server in servers.servers],
            copies,
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ProcessCluster(tmp_path_factory.mktemp("refusals") / "playground", tservers=6, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def scene(cluster):
    with AdminCalls(cluster) as admin, kudu.connect(cluster.masters) as client:
        make_table(client, "three", buckets=1)
        make_table(client, "lone", buckets=1, replicas=1)
        (three,), (lone,) = admin.locations("three"), admin.locations("lone")
        leader = wait_until(lambda: admin.leader(three.tablet_id), "a leader")
        follower = min(admin.voters(three.tablet_id) - {leader})
        addresses = {each.uuid: each.rpc_address for each in cluster.daemons}
        lone_voter = admin.leader(lone.tablet_id)
        outside = [
            each.uuid
            for each in cluster.daemons
            if each.name.startswith("tserver") and each.uuid not in admin.voters(three.tablet_id)
        ]
        outside.sort(key=lambda uuid: uuid != lone_voter)  # it stays as it is
        free, dead, retired = outside
        retiring = admin.master().RetireTabletServer(master_pb2.RetireTabletServerRequest(ts_uuid=retired))
        assert admin.wait_for_operation(retiring.operation_id).state == master_pb2.Operation.DONE
        cluster.kill(dead)
        listing = master_pb2.ListTabletServersRequest()
        wait_until(
            lambda: any(each.state == master_pb2.DEAD for each in admin.master().ListTabletServers(listing).servers),
            "a dead server",
        )
        yield Scene(
            admin, addresses, three.tablet_id, leader, follower, free, dead, retired, lone.tablet_id, lone_voter
        )


REFUSED = [
    # The masters.
    (lambda s: s.add(NOBODY, s.free), "TABLET_NOT_FOUND", "{nobody}"),
    (lambda s: s.add(PATH, s.free), "INVALID_ARGUMENT", "tablet_id .*passwd"),
    (lambda s: s.add(s.tablet, NOBODY), "TABLET_SERVER_NOT_FOUND", "{nobody}"),
    (lambda s: s.add(s.tablet, PATH), "INVALID_ARGUMENT", "ts_uuid .*passwd"),
    (lambda s: s.add(s.tablet, s.dead), "ILLEGAL_STATE", "{dead} is dead"),
    (lambda s: s.add(s.tablet, s.retired), "ILLEGAL_STATE", "{retired} .*is retired"),
    (lambda s: s.add(s.tablet, s.follower), "ALREADY_PRESENT", "{tablet} has a replica at .*{follower} already"),
    (lambda s: s.add(s.tablet, s.free, expected_config_index=77), "CAS_FAILED", "{tablet} has index 0, not 77"),
    (lambda s: s.add(s.tablet, s.free, member_type=9), "INVALID_ARGUMENT", "member_type"),
    (lambda s: s.remove(s.tablet, s.free), "NOT_FOUND", "{tablet} has no replica at .*{free}.*{follower}"),
    (lambda s: s.remove(s.lone_tablet, s.lone_voter), "ILLEGAL_STATE", "{lone_voter} is the last voter"),
    (lambda s: s.remove(s.tablet, s.follower, expected_config_index=77), "CAS_FAILED", "index 0, not 77"),
    (lambda s: s.move(NOBODY, s.leader, s.free), "TABLET_NOT_FOUND", "{nobody}"),
    (lambda s: s.move(s.tablet, s.free, s.retired), "(NOT_FOUND|ILLEGAL_STATE)", "{free}|{retired}"),
    (lambda s: s.move(s.tablet, s.leader, s.follower), "ALREADY_PRESENT", "{follower}"),
    (lambda s: s.move(s.tablet, s.leader, s.dead), "ILLEGAL_STATE", "{dead} is dead"),
    (lambda s: s.move(s.tablet, s.leader, s.retired), "ILLEGAL_STATE", "{retired} .*is retired"),
    (lambda s: s.move(s.tablet, s.leader, s.leader), "INVALID_ARGUMENT", "to itself"),
    (lambda s: s.count(4, tablet_id=s.tablet), "EVEN_REPLICATION_FACTOR", "{tablet} must be odd, not 4"),
    (lambda s: s.count(7, tablet_id=s.tablet), "REPLICATION_FACTOR_TOO_HIGH", "7 voters .*there are 4"),
    (lambda s: s.count(3), "INVALID_ARGUMENT", "tablet_id.*table_name"),
    (lambda s: s.retire(NOBODY), "TABLET_SERVER_NOT_FOUND", "{nobody}"),
    (lambda s: s.retire(s.retired), "ILLEGAL_STATE", "{retired} is retired already"),
    (lambda s: s.cancel(NOBODY), "NOT_FOUND", "{nobody}"),
    (lambda s: s.cancel(PATH), "INVALID_ARGUMENT", "operation_id .*passwd"),
    # Consensus at a server.
    (
        lambda s: s.change(s.follower, type="ADD_SERVER", server=s.newcomer()),
        "NOT_THE_LEADER",
        "the leader is {leader}",
    ),
    (
        lambda s: s.change(s.leader, type="ADD_SERVER", server=s.newcomer(), expected_config_index=5),
        "CAS_FAILED",
        "{tablet} is 0, not 5",
    ),
    (lambda s: s.change(s.leader, server=s.newcomer()), "INVALID_ARGUMENT", "ADD_SERVER, REMOVE_SERVER, CHANGE_ROLE"),
    (
        lambda s: s.change(s.leader, type="ADD_SERVER", server=consensus_pb2.Member(uuid=PATH, address="h:1")),
        "INVALID_ARGUMENT",
        "server.uuid .*passwd",
    ),
    (lambda s: s.change(s.leader, type="ADD_SERVER", dest_uuid=NOBODY), "WRONG_SERVER_UUID", "{nobody}.*{leader}"),
    (lambda s: s.give_up(s.leader, s.leader, s.free), "INVALID_ARGUMENT", "{free}: not a member of tablet {tablet}"),
    (lambda s: s.give_up(s.leader, s.follower), "INVALID_ARGUMENT", "{leader} itself is not among the members"),
    # Copies.
    (lambda s: s.copy(s.follower, source_uuid=s.follower), "INVALID_ARGUMENT", "to itself .{follower}"),
    (lambda s: s.copy(s.follower, expected_state="DELETED"), "ILLEGAL_STATE", "{tablet} is READY here, not DELETED"),
    (lambda s: s.copy(s.free, expected_state="READY"), "ILLEGAL_STATE", "{tablet} is DOES_NOT_EXIST here, not READY"),
    (lambda s: s.copy(s.follower, caller_term=0), "INVALID_TERM", "term 0, and this server knows term 1"),
    (lambda s: s.copy(s.follower, last_op_id={"term": 9, "index": 9}), "ILLEGAL_STATE", "here, not at 9.9"),
    (lambda s: s.copy(s.follower, dest_uuid=NOBODY), "WRONG_SERVER_UUID", "{nobody}.*{follower}"),
    (lambda s: s.copy(s.free, tablet_id=PATH), "INVALID_ARGUMENT", "tablet_id .*passwd"),
    (
        lambda s: s.admin.replicas(s.follower).DeleteTablet(
            tserver_admin_pb2.DeleteTabletRequest(dest_uuid=s.follower, tablet_id=PATH)
        ),
        "INVALID_ARGUMENT",
        "tablet_id .*passwd",
    ),
    (
        lambda s: s.admin.copies(s.leader).BeginCopySession(
            tablet_copy_pb2.BeginCopySessionRequest(dest_uuid=s.leader, tablet_id=PATH, requestor_uuid=s.free)
        ),
        "INVALID_ARGUMENT",
        "tablet_id .*passwd",
    ),
    (
        lambda s: s.admin.copies(s.leader).CancelCopy(
            tablet_copy_pb2.CancelCopyRequest(dest_uuid=s.leader, tablet_id=s.tablet)
        ),
        "NOT_FOUND",
        "{tablet} is not being copied",
    ),
]


@pytest.mark.parametrize(("call", "code", "text"), REFUSED)
def test_it_is_refused_by_reason_and_text_and_nothing_changes(scene, call, code, text):
    before = scene.state()
    error = refusal_of(lambda: call(scene))
    assert re.fullmatch(code, error.code.name), error
    named = {name: getattr(scene, name) for name in ("tablet", "leader", "follower", "free", "dead", "retired")}
    pattern = text.format(**named, lone_voter=scene.lone_voter, nobody=NOBODY)
    assert re.search(pattern, error.message), error
    assert scene.state() == before


def test_files_of_a_running_server_are_not_rewritten(cluster, scene):
    before = scene.state()
    directory = cluster.daemon(scene.follower).dir
    done = run_command(
        *("local_replica", "cmeta", "rewrite_raft_config", scene.tablet, f"{scene.follower}:127.0.0.1:1"),
        *("--fs_wal_dir", directory),
        check=False,
    )
    assert done.returncode != 0
    assert directory in done.stderr + done.stdout
    assert scene.state() == before


def test_a_change_is_refused_while_another_one_is_pending(cluster, scene):
    others = scene.admin.voters(scene.tablet) - {scene.leader}
    addition = consensus_pb2.ChangeConfigRequest(
        dest_uuid=scene.leader, tablet_id=scene.tablet, type="ADD_SERVER", server=scene.newcomer()
    )
    for each in others:
        cluster.freeze(each)
    try:
        first = scene.admin.consensus(scene.leader).ChangeConfig.future(addition, timeout=TIMEOUT_S)
        wait_until(
            lambda: scene.admin.consensus_state(scene.leader, scene.tablet).pending_config.members,
            "the first change to be pending",
        )
        error = refusal_of(lambda: scene.change(scene.leader, type="REMOVE_SERVER", server={"uuid": scene.follower}))
    finally:
        for each in others:
            cluster.thaw(each)
    assert error.code is ErrorCode.CONFIG_CHANGE_PENDING
    assert scene.tablet in error.message
    # Committed or overwritten by a new leader: nobody told the masters that four are wanted, so three stay.
    first.exception()
    scene.admin.wait_for_voters(scene.tablet, {scene.leader, *others})
