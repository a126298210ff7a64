"""`kudu-py table`: create, list, describe, delete and scan tables."""

from __future__ import annotations

import asyncio
import csv
import datetime
import json
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from kudu_py.cli import op
from kudu_py.cli.arguments import FormatOption, MastersArgument, ReportFormat, WaitOption, split_addresses
from kudu_py.cli.console import make_console, plain_table
from kudu_py.cli.ksck import CALL_TIMEOUT_S, leader_master
from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.pb import consensus_pb2, master_pb2, master_pb2_grpc
from kudu_py.rpc.call import call
from kudu_py.rpc.dialer import GrpcDialer

# Arrow and the client cost a quarter of a second to import: only the commands that need them pay, in their bodies.
if TYPE_CHECKING:
    import pyarrow as pa

    from kudu_py.common.schema import ColumnSchema, Schema

T = TypeVar("T")

CREATE_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05

app = typer.Typer(help="Create, list, describe, delete and scan tables.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")]


class RowFormat(StrEnum):
    """How rows are printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


async def ask_leader(masters: str, what: Callable[[master_pb2_grpc.MasterServiceAsyncStub], Awaitable[T]]) -> T:
    """What `what` gives when called with the leader master's stub."""
    dialer = GrpcDialer()
    try:
        leader, _, _ = await leader_master(dialer, split_addresses(masters))
        return await what(master_pb2_grpc.MasterServiceStub(dialer.channel(leader)))
    finally:
        await dialer.close()


@app.command()
def create(
    masters: MastersArgument,
    description: Annotated[
        str, typer.Argument(metavar="JSON", help="Upstream's JSON for a table; @FILE reads a file, - standard input.")
    ],
) -> None:
    """Create a table, and return when it can be written."""
    from kudu_py.cli.table_json import parse_table

    request = parse_table(_read_argument(description))

    async def run(stub: master_pb2_grpc.MasterServiceAsyncStub) -> str:
        created = await call(stub.CreateTable(request, timeout=CREATE_TIMEOUT_S))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CREATE_TIMEOUT_S
        while True:
            asked = master_pb2.IsCreateTableDoneRequest(table_id=created.table_id)
            state = await call(stub.IsCreateTableDone(asked, timeout=CALL_TIMEOUT_S))
            if state.done:
                return str(created.table_id)
            if loop.time() > deadline:
                raise KuduError(
                    ErrorCode.TIMED_OUT,
                    f"table {request.name!r} was created, but after {CREATE_TIMEOUT_S:.0f} s only "
                    f"{state.running_tablet_count} of {state.tablet_count} tablets run; see `kudu-py cluster ksck`",
                )
            await asyncio.sleep(POLL_INTERVAL_S)

    print(asyncio.run(ask_leader(masters, run)))


def _read_argument(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if given.startswith("@"):
        try:
            return Path(given[1:]).read_text()
        except OSError as error:
            raise KuduError(ErrorCode.INVALID_ARGUMENT, f"{given[1:]}: {error.strerror}") from error
    return given


@app.command("list")
def list_(
    masters: MastersArgument,
    filter_: Annotated[str, typer.Option("--filter", help="Only names that contain this.")] = "",
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """List tables by name."""

    async def run(stub: master_pb2_grpc.MasterServiceAsyncStub) -> master_pb2.ListTablesResponse:
        return await call(stub.ListTables(master_pb2.ListTablesRequest(name_filter=filter_), timeout=CALL_TIMEOUT_S))

    answer = asyncio.run(ask_leader(masters, run))
    if format_ is ReportFormat.TEXT:
        for table in answer.tables:
            print(table.name)
        return
    shown = [
        {
            "id": table.table_id,
            "name": table.name,
            "state": master_pb2.TableState.Name(table.state).removeprefix("TABLE_"),
            "tablets": table.tablet_count,
            "num_replicas": table.num_replicas,
        }
        for table in answer.tables
    ]
    print(json.dumps(shown, indent=2))


@app.command()
def describe(masters: MastersArgument, table: Name, format_: FormatOption = ReportFormat.TEXT) -> None:
    """Show a table's columns, partitions, tablets and their replicas."""
    from kudu_py.common import wire
    from kudu_py.common.partition import describe_partition

    async def run(
        stub: master_pb2_grpc.MasterServiceAsyncStub,
    ) -> tuple[master_pb2.GetTableSchemaResponse, master_pb2.GetTableLocationsResponse]:
        by_name = master_pb2.GetTableSchemaRequest(table_name=table)
        opened = await call(stub.GetTableSchema(by_name, timeout=CALL_TIMEOUT_S))
        by_id = master_pb2.GetTableLocationsRequest(table_id=opened.table_id)
        return opened, await call(stub.GetTableLocations(by_id, timeout=CALL_TIMEOUT_S))

    opened, locations = asyncio.run(ask_leader(masters, run))
    schema = wire.schema_from_pb(opened.schema)
    if format_ is ReportFormat.JSON:
        print(json.dumps(_description(opened, locations, schema), indent=2))
        return
    console = make_console()
    console.print(f"TABLE {opened.table_name} (", markup=False)
    for column in schema.columns:
        null = "NULLABLE" if column.nullable else "NOT NULL"
        default = "" if column.default is None else f" DEFAULT {column.default!r}"
        console.print(f"    {column.name} {type_text(column)} {null}{default},", markup=False)
    console.print(f"    PRIMARY KEY ({', '.join(column.name for column in schema.key_columns)})\n)", markup=False)
    console.print(f"REPLICAS {opened.num_replicas}   ID {opened.table_id}   SCHEMA VERSION {schema.version}")
    rows = []
    partition_schema = wire.partition_schema_from_pb(opened.partition_schema)
    for tablet in locations.tablet_locations:
        leaders = [r.rpc_address for r in tablet.replicas if r.role == consensus_pb2.LEADER]
        others = [follower_text(r) for r in tablet.replicas if r.role != consensus_pb2.LEADER]
        partition = describe_partition(schema, partition_schema, wire.partition_from_pb(tablet.partition))
        config_index = str(tablet.config_index)
        rows.append((tablet.tablet_id, partition, config_index, ", ".join(leaders) or "none", ", ".join(others)))
    titles = ("TABLET", "PARTITION", "CONFIG", "LEADER", "FOLLOWERS")
    console.print(plain_table(titles, rows, numbers=("CONFIG",)))


def follower_text(replica: master_pb2.ReplicaLocation) -> str:
    """Where a replica is that does not lead, and that it is not counted, if so."""
    is_counted = replica.member_type == consensus_pb2.VOTER
    return replica.rpc_address if is_counted else f"{replica.rpc_address} (pre-voter)"


def type_text(column: ColumnSchema) -> str:
    """A column's type as people write it: such as DECIMAL(9, 2)."""
    from kudu_py.common.schema import DataType

    if column.type is DataType.DECIMAL:
        return f"DECIMAL({column.precision}, {column.scale})"
    return f"VARCHAR({column.length})" if column.type is DataType.VARCHAR else column.type.value


def _description(
    opened: master_pb2.GetTableSchemaResponse, locations: master_pb2.GetTableLocationsResponse, schema: Schema
) -> dict[str, object]:
    return {
        "id": opened.table_id,
        "name": opened.table_name,
        "num_replicas": opened.num_replicas,
        "schema_version": schema.version,
        "columns": [
            {
                "name": column.name,
                "type": type_text(column),
                "nullable": column.nullable,
                "is_key": i < schema.key_count,
                "default": None if column.default is None else str(column.default),
            }
            for i, column in enumerate(schema.columns)
        ],
        "tablets": [
            {
                "id": tablet.tablet_id,
                "partition": tablet.partition.description,
                "config_index": tablet.config_index,
                "replicas": [
                    {
                        "tserver": replica.ts_uuid,
                        "address": replica.rpc_address,
                        "role": consensus_pb2.Role.Name(replica.role),
                        "member_type": consensus_pb2.MemberType.Name(replica.member_type),
                    }
                    for replica in tablet.replicas
                ],
            }
            for tablet in locations.tablet_locations
        ],
    }


@app.command()
def delete(masters: MastersArgument, table: Name) -> None:
    """Delete a table and all its rows."""

    async def run(stub: master_pb2_grpc.MasterServiceAsyncStub) -> object:
        return await call(stub.DeleteTable(master_pb2.DeleteTableRequest(table_name=table), timeout=CREATE_TIMEOUT_S))

    asyncio.run(ask_leader(masters, run))


@app.command("set_replication_factor")
def set_replication_factor(
    masters: MastersArgument,
    table: Name,
    count: Annotated[int, typer.Argument(min=1, help="How many voters each tablet is to have; odd.")],
    wait: WaitOption = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """Change how many voters the tablets of a table have. Goes on without its caller.

    Example: kudu-py table set_replication_factor 127.0.0.1:7051 metrics 5 --wait
    """

    async def run(stub: master_pb2_grpc.MasterServiceAsyncStub) -> str:
        request = master_pb2.ChangeVotingReplicaCountRequest(table_name=table, count=count)
        answer = await call(stub.ChangeVotingReplicaCount(request, timeout=CALL_TIMEOUT_S), wrote=True)
        return answer.operation_id

    op.begun(split_addresses(masters), asyncio.run(ask_leader(masters, run)), wait=wait, format_=format_)


@app.command()
def scan(
    masters: MastersArgument,
    table: Name,
    columns: Annotated[str, typer.Option(help="Comma-separated columns, in that order (default: all).")] = "",
    predicates: Annotated[
        str, typer.Option(help="""Conditions in upstream's JSON: '["AND", [">=", "key", 5], ["NOTNULL", "name"]]'.""")
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="At most so many rows; 0: all.")] = 0,
    format_: Annotated[
        RowFormat, typer.Option("--format", help="A table for people, an object a line, or CSV with a header.")
    ] = RowFormat.TEXT,
) -> None:
    """Print the rows of a table, all from one snapshot."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    asyncio.run(_scan(split_addresses(masters), table, names, predicates, limit, format_))


async def _scan(
    addresses: list[str], name: str, columns: list[str], predicates: str, limit: int, row_format: RowFormat
) -> None:
    from kudu_py.cli.table_json import parse_predicates
    from kudu_py.client import aio
    from kudu_py.common import wire

    async with await aio.connect(addresses) as client:
        table = await client.table(name)
        conditions = parse_predicates(predicates, table.schema) if predicates else []
        scanner = table.scanner()
        if columns:
            scanner.set_projected_column_names(columns)
        for condition in conditions:
            scanner.add_predicate(wire.predicate_from_pb(table.schema, condition))
        if limit:
            scanner.set_limit(limit)
        printer = _PRINTERS[row_format](columns or list(table.schema.names))
        async for batch in scanner.record_batches():
            printer.rows(batch)
        printer.end()


class _Printer(Protocol):
    """What prints rows in one format."""

    def rows(self, batch: pa.RecordBatch) -> None: ...

    def end(self) -> None: ...


class _TextPrinter:
    """A line a row, columns parted by tabs; the number of rows goes to standard error."""

    def __init__(self, columns: list[str]) -> None:
        self._count = 0
        print("\t".join(columns))

    def rows(self, batch: pa.RecordBatch) -> None:
        self._count += batch.num_rows
        for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
            print("\t".join("NULL" if value is None else _plain(value) for value in row))

    def end(self) -> None:
        print(counted(self._count, "row"), file=sys.stderr)


class _JsonPrinter:
    """An object a line."""

    def __init__(self, columns: list[str]) -> None:
        pass

    def rows(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            print(json.dumps(row, default=_plain))

    def end(self) -> None:
        pass


class _CsvPrinter:
    """RFC 4180 with a header; a null is an empty field."""

    def __init__(self, columns: list[str]) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._writer.writerow(columns)

    def rows(self, batch: pa.RecordBatch) -> None:
        for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
            self._writer.writerow(["" if value is None else _plain(value) for value in row])

    def end(self) -> None:
        pass


_PRINTERS: dict[RowFormat, Callable[[list[str]], _Printer]] = {
    RowFormat.TEXT: _TextPrinter,
    RowFormat.JSON: _JsonPrinter,
    RowFormat.CSV: _CsvPrinter,
}


def _plain(value: object) -> str:
    """A cell as text that reads back: times in ISO 8601, bytes in hexadecimal."""
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)
