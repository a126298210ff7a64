"""Groups and entry point of `kudu-py`.

Exit status: 0 done (or healthy), 1 failed (or unhealthy), 2 wrong usage, 3 no master reachable.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from kudu_py import __version__
from kudu_py.cli import (
    cluster,
    daemons,
    demo,
    local_replica,
    op,
    playground_group,
    remote_replica,
    table,
    tablet,
    tserver,
)
from kudu_py.common.errors import ErrorCode, KuduError, Verdict

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3

app = typer.Typer(
    name="kudu-py",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(playground_group.app, name="playground")
app.add_typer(cluster.app, name="cluster")
app.add_typer(table.app, name="table")
app.add_typer(tablet.app, name="tablet")
app.add_typer(tserver.app, name="tserver")
app.add_typer(op.app, name="op")
app.add_typer(remote_replica.app, name="remote_replica")
app.add_typer(local_replica.app, name="local_replica")
app.add_typer(daemons.master_app, name="master")
app.command("demo")(demo.demo)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"kudu_py {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Run and look after a kudu_py cluster."""


_USAGE_CODES = frozenset({ErrorCode.INVALID_ARGUMENT, ErrorCode.CONFIGURATION_ERROR})


def main() -> NoReturn:
    """The command; never raises, ends the process with one of the statuses above."""
    try:
        app()
    except KuduError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.verdict is Verdict.UNKNOWN:
            print("It is not known whether what was asked for was done: look before you ask again.", file=sys.stderr)
        unreachable = error.details.get("unreachable") == "masters"
        sys.exit(EXIT_UNREACHABLE if unreachable else EXIT_USAGE if error.code in _USAGE_CODES else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has enough; the interpreter must not complain when it flushes at exit.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(0)


if __name__ == "__main__":
    main()
