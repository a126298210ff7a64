"""Arguments and options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class ReportFormat(StrEnum):
    """How a result is printed."""

    TEXT = "text"
    JSON = "json"


MastersArgument = Annotated[str, typer.Argument(help="Comma-separated master addresses, host:port.", metavar="MASTERS")]
TabletArgument = Annotated[str, typer.Argument(metavar="TABLET", help="The tablet's id; `table describe` shows them.")]
ServerArgument = Annotated[
    str, typer.Argument(metavar="TSERVER", help="A tablet server: its uuid, the first characters of it, or host:port.")
]
AddressArgument = Annotated[str, typer.Argument(metavar="TSERVER", help="A running tablet server, host:port.")]

FormatOption = Annotated[ReportFormat, typer.Option("--format", help="Text for people, or JSON for programs.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Show progress until it has ended.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask: I know what may be lost.")]


def split_addresses(masters: str) -> list[str]:
    """The addresses of a comma-separated list.

    Raises:
        typer.BadParameter: one is no host:port.
    """
    addresses = [address.strip() for address in masters.split(",") if address.strip()]
    if not addresses:
        raise typer.BadParameter("give at least one master address, such as 127.0.0.1:7051", param_hint="MASTERS")
    return [check_address(address, "MASTERS") for address in addresses]


def check_address(address: str, what: str) -> str:
    """The address itself.

    Raises:
        typer.BadParameter: it is no host:port.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise typer.BadParameter(f"{address!r} is no host:port, such as 127.0.0.1:7051", param_hint=what)
    return address
