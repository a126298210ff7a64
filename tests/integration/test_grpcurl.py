"""Every service through server reflection, typed by hand as an admin would: with grpcurl, or with buf where it is not
there."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import grpc
import pytest

import kudu_py as kudu
from kudu_py.pb import consensus_pb2, consensus_pb2_grpc
from kudu_py.testing.workload import make_table

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
GRPCURL = ROOT / "build" / "bin" / "grpcurl"
NOBODY = "f" * 32

COMMON = {
    "kudu.consensus.v1.ConsensusService",
    "kudu.tabletcopy.v1.TabletCopyService",
    "kudu.server.v1.GenericService",
    "grpc.health.v1.Health",
}
SERVICES = {
    "master-1": COMMON | {"kudu.master.v1.MasterService"},
    "tserver-1": COMMON | {"kudu.tserver.v1.TabletServerService", "kudu.tserver.v1.TabletServerAdminService"},
}


class Grpcurl:
    """The tool at hand. Answers are JSON; refusals are (code, text)."""

    def __init__(self):
        self.name = "grpcurl" if GRPCURL.exists() else "buf"
        if self.name == "buf" and not shutil.which("buf", path=str(ROOT / ".venv/bin")):
            pytest.skip("neither grpcurl nor buf is here")

    def run(self, *arguments):
        return subprocess.run([str(GRPCURL), "-plaintext", *arguments], capture_output=True, text=True, timeout=30)

    def call(self, address, method, request=None):
        text = request if isinstance(request, str) else json.dumps(request or {})
        if self.name == "grpcurl":
            done = self.run("-format-error", "-d", text, address, method)
        else:
            buf = [str(ROOT / ".venv/bin/buf"), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d", text]
            done = subprocess.run(
                [*buf, f"http://{address}/{method}"], capture_output=True, text=True, timeout=30, check=False
            )
        if done.returncode:
            assert done.stderr.startswith("{"), done.stderr  # else it did not get as far as the server
            return json.loads(done.stderr)
        decoder, answers, rest = json.JSONDecoder(), [], done.stdout.strip()
        while rest:
            answer, end = decoder.raw_decode(rest)
            answers.append(answer)
            rest = rest[end:].strip()
        return answers[0] if len(answers) == 1 else answers


@pytest.fixture(scope="module")
def grpcurl():
    tool = Grpcurl()
    print(f"calling with {tool.name}")
    return tool


@pytest.fixture(scope="module")
def table(cluster):
    with kudu.connect(cluster.masters) as client:
        table = make_table(client, "typed", buckets=1)
        with client.new_session() as session:
            for key in range(10):
                session.apply(table.new_insert({"key": key, "value": key * 10}))
        yield table


@pytest.fixture(scope="module")
def tablet(table):
    return table.client.table("typed").tablets()[0]


def test_services_are_listed_and_described(cluster, grpcurl):
    if grpcurl.name != "grpcurl":
        pytest.skip("buf curl lists in another form")
    for name, wanted in SERVICES.items():
        address = cluster.daemon(name).rpc_address
        listed = set(grpcurl.run(address, "list").stdout.split())
        assert wanted <= listed
        for service in sorted(wanted):
            assert "service " in grpcurl.run(address, "describe", service).stdout
            methods = grpcurl.run(address, "list", service).stdout.split()
            assert methods
            for method in methods:
                described = grpcurl.run(address, "describe", method).stdout
                assert "rpc " in described
                request = re.search(r"rpc \w+ \( (?:stream )?\.(\S+) \)", described)[1]
                assert "message " in grpcurl.run(address, "describe", request).stdout


def test_every_service_answers_requests_typed_by_hand(cluster, grpcurl, tablet):
    master, servers = cluster.masters, [d for d in cluster.daemons if d.name.startswith("tserver")]
    leader = cluster.daemon(tablet.leader_uuid)

    live = grpcurl.call(master, "kudu.master.v1.MasterService/ListTabletServers")
    assert {server["uuid"] for server in live["servers"]} == {server.uuid for server in servers}
    assert {server["state"] for server in live["servers"]} == {"LIVE"}
    tables = grpcurl.call(master, "kudu.master.v1.MasterService/ListTables", {"name_filter": "typ"})
    assert [each["name"] for each in tables["tables"]] == ["typed"]
    located = grpcurl.call(master, "kudu.master.v1.MasterService/GetTableLocations", {"table_name": "typed"})
    (found,) = located.get("tabletLocations", located.get("tablet_locations"))
    assert sorted(replica["role"] for replica in found["replicas"]) == ["FOLLOWER", "FOLLOWER", "LEADER"]
    created = grpcurl.call(
        master,
        "kudu.master.v1.MasterService/CreateTable",
        {
            "name": "by_hand",
            "num_replicas": 3,
            "schema": {"columns": [{"name": "k", "type": "INT64"}, {"name": "v", "type": "STRING", "nullable": True}],
                       "key_count": 1},
            "partition_schema": {"hash_levels": [{"columns": ["k"], "bucket_count": 2}]},
        },
    )  # fmt: skip
    assert created.get("tableId") or created.get("table_id"), created
    grpcurl.call(master, "kudu.master.v1.MasterService/DeleteTable", {"table_name": "by_hand"})

    scanned = grpcurl.call(
        leader.rpc_address,
        "kudu.tserver.v1.TabletServerService/Scan",
        {"tablet_id": tablet.tablet_id, "count_only": True, "read_mode": "READ_LATEST"},
    )
    scanned = scanned if isinstance(scanned, list) else [scanned]
    assert sum(int(answer.get("rowCount", answer.get("row_count", 0))) for answer in scanned) == 10
    # At one snapshot: what a follower has applied of its own accord may lag behind what was acknowledged.
    checksum = "kudu.tserver.v1.TabletServerService/Checksum"
    of_leader = grpcurl.call(leader.rpc_address, checksum, {"tablet_id": tablet.tablet_id})
    at = of_leader.get("snapshotTimestamp", of_leader.get("snapshot_timestamp"))
    sums = {
        grpcurl.call(server.rpc_address, checksum, {"tablet_id": tablet.tablet_id, "snapshot_timestamp": at})[
            "checksum"
        ]
        for server in servers
    }
    assert sums == {of_leader["checksum"]}
    state = grpcurl.call(
        leader.rpc_address,
        "kudu.consensus.v1.ConsensusService/GetConsensusState",
        {"dest_uuid": leader.uuid, "tablet_ids": [tablet.tablet_id]},
    )
    assert state["tablets"][0]["state"]["role"] == "LEADER"
    gone = grpcurl.call(
        leader.rpc_address,
        "kudu.tserver.v1.TabletServerAdminService/DeleteTablet",
        {"dest_uuid": leader.uuid, "tablet_id": "0" * 31 + "1", "delete_type": "TOMBSTONED"},
    )
    assert gone == {} or gone["message"].startswith("TABLET_NOT_FOUND: ")
    for daemon in cluster.daemons:
        said = grpcurl.call(daemon.rpc_address, "kudu.server.v1.GenericService/GetStatus")
        assert said["registration"]["uuid"] == daemon.uuid
        assert grpcurl.call(daemon.rpc_address, "grpc.health.v1.Health/Check") == {"status": "SERVING"}


def test_an_error_has_a_code_a_reason_and_a_message_that_begins_with_it(cluster, grpcurl):
    refused = grpcurl.call(
        cluster.masters, "kudu.master.v1.MasterService/GetTableSchema", {"table_name": "no_such_table"}
    )
    assert refused["message"].startswith("TABLE_NOT_FOUND: ")
    assert "no_such_table" in refused["message"]
    assert refused["code"] in (5, "not_found")
    if grpcurl.name == "grpcurl":
        (info,) = [detail for detail in refused["details"] if detail["@type"].endswith("google.rpc.ErrorInfo")]
        assert (info["reason"], info["domain"]) == ("TABLE_NOT_FOUND", "kudu_py")


@pytest.mark.parametrize("dest", ["", NOBODY])
def test_a_request_for_another_server_is_refused_by_every_method(cluster, grpcurl, tablet, dest):
    address = cluster.daemon("tserver-1").rpc_address
    consensus = "kudu.consensus.v1.ConsensusService"
    admin = "kudu.tserver.v1.TabletServerAdminService"
    to = {"dest_uuid": dest, "tablet_id": tablet.tablet_id}
    for method, request in (
        (f"{consensus}/UpdateConsensus", {**to, "caller_uuid": NOBODY, "caller_term": 99}),
        (f"{consensus}/RequestVote", {**to, "candidate_uuid": NOBODY, "candidate_term": 99}),
        (f"{consensus}/RunLeaderElection", to),
        (f"{consensus}/LeaderStepDown", to),
        (f"{consensus}/GetConsensusState", {"dest_uuid": dest, "tablet_ids": [tablet.tablet_id]}),
        (f"{consensus}/GetLastOpId", to),
        (f"{admin}/CreateTablet", to),
        (f"{admin}/DeleteTablet", {**to, "delete_type": "TOMBSTONED"}),
    ):
        refused = grpcurl.call(address, method, request)
        assert str(refused.get("message", "")).startswith("WRONG_SERVER_UUID: "), (method, refused)
        assert cluster.daemon("tserver-1").uuid in refused["message"]


def test_each_item_of_a_stream_is_checked_and_a_wrong_one_does_not_end_it(cluster, tablet):
    server = cluster.daemon("tserver-1")
    items = [
        consensus_pb2.UpdateConsensusStreamRequest.Item(
            sequence=i,
            request=consensus_pb2.UpdateConsensusRequest(
                dest_uuid=dest, tablet_id=tablet.tablet_id, caller_uuid=NOBODY, caller_term=0
            ),
        )
        for i, dest in enumerate(("", NOBODY, server.uuid), 1)
    ]
    with grpc.insecure_channel(server.rpc_address) as channel:
        stub = consensus_pb2_grpc.ConsensusServiceStub(channel)
        requests = iter([consensus_pb2.UpdateConsensusStreamRequest(items=[item]) for item in items])
        answers = {}
        for message in stub.UpdateConsensusStream(requests, timeout=10):
            answers |= {item.sequence: item for item in message.items}
    assert sorted(answers) == [1, 2, 3]
    assert answers[1].error.reason == answers[2].error.reason == "WRONG_SERVER_UUID"
    assert answers[3].error.reason != "WRONG_SERVER_UUID"
