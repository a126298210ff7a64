"""What a daemon shows: tables that are computed when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to a page. In JSON only the text is given.

    Attributes:
        text: shown.
        href: a path of this server or an `http:` address; anything else is shown without a link.
    """

    text: str
    href: str


Cell: TypeAlias = str | int | float | bool | Link | None
Row: TypeAlias = Sequence[Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a page.

    Attributes:
        title: above the table.
        columns: names, in snake_case with their unit: headings of the page and keys of the JSON.
        rows: as many cells as columns each.
    """

    title: str
    columns: tuple[str, ...]
    rows: Iterable[Row]


@dataclass(frozen=True, slots=True)
class TablePage:
    """A page of one table.

    Attributes:
        path: such as "/tablets".
        title: in the navigation and above the table.
        columns: as in `Table`.
        rows: called for each request, on the loop; must not take long.
    """

    path: str
    title: str
    columns: tuple[str, ...]
    rows: Callable[[], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class DetailPage:
    """A page about one thing, reached by links and not in the navigation: such as "/tablet?id=...".

    Attributes:
        path, title: as in `TablePage`.
        tables: called with the query's parameters; a KuduError of a kind of "not found" or "invalid" is the page's
            answer.
    """

    path: str
    title: str
    tables: Callable[[Mapping[str, str]], Sequence[Table]]


@dataclass(frozen=True, slots=True)
class Health:
    """What /healthz answers.

    Attributes:
        ok: 200 or 503.
        status: one word, such as "SERVING", "STARTING", or "DEGRADED": it serves, but not all that it should; a probe
            that ended it for that would make things worse.
        facts: more for people.
    """

    ok: bool
    status: str
    facts: Mapping[str, Cell]


def serving_health(problems: Sequence[str], facts: Mapping[str, Cell]) -> Health:
    """Of a server that serves: SERVING, or DEGRADED with its problems."""
    if not problems:
        return Health(True, "SERVING", facts)
    return Health(True, "DEGRADED", {"problems": "; ".join(problems), **facts})


class Setting(Protocol):
    """A line of /varz."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> object: ...

    @property
    def source_text(self) -> str:
        """Where the value came from."""

    @property
    def help(self) -> str: ...
