"""The web application: home, metrics, health, settings, and the pages that the daemon registers.

Every page is computed on the event loop when it is asked for, and has a twin for programs under `?format=json`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.webui.page import Cell, DetailPage, Health, Link, Row, Setting, Table, TablePage
from kudu_py.webui.templates import environment

ROWS_SHOWN = 1_000
ROWS_MAX = 100_000
"""How many rows a page shows unless `?limit=` asks for another number, and at most."""
_LIMIT_DIGITS_MAX = 12

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_NOT_FOUND = frozenset({ErrorCode.NOT_FOUND, ErrorCode.TABLET_NOT_FOUND, ErrorCode.TABLE_NOT_FOUND})

_log = structlog.get_logger("webui")
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(
    *,
    title: str,
    registry: CollectorRegistry,
    health: Callable[[], Health],
    facts: Callable[[], Iterable[tuple[str, Cell]]],
    settings: Sequence[Setting],
    pages: Sequence[TablePage | DetailPage],
) -> Starlette:
    """The application of one daemon.

    Args:
        title: of the server, such as "tserver 9f2c...".
        registry: what /metrics shows.
        health: what /healthz says; also on the home page.
        facts: name and value for the home page.
        settings: what /varz shows.
        pages: what else there is, in the order of the navigation.
    """
    made = _Pages(title, registry, health, facts, settings, pages)
    routes = [
        Route("/", made.answer(made.home)),
        Route("/healthz", made.answer(made.healthz)),
        Route("/metrics", made.answer(made.metrics)),
        Route("/metrics_prometheus", made.answer(made.metrics)),
        Route("/varz", made.answer(made.varz)),
        *(Route(page.path, made.answer(made.page(page))) for page in pages),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: made.refuse})


class _Pages:
    """The endpoints."""

    def __init__(
        self,
        title: str,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        facts: Callable[[], Iterable[tuple[str, Cell]]],
        settings: Sequence[Setting],
        pages: Sequence[TablePage | DetailPage],
    ) -> None:
        self._title = title
        self._registry = registry
        self._health = health
        self._facts = facts
        self._settings = settings
        self._templates = environment()
        self._navigation = [(page.path, page.title) for page in pages if isinstance(page, TablePage)]
        self._navigation += [("/varz", "Settings"), ("/metrics", "Metrics"), ("/healthz", "Health")]

    def answer(self, endpoint: Callable[[Request], Response]) -> Endpoint:
        """The endpoint with its errors turned into pages. Asynchronous so that it runs on the loop and not in a
        thread.
        """

        async def run(request: Request) -> Response:
            try:
                response = endpoint(request)
            except KuduError as error:
                status = 404 if error.code in _NOT_FOUND else 400 if error.code is ErrorCode.INVALID_ARGUMENT else 500
                response = self._message(request, status, str(error))
            except Exception as error:
                _log.error("page_failed", path=request.url.path, exc_info=error)
                response = self._message(request, 500, "This page failed; the server's log says why.")
            response.headers.update(_HEADERS)
            return response

        return run

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Unknown paths and methods."""
        assert isinstance(error, HTTPException)
        response = self._message(request, error.status_code, error.detail)
        response.headers.update(_HEADERS)
        return response

    def home(self, request: Request) -> Response:
        """Who this is and how it is."""
        facts = list(self._facts())
        health = self._health()
        if _wants_json(request):
            return JSONResponse({"status": health.status, **{name: _plain(value) for name, value in facts}})
        return self._html("home", 200, title="Overview", health=health, facts=facts)

    def healthz(self, request: Request) -> Response:
        """For probes: 200 or 503."""
        health = self._health()
        content = {"status": health.status, **{name: _plain(value) for name, value in health.facts.items()}}
        return JSONResponse(content, status_code=200 if health.ok else 503)

    def metrics(self, request: Request) -> Response:
        """For Prometheus, in the text form that it asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": content_type})

    def varz(self, request: Request) -> Response:
        """Every setting with its source."""
        if _wants_json(request):
            return JSONResponse(
                [{"name": s.name, "value": s.value, "source": s.source_text, "help": s.help} for s in self._settings]
            )
        rows = [(s.name, "" if s.value is None else _shown(s.value), s.source_text, s.help) for s in self._settings]
        return self._tables(request, "Settings", [Table("", ("name", "value", "source", "help"), rows)])

    def page(self, page: TablePage | DetailPage) -> Callable[[Request], Response]:
        """A page of the daemon's."""

        def show(request: Request) -> Response:
            if isinstance(page, TablePage):
                return self._tables(request, page.title, [Table("", page.columns, page.rows())])
            return self._tables(request, page.title, page.tables(dict(request.query_params)))

        return show

    def _tables(self, request: Request, title: str, tables: Sequence[Table]) -> Response:
        limit = _limit(request)
        cut = [_Cut(table, limit) for table in tables]
        if _wants_json(request):
            contents = [each.as_json() for each in cut]
            named = {each.title: content for each, content in zip(cut, contents, strict=True)}
            return JSONResponse(contents[0] if list(named) == [""] else named)
        json_href = "?" + urlencode({**request.query_params, "format": "json"})
        return self._html("tables", 200, title=title, tables=cut, json_href=json_href)

    def _message(self, request: Request, status: int, message: str) -> Response:
        if _wants_json(request):
            return JSONResponse({"error": message}, status_code=status)
        return self._html("message", status, title=str(status), message=message)

    def _html(self, template: str, status: int, **values: Any) -> Response:
        text = self._templates.get_template(template).render(server=self._title, navigation=self._navigation, **values)
        return HTMLResponse(text, status_code=status)


class _Cut:
    """A table with as many rows as are shown, and how many are not."""

    def __init__(self, table: Table, limit: int) -> None:
        rows = iter(table.rows)
        self.title = table.title
        self.columns = table.columns
        self.rows: list[Row] = list(islice(rows, limit))
        self.omitted = sum(1 for _ in rows)

    def as_json(self) -> list[dict[str, object]]:
        """One object a row."""
        return [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]


def _wants_json(request: Request) -> bool:
    return request.query_params.get("format") == "json"


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "")
    if not text.isascii() or not text.isdigit():
        return ROWS_SHOWN
    return min(int(text[:_LIMIT_DIGITS_MAX]), ROWS_MAX)  # Python refuses to read thousands of digits.


def _plain(cell: Cell) -> object:
    return cell.text if isinstance(cell, Link) else cell


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
