"""The commands of users and admins, and upstream's basic example, on a real cluster."""

import csv
import datetime
import io
import json

import pytest

import kudu_py as kudu
from kudu_py.testing.process_cluster import run_command

pytestmark = pytest.mark.integration

TABLE = {
    "table_name": "readings",
    "schema": {
        "columns": [
            {"column_name": "at", "column_type": "UNIXTIME_MICROS", "is_nullable": False},
            {"column_name": "id", "column_type": "INT32", "is_nullable": False},
            {"column_name": "value", "column_type": "DOUBLE", "is_nullable": True},
            {"column_name": "note", "column_type": "STRING", "is_nullable": True, "default_value": "none"},
            {
                "column_name": "price",
                "column_type": "DECIMAL",
                "is_nullable": True,
                "type_attributes": {"precision": 9, "scale": 2},
            },
        ],
        "key_column_names": ["id", "at"],
    },
    "partition": {"hash_partitions": [{"columns": ["id"], "num_buckets": 3}]},
    "num_replicas": 3,
}


@pytest.fixture(scope="module")
def masters(cluster):
    """With one table of three rows, made by the command."""
    made = run_command("table", "create", cluster.masters, json.dumps(TABLE))
    assert len(made.stdout.strip()) == 32
    with kudu.connect(cluster.masters) as client:
        table = client.table("readings")
        session = client.new_session()
        session.apply(table.new_insert({"id": 1, "at": 1_000_000, "value": 1.5, "note": 'a "quoted", text'}))
        session.apply(table.new_insert({"id": 2, "at": 2_000_000, "value": None}))
        session.apply(table.new_insert({"id": 3, "at": 3_000_000, "note": None, "price": "12.50"}))
        session.flush()
    return cluster.masters


def scan(masters, *options):
    return run_command("table", "scan", masters, "readings", *options).stdout


def test_tables_are_listed_described_and_deleted(masters, tmp_path):
    assert run_command("table", "list", masters).stdout.split() == ["readings"]
    (listed,) = json.loads(run_command("table", "list", masters, "--format", "json").stdout)
    assert (listed["name"], listed["tablets"], listed["num_replicas"]) == ("readings", 3, 3)
    shown = run_command("table", "describe", masters, "readings").stdout
    for part in ("TABLE readings", "price DECIMAL(9, 2)", "PRIMARY KEY (id, at)", "REPLICAS 3"):
        assert part in shown
    described = json.loads(run_command("table", "describe", masters, "readings", "--format", "json").stdout)
    assert [column["name"] for column in described["columns"]] == ["id", "at", "value", "note", "price"]
    assert len(described["tablets"]) == 3
    assert all(len(tablet["replicas"]) == 3 for tablet in described["tablets"])
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**TABLE, "table_name": "short_lived"}))
    run_command("table", "create", masters, f"@{path}")
    run_command("table", "delete", masters, "short_lived")
    assert run_command("table", "list", masters).stdout.split() == ["readings"]
    run_command("table", "create", masters, "-", stdin=json.dumps({**TABLE, "table_name": "short_lived"}))
    run_command("table", "delete", masters, "short_lived")


def test_a_scan_prints_an_object_a_line(masters):
    rows = sorted((json.loads(line) for line in scan(masters, "--format", "json").splitlines()), key=lambda r: r["id"])
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert rows[0]["note"] == 'a "quoted", text'
    assert rows[1]["value"] is None
    assert rows[1]["note"] == "none"
    assert rows[2]["note"] is None
    assert str(rows[2]["price"]) == "12.50"


def test_a_scan_prints_csv_with_a_header(masters):
    rows = list(csv.DictReader(io.StringIO(scan(masters, "--format", "csv", "--columns", "id,note"))))
    assert sorted((row["id"], row["note"]) for row in rows) == [("1", 'a "quoted", text'), ("2", "none"), ("3", "")]


def test_a_scan_takes_columns_predicates_and_a_limit(masters):
    found = scan(masters, "--columns", "note,id", "--predicates", '["AND", [">=", "id", 2], ["NOTNULL", "note"]]')
    assert found.splitlines() == ["note\tid", "none\t2"]
    one_of = scan(masters, "--columns", "id", "--predicates", '["IN", "id", [1, 3]]', "--format", "json")
    assert sorted(json.loads(line)["id"] for line in one_of.splitlines()) == [1, 3]
    assert len(scan(masters, "--limit", "2", "--format", "json").splitlines()) == 2


def test_tablet_servers_are_listed(masters, cluster):
    listed = json.loads(run_command("tserver", "list", masters, "--format", "json").stdout)
    tservers = [daemon for daemon in cluster.daemons if daemon.name.startswith("tserver")]
    wanted = {(each.uuid, each.rpc_address, "LIVE") for each in tservers}
    assert {(each["uuid"], each["rpc_address"], each["state"]) for each in listed} == wanted
    text = run_command("tserver", "list", masters).stdout
    assert all(t.uuid in text for t in tservers)


def test_upstreams_basic_example_runs_with_its_import_changed(masters):
    host, _, port = masters.partition(":")
    client = kudu.connect(host=host, port=int(port))
    builder = kudu.schema_builder()
    builder.add_column("key").type(kudu.int64).nullable(False).primary_key()
    builder.add_column("ts_val", type_=kudu.unixtime_micros, nullable=False, compression="lz4")
    schema = builder.build()
    partitioning = kudu.Partitioning().add_hash_partitions(column_names=["key"], num_buckets=3)
    if client.table_exists("python-example"):
        client.delete_table("python-example")
    client.create_table("python-example", schema, partitioning)
    table = client.table("python-example")
    session = client.new_session()
    session.apply(table.new_insert({"key": 1, "ts_val": "2016-01-01T00:00:00.000000"}))
    session.apply(table.new_upsert({"key": 2, "ts_val": "2016-01-01T00:00:00.000000"}))
    session.apply(table.new_update({"key": 1, "ts_val": ("2017-01-01", "%Y-%m-%d")}))
    session.apply(table.new_delete({"key": 2}))
    try:
        session.flush()
    except kudu.KuduBadStatus:
        pytest.fail(str(session.get_pending_errors()))
    scanner = table.scanner()
    scanner.add_predicate(table["ts_val"] == datetime.datetime(2017, 1, 1))
    result = scanner.open().read_all_tuples()
    assert [row[0] for row in result] == [1]
    client.delete_table("python-example")
    client.close()


def test_ksck_tells_healthy_from_unhealthy_by_its_status(masters, cluster):
    report = cluster.wait_healthy()
    assert report["healthy"]
    assert {m["role"] for m in report["masters"]} == {"LEADER"}
    assert len(report["tservers"]) == 3
    assert all(tablet["verdict"] == "HEALTHY" for tablet in report["tablets"])
    assert len(report["checksums"]["replicas"]) == 3 * len(report["tablets"])
    text = run_command("cluster", "ksck", masters, "--checksum-scan")
    assert text.stdout.strip().endswith("OK")
    assert run_command("cluster", "ksck", check=False).returncode == 2
    assert run_command("cluster", "ksck", "nonsense", check=False).returncode == 2
    assert run_command("cluster", "ksck", "127.0.0.1:1", check=False).returncode == 3
    dead = cluster.kill("tserver-2")
    sick = cluster.ksck()
    assert (sick["exit"], sick["healthy"]) == (1, False)
    assert any(dead.uuid in problem for problem in sick["problems"])
    cluster.restart("tserver-2")
    cluster.wait_healthy()
