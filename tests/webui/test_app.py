"""The pages, asked for as a browser and as a program would."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.webui.app import make_app
from kudu_py.webui.page import DetailPage, Health, Link, Table, TablePage
from kudu_py.webui.server import WebServer

EVIL = "<script>alert('x')</script>"


def tablet_detail(query):
    if query.get("id") != "t1":
        raise KuduError(ErrorCode.TABLET_NOT_FOUND, f"tablet {query.get('id')} is not here")
    return [Table("Replicas", ("uuid",), [("a",)]), Table("Segments", ("number", "size_bytes"), [(1, 4096)])]


def failing_rows():
    raise ValueError("the secret")


class Daemon:
    """What the application is told; tests change it."""

    def __init__(self) -> None:
        self.health = Health(True, "SERVING", {"tablets_running": 2})
        self.rows = [("t1", 7, None, Link("open", "/tablet?id=t1"))]
        self.registry = CollectorRegistry()
        Counter("kudu_things_total", "Things.", registry=self.registry).inc(3)
        self.app = make_app(
            title="tserver abc",
            registry=self.registry,
            health=lambda: self.health,
            facts=lambda: [("uuid", "abc"), ("rpc_address", "127.0.0.1:7050")],
            settings=[
                SimpleNamespace(
                    name="log_level", value="debug", source_text="command line (--log_level)", help="Level."
                ),
                SimpleNamespace(name="use_uvloop", value=True, source_text="default", help="Loop."),
            ],
            pages=[
                TablePage("/tablets", "Tablets", ("tablet_id", "row_count", "leader", "more"), lambda: self.rows),
                DetailPage("/tablet", "Tablet", tablet_detail),
                TablePage("/broken", "Broken", ("x",), failing_rows),
            ],
        )


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
async def browser(daemon):
    transport = httpx.ASGITransport(app=daemon.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://daemon") as client:
        yield client


async def test_home_shows_who_this_is_and_leads_to_every_page(browser):
    page = await browser.get("/")

    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for text in ("tserver abc", "SERVING", "127.0.0.1:7050", 'href="/tablets"', 'href="/varz"', "prefers-color-scheme"):
        assert text in page.text
    assert 'href="/tablet"' not in page.text
    assert (await browser.get("/?format=json")).json() == {
        "status": "SERVING", "uuid": "abc", "rpc_address": "127.0.0.1:7050",
    }  # fmt: skip


async def test_healthz_is_200_while_healthy_and_503_otherwise(browser, daemon):
    well = await browser.get("/healthz")
    daemon.health = Health(False, "STARTING", {})
    ill = await browser.get("/healthz")

    assert (well.status_code, well.json()) == (200, {"status": "SERVING", "tablets_running": 2})
    assert (ill.status_code, ill.json()) == (503, {"status": "STARTING"})


@pytest.mark.parametrize("path", ["/metrics", "/metrics_prometheus"])
async def test_metrics_are_in_prometheus_text_form(browser, path):
    page = await browser.get(path)

    assert page.headers["content-type"].startswith("text/plain")
    assert "kudu_things_total 3.0" in page.text


async def test_settings_are_shown_with_their_source(browser):
    page = await browser.get("/varz")
    as_json = (await browser.get("/varz?format=json")).json()

    assert "command line (--log_level)" in page.text
    assert as_json[1] == {"name": "use_uvloop", "value": True, "source": "default", "help": "Loop."}


async def test_a_table_page_has_a_twin_for_programs(browser):
    page = await browser.get("/tablets")
    as_json = (await browser.get("/tablets?format=json")).json()

    assert '<a href="/tablet?id=t1">open</a>' in page.text
    assert '<td class="number">7</td>' in page.text
    assert as_json == [{"tablet_id": "t1", "row_count": 7, "leader": None, "more": "open"}]


async def test_everything_is_escaped_and_only_harmless_links_are_links(browser, daemon):
    daemon.rows = [(EVIL, 1, Link("x", "javascript:alert(1)"), Link(EVIL, '/a"onmouseover="x'))]

    page = await browser.get("/tablets", params={"limit": "10", "x": EVIL})

    assert "<script>" not in page.text
    assert "javascript:" not in page.text
    assert 'onmouseover="x"' not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_a_long_table_is_cut_and_says_so(browser, daemon):
    daemon.rows = [(f"t{i}", i, None, None) for i in range(1_500)]

    page = await browser.get("/tablets")
    assert "500 more are not shown" in page.text
    for limit in ("2000", "9" * 5000):
        everything = await browser.get(f"/tablets?limit={limit}&format=json")
        assert len(everything.json()) == 1_500


async def test_a_detail_page_shows_one_thing_or_says_it_is_not_there(browser):
    assert (await browser.get("/tablet?id=t1&format=json")).json() == {
        "Replicas": [{"uuid": "a"}],
        "Segments": [{"number": 1, "size_bytes": 4096}],
    }
    missing = await browser.get("/tablet", params={"id": EVIL})
    assert missing.status_code == 404
    assert "TABLET_NOT_FOUND" in missing.text
    assert "<script>" not in missing.text


async def test_an_unknown_path_and_another_method_are_refused(browser):
    assert (await browser.get("/nothing")).status_code == 404
    assert (await browser.post("/tablets")).status_code == 405
    assert (await browser.get("/nothing?format=json")).json() == {"error": "Not Found"}


async def test_a_page_that_fails_shows_nothing_of_its_inside(browser):
    page = await browser.get("/broken")

    assert page.status_code == 500
    assert "secret" not in page.text
    assert (await browser.get("/healthz")).status_code == 200


async def test_the_server_answers_over_a_socket_and_frees_its_port(daemon):
    server = WebServer(daemon.app)
    address = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(trust_env=False) as client:
        page = await client.get(f"http://{address}/healthz")

    await server.stop()
    await server.stop()

    assert page.status_code == 200
    assert "server" not in page.headers
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(address.rpartition(":")[2])))


async def test_a_taken_port_and_a_foreign_address_are_refused_by_name(daemon):
    first = WebServer(daemon.app)
    address = await first.start("127.0.0.1", 0)

    with pytest.raises(KuduError, match=f"cannot serve HTTP at {address}: Address already in use") as raised:
        await WebServer(daemon.app).start("127.0.0.1", int(address.rpartition(":")[2]))
    with pytest.raises(KuduError, match=r"cannot serve HTTP at 192\.0\.2\.1:0"):
        await WebServer(daemon.app).start("192.0.2.1", 0)
    await first.stop()

    assert raised.value.code is ErrorCode.CONFIGURATION_ERROR


async def test_many_pages_at_once_all_come(daemon):
    server = WebServer(daemon.app)
    address = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(trust_env=False) as client:
        pages = await asyncio.gather(*(client.get(f"http://{address}/tablets") for _ in range(20)))
    await server.stop()

    assert {page.status_code for page in pages} == {200}
