"""`kudu-py op`: long operations, which go on without whoever began them: list, watch, cancel."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Final, NoReturn

import typer

from kudu_py.cli.amounts import duration_text, instant_text
from kudu_py.cli.arguments import FormatOption, MastersArgument, ReportFormat, split_addresses
from kudu_py.cli.console import command_name, make_console, plain_table, say
from kudu_py.cli.ksck import CALL_TIMEOUT_S
from kudu_py.cli.masters import UUID_PREFIX_MIN, Masters, run_with_masters
from kudu_py.cli.progress import ID_CHARACTERS, Progress, ProgressLine
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.ids import is_id
from kudu_py.pb import master_pb2

WATCH_INTERVAL_S: Final = 0.5
EXIT_INTERRUPTED: Final = 130

ENDED: Final = frozenset({master_pb2.Operation.DONE, master_pb2.Operation.FAILED, master_pb2.Operation.CANCELLED})

app = typer.Typer(
    help="Long operations (moves, voter counts, retirements): they go on without their caller.", no_args_is_help=True
)

OperationId = Annotated[str, typer.Argument(metavar="OPERATION", help="Its id, or the first characters of it.")]


@app.command("list")
def list_(
    masters: MastersArgument,
    all_: Annotated[bool, typer.Option("--all", help="Ended ones, too.")] = False,
    format_: FormatOption = ReportFormat.TEXT,
) -> None:
    """List long operations, newest first.

    Example: kudu-py op list 127.0.0.1:7051 --all
    """

    async def body(masters: Masters) -> list[master_pb2.Operation]:
        return await _operations(masters, include_ended=all_)

    operations = run_with_masters(split_addresses(masters), body)
    if format_ is ReportFormat.JSON:
        print(json.dumps([operation_json(operation) for operation in operations], indent=2))
        return
    if not operations:
        say("no operation is under way" + ("" if all_ else "; --all shows ended ones"))
        return
    rows = [
        (operation.operation_id, state_text(operation), what_text(operation), how_far_text(operation))
        for operation in operations
    ]
    make_console().print(plain_table(("OPERATION", "STATE", "WHAT", "HOW FAR"), rows))


@app.command()
def watch(masters: MastersArgument, operation: OperationId, format_: FormatOption = ReportFormat.TEXT) -> None:
    """Show how far an operation is until it ends; Ctrl-C ends the watching only.

    Exits 0 if it is DONE, 1 if it FAILED or was CANCELLED.

    Example: kudu-py op watch 127.0.0.1:7051 3f2a9c1e
    """
    addresses = split_addresses(masters)

    async def find(masters: Masters) -> str:
        return await find_operation(masters, operation)

    watch_to_the_end(addresses, run_with_masters(addresses, find), format_)


@app.command()
def cancel(masters: MastersArgument, operation: OperationId, format_: FormatOption = ReportFormat.TEXT) -> None:
    """Cancel an operation.

    Nothing more is begun, and a replica that was added and does not count yet
    is removed. Exits 0 if it is CANCELLED, by this call or by one before it,
    so that a call whose answer was lost can be made again; 1 if it had ended
    as DONE or FAILED.

    Example: kudu-py op cancel 127.0.0.1:7051 3f2a9c1e
    """

    async def body(masters: Masters) -> master_pb2.Operation:
        request = master_pb2.CancelOperationRequest(operation_id=await find_operation(masters, operation))
        answer = await masters.tell(lambda stub: stub.CancelOperation(request, timeout=CALL_TIMEOUT_S))
        return answer.operation

    ended = run_with_masters(split_addresses(masters), body)
    exit_code, text = outcome_of_cancel(ended)
    print(json.dumps(operation_json(ended), indent=2) if format_ is ReportFormat.JSON else text)
    raise typer.Exit(exit_code)


def outcome_of_cancel(operation: master_pb2.Operation) -> tuple[int, str]:
    """Exit code and text for an operation as it is after it was to be cancelled: what was wanted may hold already."""
    if operation.state == master_pb2.Operation.CANCELLED:
        return 0, f"operation {operation.operation_id} is cancelled: {what_text(operation)}"
    return 1, f"operation {operation.operation_id} had ended before: {state_text(operation)}"


def begun(masters: list[str], operation_id: str, *, wait: bool, format_: ReportFormat) -> None:
    """What a command says that has begun an operation: its id, or, with `wait`, how it goes until the end.

    Raises:
        typer.Exit: with `wait`, as `op watch`.
    """
    if wait:
        watch_to_the_end(masters, operation_id, format_)
    elif format_ is ReportFormat.JSON:
        print(json.dumps({"operation_id": operation_id}))
    else:
        print(operation_id)
        say(f"it goes on by itself; watch it with:\n  {_command('watch', masters, operation_id)}")


def watch_to_the_end(masters: list[str], operation_id: str, format_: ReportFormat) -> NoReturn:
    """Shows progress until the operation has ended, over restarts of the masters, and says how.

    Raises:
        typer.Exit: 0 if it is DONE, 1 if it FAILED or was CANCELLED, 130 after Ctrl-C, which tells how to come back.
    """

    async def body(masters: Masters) -> master_pb2.Operation:
        return await _watch(masters, operation_id)

    try:
        ended = run_with_masters(masters, body)
    except KeyboardInterrupt:
        say(
            "the operation goes on by itself. Come back to it, or end it:\n"
            f"  {_command('watch', masters, operation_id)}\n  {_command('cancel', masters, operation_id)}"
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if format_ is ReportFormat.JSON:
        print(json.dumps(operation_json(ended), indent=2))
    else:
        took = duration_text((ended.ended_micros - ended.created_micros) / 1e6)
        print(f"{state_text(ended)} after {took}: {what_text(ended)}")
    raise typer.Exit(0 if ended.state == master_pb2.Operation.DONE else 1)


async def _watch(masters: Masters, operation_id: str) -> master_pb2.Operation:
    request = master_pb2.GetOperationRequest(operation_id=operation_id)
    loop = asyncio.get_running_loop()
    with ProgressLine() as line:
        while True:
            answer = await masters.ask_patiently(lambda stub: stub.GetOperation(request, timeout=CALL_TIMEOUT_S))
            if answer.operation.state in ENDED:
                return answer.operation
            line.show(progress_of(answer.operation), loop.time())
            await asyncio.sleep(WATCH_INTERVAL_S)


async def find_operation(masters: Masters, given: str) -> str:
    """The id of the operation that a user means; a whole one is believed, the master judges it."""
    return given if is_id(given) else match_operation(await _operations(masters, include_ended=True), given)


def match_operation(operations: list[master_pb2.Operation], given: str) -> str:
    """The id that begins with `given`.

    Raises:
        KuduError: NOT_FOUND, or INVALID_ARGUMENT if it is the beginning of several or too short to be meant.
    """
    found = [operation.operation_id for operation in operations if operation.operation_id.startswith(given)]
    if len(given) < UUID_PREFIX_MIN or len(found) > 1:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"{given!r} names {'several operations' if len(found) > 1 else 'no operation'}; give an id, or its first "
            f"{UUID_PREFIX_MIN} characters or more",
        )
    if not found:
        raise KuduError(ErrorCode.NOT_FOUND, f"no operation's id begins with {given}; `op list --all` shows them")
    return found[0]


async def _operations(masters: Masters, *, include_ended: bool) -> list[master_pb2.Operation]:
    request = master_pb2.ListOperationsRequest(include_ended=include_ended)
    answer = await masters.ask(lambda stub: stub.ListOperations(request, timeout=CALL_TIMEOUT_S))
    return list(answer.operations)


def progress_of(operation: master_pb2.Operation) -> Progress:
    """How far an operation is, as progress is shown."""
    return Progress(
        operation.progress or state_text(operation),
        steps_done=operation.steps_done,
        steps_total=operation.steps_total,
        bytes_done=operation.bytes_done,
        bytes_total=operation.bytes_total,
        bytes_per_s=operation.bytes_per_s,
        log_lag_entries=operation.log_lag_entries,
    )


def state_text(operation: master_pb2.Operation) -> str:
    """`RUNNING`, or `FAILED: why`."""
    state = master_pb2.Operation.State.Name(operation.state)
    return f"{state}: {operation.error}" if operation.error else state


def what_text(operation: master_pb2.Operation) -> str:
    """What was asked for; servers by the first characters of their uuids, which commands take."""
    match operation.kind:
        case master_pb2.MOVE_REPLICA:
            way = f"from {operation.from_ts_uuid[:ID_CHARACTERS]} to {operation.to_ts_uuid[:ID_CHARACTERS]}"
            return f"move a replica of tablet {operation.tablet_id} {way}"
        case master_pb2.CHANGE_VOTING_REPLICA_COUNT:
            of = f"tablet {operation.tablet_id}" if operation.tablet_id else f"table {operation.table_name}"
            return f"{operation.count} voters for {of}"
        case master_pb2.RETIRE_TABLET_SERVER:
            return f"retire tablet server {operation.ts_uuid}"
        case _:
            return f"an operation of a newer kind ({operation.kind})"


def how_far_text(operation: master_pb2.Operation) -> str:
    """Of one under way, its progress; of one that has ended, when."""
    if operation.state in ENDED:
        return f"ended {instant_text(operation.ended_micros)}"
    return progress_of(operation).text


def operation_json(operation: master_pb2.Operation) -> dict[str, object]:
    """For programs; keys are stable."""
    return {
        "id": operation.operation_id,
        "kind": master_pb2.OperationKind.Name(operation.kind),
        "state": master_pb2.Operation.State.Name(operation.state),
        "tablet": operation.tablet_id,
        "table": operation.table_name,
        "from_tserver": operation.from_ts_uuid,
        "to_tserver": operation.to_ts_uuid,
        "tserver": operation.ts_uuid,
        "count": operation.count,
        "created_micros": operation.created_micros,
        "ended_micros": operation.ended_micros or None,
        "error": operation.error,
        "progress": operation.progress,
        "steps_done": operation.steps_done,
        "steps_total": operation.steps_total,
        "bytes_done": operation.bytes_done,
        "bytes_total": operation.bytes_total,
        "bytes_per_s": operation.bytes_per_s,
        "log_lag_entries": operation.log_lag_entries,
    }


def _command(verb: str, masters: list[str], operation_id: str) -> str:
    return f"{command_name()} op {verb} {','.join(masters)} {operation_id}"
