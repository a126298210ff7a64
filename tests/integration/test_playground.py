"""The life of a playground and of its daemons: start, stop, restart, refusals, configuration, health, what programs
read."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import kudu_py as kudu
from kudu_py.testing.process_cluster import COMMAND, ProcessCluster, run_command, wait_until
from kudu_py.testing.workload import make_table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

FIELDS = ["uuid", "rpc_address", "http_address", "pid", "dir", "argv"]


def run_daemon(*argv, env=None, timeout_s=30):
    """A daemon that is expected to end by itself."""
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout_s, check=False, env={**os.environ, **(env or {})}
    )


def tserver(*flags, env=None):
    return run_daemon(*COMMAND, "tserver", "run", *flags, env=env)


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


# -- what programs read ----------------------------------------------------------------------------------------------


def test_playground_json_says_who_runs_where(cluster):
    content = json.loads((cluster.directory / "playground.json").read_text())
    assert list(content) == ["masters", "tservers"]
    assert [len(content["masters"]), len(content["tservers"])] == [1, 3]
    for daemon in content["masters"] + content["tservers"]:
        assert list(daemon) == FIELDS
        assert re.fullmatch("[0-9a-f]{32}", daemon["uuid"])
        assert re.fullmatch(r"127\.0\.0\.1:\d+", daemon["rpc_address"])
        assert re.fullmatch(r"127\.0\.0\.1:\d+", daemon["http_address"])
        assert os.path.isdir(daemon["dir"])
        os.kill(daemon["pid"], 0)
        assert daemon["argv"][0] == sys.executable


def test_every_daemon_shows_metrics_health_and_settings_over_http(cluster):
    for daemon in cluster.daemons:
        base = f"http://{daemon.http_address}"
        status, kind, text = get(f"{base}/metrics")
        assert status == 200
        assert kind.startswith("text/plain")
        names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
        assert names
        assert not {name for name in names if not name.startswith("kudu_")}
        assert "kudu_rpc_duration_seconds_bucket{" in text
        status, kind, text = get(f"{base}/healthz")
        assert (status, kind) == (200, "application/json")
        assert json.loads(text)["status"] == "SERVING"
        settings = {each["name"]: each for each in json.loads(get(f"{base}/varz?format=json")[2])}
        assert settings["rpc_bind_addresses"]["value"] == daemon.rpc_address
        assert "command line" in settings["rpc_bind_addresses"]["source"]
        assert settings["log_level"]["source"] == "default"
        assert get(f"{base}/")[0] == 200
        assert get(f"{base}/no-such-page")[0] == 404


def test_a_playground_that_runs_is_not_started_twice(cluster):
    again = run_command("playground", "start", "--dir", str(cluster.directory), "--detach", check=False)
    assert again.returncode != 0
    assert "is running already" in again.stderr
    assert str(cluster.directory) in again.stderr
    assert all(cluster.is_running(daemon.name) for daemon in cluster.daemons)


def test_another_number_of_daemons_or_a_used_directory_is_refused(cluster, tmp_path):
    (tmp_path / "something").write_text("mine")
    used = run_command("playground", "start", "--dir", str(tmp_path), "--detach", check=False)
    assert used.returncode == 2
    assert str(tmp_path) in used.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["something"]
    missing = run_command("playground", "stop", "--dir", str(tmp_path / "nowhere"), check=False)
    assert missing.returncode != 0
    assert "playground.json" in missing.stderr
    unknown = run_command("playground", "restart", "tserver-9", "--dir", str(cluster.directory), check=False)
    assert unknown.returncode != 0
    assert "tserver-9" in unknown.stderr
    assert "tserver-3" in unknown.stderr


# -- refusals of single daemons --------------------------------------------------------------------------------------


def test_a_second_start_on_a_used_data_directory_is_refused_by_name(cluster):
    daemon = cluster.daemon("tserver-1")
    second = tserver(f"--fs_wal_dir={daemon.dir}", "--rpc_bind_addresses=127.0.0.1:0", "--webserver_port=0")
    assert second.returncode == 1
    assert daemon.dir in second.stderr + second.stdout
    assert cluster.is_running("tserver-1")


def test_a_taken_port_is_refused_by_name(cluster, tmp_path):
    daemon = cluster.daemon("tserver-1")
    second = tserver(f"--fs_wal_dir={tmp_path / 'new'}", f"--rpc_bind_addresses={daemon.rpc_address}")
    assert second.returncode == 1
    assert daemon.rpc_address in second.stderr
    http = tserver(
        f"--fs_wal_dir={tmp_path / 'newer'}",
        "--rpc_bind_addresses=127.0.0.1:0",
        f"--webserver_port={daemon.http_address.rpartition(':')[2]}",
    )
    assert http.returncode == 1
    assert daemon.http_address in http.stderr


def test_a_playground_whose_port_another_cluster_has_taken_does_not_take_that_one_for_its_own(tmp_path):
    with ProcessCluster(tmp_path / "first", tservers=1) as first:
        theirs = first.daemon("master-1").rpc_address
        with ProcessCluster(tmp_path / "late", tservers=1) as late:
            ours = late.daemon("master-1").rpc_address
        record = late.directory / "playground.json"
        record.write_text(record.read_text().replace(ours, theirs))

        start = run_command("playground", "start", "--dir", str(late.directory), "--detach", check=False)

        assert start.returncode == 1
        assert "master-1 ended while starting" in start.stderr
        assert f"{theirs}: Address already in use" in start.stderr
        assert first.is_running("master-1")


def test_a_data_directory_of_another_role_or_server_is_refused_by_name(tmp_path):
    with ProcessCluster(tmp_path / "playground", tservers=1) as small:
        master, one = small.daemon("master-1"), small.daemon("tserver-1")
    role = tserver(f"--fs_wal_dir={master.dir}", "--rpc_bind_addresses=127.0.0.1:0", "--webserver_port=0")
    assert role.returncode == 1
    assert master.dir in role.stderr
    assert "master" in role.stderr
    server = tserver(
        f"--fs_wal_dir={one.dir}",
        "--rpc_bind_addresses=127.0.0.1:0",
        "--webserver_port=0",
        f"--expected_server_uuid={'0' * 32}",
    )
    assert server.returncode == 1
    assert one.uuid in server.stderr
    assert one.dir in server.stderr


def test_wrong_configuration_is_refused_by_name_with_status_2(tmp_path):
    config = tmp_path / "daemon.toml"

    def run(*flags, kind="tserver", env=None):
        return run_daemon(*COMMAND, kind, "run", f"--fs_wal_dir={tmp_path / 'data'}", *flags, env=env)

    config.write_text('log_levle = "info"\n')
    in_file = run(f"--config={config}", kind="master")
    assert (in_file.returncode, "log_levle" in in_file.stderr, str(config) in in_file.stderr) == (2, True, True)
    config.write_text("webserver_port = [")
    broken = run(f"--flagfile={config}")
    assert (broken.returncode, str(config) in broken.stderr) == (2, True)
    absent = run("--config=/no/such/file.toml")
    assert (absent.returncode, "/no/such/file.toml" in absent.stderr) == (2, True)
    flag = run("--web-server-prot=1")
    assert (flag.returncode, "web-server-prot" in flag.stderr.replace("_", "-")) == (2, True)
    value = run("--webserver_port=70000")
    assert (value.returncode, "webserver_port" in value.stderr, "70000" in value.stderr) == (2, True, True)
    variable = run(env={"KUDU_WEBSERVER_PORT": "many"})
    assert (variable.returncode, "KUDU_WEBSERVER_PORT" in variable.stderr) == (2, True)
    address = run("--rpc_bind_addresses=127.0.0.1:notaport")
    assert (address.returncode, "notaport" in address.stderr) == (2, True)
    assert not (tmp_path / "data").exists()
    for each in (in_file, broken, absent, flag, value, variable, address):
        assert "Traceback" not in each.stderr
        assert len(each.stderr.strip().splitlines()) == 1


def test_print_config_shows_each_value_and_where_it_came_from(tmp_path):
    config = tmp_path / "daemon.toml"
    config.write_text('log_level = "warning"\nlog_format = "console"\nwebserver_port = 1\n')
    done = run_daemon(
        *COMMAND, "tserver", "run", f"--config={config}", "--fs-wal-dir=/tmp/x", "--webserver-port=3", "--print-config",
        env={"KUDU_LOG_FORMAT": "json", "KUDU_WEBSERVER_PORT": "2"},
    )  # fmt: skip
    assert done.returncode == 0
    lines = {line.split(" ")[0]: line for line in done.stdout.splitlines()}
    assert 'log_level = "warning"' in lines["log_level"]
    assert str(config) in lines["log_level"]
    assert 'log_format = "json"' in lines["log_format"]
    assert "KUDU_LOG_FORMAT" in lines["log_format"]
    assert "webserver_port = 3" in lines["webserver_port"]
    assert "command line" in lines["webserver_port"]
    assert "default" in lines["heartbeat_interval_ms"]


# -- stop, start, restart --------------------------------------------------------------------------------------------


def test_a_daemon_that_runs_is_restarted_with_more_flags_and_not_started_twice(cluster):
    before = cluster.daemon("tserver-3")
    cluster.restart("tserver-3", "--log_level=debug")
    after = cluster.daemon("tserver-3")
    assert after.argv == (*before.argv, "--log_level=debug")
    commands = [path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert len([each for each in commands if f"--fs_wal_dir={before.dir}".encode() in each]) == 1
    assert cluster.is_running("tserver-3")
    cluster.wait_healthy()


def test_a_playground_comes_back_with_its_data_and_addresses_and_says_who_died(tmp_path):
    held = []
    for port in (7050, 7051, 8050, 8051):
        taken = socket.socket()
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            taken.close()  # taken by someone else: as good
            continue
        held.append(taken)
    try:
        _comes_back(ProcessCluster(tmp_path / "playground"))
    finally:
        for taken in held:
            taken.close()


def _comes_back(cluster):
    with cluster:
        before = cluster.daemons
        assert not {d.rpc_address for d in before} & {"127.0.0.1:7050", "127.0.0.1:7051"}
        with kudu.connect(cluster.masters) as client:
            table = make_table(client, "kept")
            with client.new_session() as session:
                for key in range(500):
                    session.apply(table.new_insert({"key": key, "value": key * key, "text": f"row {key}"}))
        for daemon in reversed(before):
            cluster.terminate(daemon.name, timeout_s=10.0)
        for daemon in before:
            log = cluster.log(daemon.name)
            assert "Traceback" not in log
            assert not [line for line in log.splitlines() if '"level": "error"' in line or '"critical"' in line]
        cluster.start()
        after = cluster.daemons
        same = [(d.uuid, d.rpc_address, d.http_address, d.dir, d.argv) for d in before]
        assert [(d.uuid, d.rpc_address, d.http_address, d.dir, d.argv) for d in after] == same
        with kudu.connect(cluster.masters) as client:
            rows = client.table("kept").scanner().to_arrow().sort_by("key").to_pydict()
            assert rows["value"] == [key * key for key in range(500)]
            assert rows["text"] == [f"row {key}" for key in range(500)]

        # A daemon that dies is shown and not revived; `restart` revives it, and so does its argv.
        dead = cluster.kill("tserver-2")
        status = run_command("playground", "status", "--dir", str(cluster.directory), check=False)
        assert status.returncode == 1
        assert re.search(r"tserver-2 .* stopped", status.stdout)
        assert cluster.ksck()["exit"] == 1
        cluster.restart("tserver-2")
        cluster.wait_healthy()
        cluster.kill("tserver-2")
        by_hand = subprocess.Popen(dead.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            cluster.wait_healthy()
            by_hand.send_signal(signal.SIGTERM)
            assert by_hand.wait(15) == 0
        finally:
            by_hand.kill()
            by_hand.wait()


def test_a_playground_in_the_foreground_reports_a_death_and_stops_all_on_sigint(tmp_path):
    directory = tmp_path / "playground"
    with subprocess.Popen(
        [*COMMAND, "playground", "start", "--tservers", "1", "--dir", str(directory)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            lines = []
            while "Ctrl-C" not in "".join(lines):
                line = process.stderr.readline()
                assert line, "".join(lines)
                lines.append(line)
            cluster = ProcessCluster(directory)
            daemons = cluster.daemons
            os.kill(cluster.daemon("tserver-1").pid, signal.SIGKILL)
            assert "tserver-1 has ended by itself" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(30) == 0, rest
            wait_until(lambda: not any(os.path.exists(f"/proc/{d.pid}") for d in daemons), "all to end")
        finally:
            process.kill()
            run_command("playground", "stop", "--dir", str(directory), check=False)


def test_sigterm_ends_a_daemon_with_status_0_and_drains(tmp_path):
    with ProcessCluster(tmp_path / "playground") as cluster, kudu.connect(cluster.masters) as client:
        table = make_table(client, "drained")
        victim = cluster.busiest_leader()
        # Started by hand, so that its exit status can be seen.
        cluster.terminate(victim.name)
        log_path = tmp_path / "by_hand.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(victim.argv, stdout=log, stderr=log)
        try:
            cluster.wait_healthy()
            session = client.new_session("sync")
            for key in range(20):
                session.apply(table.new_insert({"key": key, "value": key}))
            process.send_signal(signal.SIGTERM)
            for key in range(20, 40):
                session.apply(table.new_insert({"key": key, "value": key}))
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.wait()
        assert "Traceback" not in log_path.read_text()
        cluster.restart(victim.name)
        assert table.scanner().count() == 40


def test_a_cluster_started_on_a_full_disk_serves_reads_says_so_and_takes_writes_when_there_is_room(tmp_path):
    with ProcessCluster(tmp_path / "playground") as cluster:
        with kudu.connect(cluster.masters) as client:
            table = make_table(client, "full", buckets=2)
            with client.new_session() as session:
                session.apply(table.new_insert({"key": 1, "value": 1}))
        names = [daemon.name for daemon in cluster.daemons]
        cluster.stop()
        for name in names:
            cluster.restart(name, f"--fs_wal_dir_reserved_bytes={1 << 50}")  # more than there is: as good as full
        with kudu.connect(cluster.masters, rpc_timeout_ms=2_000) as client:
            table = client.table("full")
            assert table.scanner().count() == 1
            session = client.new_session()
            session.apply(table.new_insert({"key": 2, "value": 2}))
            with pytest.raises(kudu.KuduBadStatus):
                session.flush()
            report = cluster.ksck()
        assert report["exit"] == 1
        for daemon in cluster.daemons:
            assert any(
                daemon.rpc_address in each and f"disk of {daemon.dir} is full" in each for each in report["problems"]
            )
            status, _, text = get(f"http://{daemon.http_address}/healthz")
            health = json.loads(text)
            assert (status, health["status"]) == (200, "DEGRADED")
            assert re.search(rf"disk of {daemon.dir} is full: \d+ bytes are free", health["problems"])
        cluster.stop()
        for name in names:
            cluster.restart(name, "--fs_wal_dir_reserved_bytes=0")
        with kudu.connect(cluster.masters) as client:
            table = client.table("full")
            with client.new_session() as session:
                session.apply(table.new_insert({"key": 3, "value": 3}))
            assert table.scanner().count() in (2, 3)  # what was refused above may have been taken since
        cluster.wait_healthy()
