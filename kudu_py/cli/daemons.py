"""`kudu-py master run` and `kudu-py tserver run`: single daemons, configured by their own flags."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""All arguments belong to the daemon, `--help` among them."""

master_app = typer.Typer(help="Run a master.", no_args_is_help=True)


@master_app.command("run", context_settings=PASS_THROUGH, add_help_option=False)
def run_master(context: typer.Context) -> NoReturn:
    """Run a master in this process (`--help` lists its flags)."""
    from kudu_py.master.__main__ import main

    sys.exit(main(context.args))


def run_tserver(context: typer.Context) -> NoReturn:
    """Run a tablet server in this process (`--help` lists its flags)."""
    from kudu_py.tserver.__main__ import main

    sys.exit(main(context.args))
