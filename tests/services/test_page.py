"""The page over HTTP: who gets in, what a form may do, what a tenant sees, and that every text is escaped."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.relay import http_port, staged
from tests.services import page_stage
from tests.services.page_stage import page_relay, url_of
from zonemta_py.admin.page import page as page_module
from zonemta_py.admin.page.logins import LINK_VALID_S
from zonemta_py.admin.page.page import Page
from zonemta_py.admin.page.responses import STATIC, make_environment
from zonemta_py.admin.tokens import Role, add_token, remove_token
from zonemta_py.core.codec import from_json
from zonemta_py.events.schema import EVENTS
from zonemta_py.relay.relay import Relay

PAGES = (
    "/",
    "/zones/bulk",
    "/tenants",
    "/tenants/acme",
    "/holds",
    "/providers",
    "/search",
    "/search?q=a@b.example",
)


@asynccontextmanager
async def client_of(relay: Relay) -> AsyncIterator[aiohttp.ClientSession]:
    url = f"http://127.0.0.1:{http_port(relay)}"
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address
    timeout = aiohttp.ClientTimeout(total=scaled(20))
    async with aiohttp.ClientSession(url, cookie_jar=jar, timeout=timeout) as client:
        yield client


async def log_in(client: aiohttp.ClientSession, relay: Relay) -> str:
    """The anti-forgery token of the session."""
    return csrf_of(await text_of(client, url_of(relay)))


async def log_in_by(client: aiohttp.ClientSession, token: str, then: str = "/search") -> str:
    async with client.post("/login", data={"token": token, "next": then}) as response:
        return csrf_of(await response.text())


def csrf_of(text: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', text)
    assert found is not None, text
    return found[1]


async def text_of(client: aiohttp.ClientSession, path: str, status: int = 200) -> str:
    async with client.get(path) as response:
        assert response.status == status, (path, await response.text())
        return await response.text()


async def do(client: aiohttp.ClientSession, operation: str, **fields: str) -> tuple[int, str]:
    async with client.post(f"/do/{operation}", data=fields) as response:
        return response.status, await response.text()


async def test_without_a_session_there_is_only_the_login(directory: Path) -> None:
    async with staged(directory) as stage, page_relay(stage) as relay, client_of(relay) as client:
        for path in PAGES:
            async with client.get(path, allow_redirects=False) as response:
                assert response.status == 303, path
                assert response.headers["Location"].startswith("/login?next=%2F")
            async with client.get(path, headers={"Accept": "text/event-stream"}) as response:
                assert response.status == 401
        assert (await do(client, "flush", csrf="x"))[1].count("<form") == 1  # the login
        async with client.get("/series?minutes=30") as response:
            assert response.status == 403
        async with client.get("/", headers={"Host": "attacker.example"}) as response:
            assert response.status == 403


async def test_a_link_opens_one_session(directory: Path) -> None:
    async with staged(directory) as stage, page_relay(stage) as relay:
        url = url_of(relay)
        async with client_of(relay) as client, client.get(url) as response:
            assert response.status == 200
            cookie = response.history[0].headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Lax" in cookie
            assert "Secure" not in cookie
            assert f"zonemta_{http_port(relay)}=" in cookie
            policy = response.headers["Content-Security-Policy"]
            assert "unsafe" not in policy
            assert "default-src 'none'" in policy
            assert response.headers["Cache-Control"] == "no-store"
            text = await response.text()
            assert "style=" not in text
            assert not re.search(r"<script>|\son\w+=", text)
        async with client_of(relay) as client:
            assert "was used, or is too old" in await text_of(client, url, 403)
        assert LINK_VALID_S == 600


async def test_tokens_roles_and_their_end(directory: Path) -> None:
    """A token for looking sees no form; one that is removed has no session any more; `send` sees nothing."""
    tokens = directory / "tokens"
    texts = {role: add_token(tokens, role.value, role) for role in Role}
    admin = {"address": "127.0.0.1:0", "tokens_file": "tokens"}
    tenants = {"acme": {"domains": ["acme.example"]}}
    async with staged(directory) as stage, page_relay(stage, admin=admin, tenants=tenants) as relay:
        async with client_of(relay) as client:
            async with client.post("/login", data={"token": "wrong"}) as response:
                assert response.status == 403
                assert "no token of this relay" in await response.text()
            async with client.post("/login", data={"token": texts[Role.SEND]}) as response:
                assert response.status == 403
            csrf = await log_in_by(client, texts[Role.READ], "/holds")
            assert (await do(client, "flush", csrf=csrf))[0] == 403
            assert (await do(client, "suspend", csrf=csrf, tenant="acme"))[0] == 403
            remove_token(tokens, "read")
            await relay.reload()
            assert 'type="password"' in await text_of(client, "/")
        async with client_of(relay) as client:
            csrf = await log_in_by(client, texts[Role.OPERATE])
            assert (await do(client, "reload", csrf=csrf))[0] == 403
            status, text = await do(
                client, "suspend", csrf=csrf, tenant="acme", reason="<i>x</i>", back="/holds"
            )
            assert status == 200
            assert "suspend: suspended acme" in text
            assert "&lt;i&gt;x&lt;/i&gt;" in text
            assert "<i>x" not in text
            _, text = await do(client, "suspend", csrf=csrf, tenant="gone", back="/holds")
            assert "suspend failed: no tenant &#39;gone&#39;" in text
            assert relay.queue.suspended.names() == ["acme"]
            await do(client, "suspend", csrf=csrf, zone="bulk", reason="moves", back="/holds")
            text = await text_of(client, "/holds")
            assert 'data-key="zone/bulk"' in text
            assert "moves" in text


async def test_what_is_no_form(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Refused, and nothing in the log."""
    async with staged(directory) as stage, page_relay(stage) as relay, client_of(relay) as client:
        form = "application/x-www-form-urlencoded"
        for kind, body, status in (
            (f"{form}; charset=foo", b"token=x", 400), (form, b"token=\xff\xfe", 400),
            ("multipart/form-data", b"x", 415), ("multipart/form-data; boundary=a", b"x", 415),
            ("application/json", b"{}", 415), (form, b"", 403),
        ):  # fmt: skip
            async with client.post("/login", data=body, headers={"Content-Type": kind}) as response:
                assert response.status == status, (kind, await response.text())
        await log_in(client, relay)
        await text_of(client, "/search?q=%00", 409)
        await text_of(client, "/messages/%00", 409)
        for path in ("/providers/nosuch", "/zones/nosuch"):
            await text_of(client, path, 404)
        assert "a request from" not in caplog.text


async def test_logging_out_ends_live_pages(directory: Path) -> None:
    async with staged(directory) as stage, page_relay(stage) as relay, client_of(relay) as client:
        csrf = await log_in(client, relay)
        async with client.get("/", headers={"Accept": "text/event-stream"}) as response:
            await event_of(response)
            async with client.post("/logout", data={"csrf": csrf}):
                await asyncio.wait_for(response.content.read(), scaled(20))


async def test_forms_of_others_are_refused(directory: Path) -> None:
    async with staged(directory) as stage, page_relay(stage) as relay, client_of(relay) as client:
        csrf = await log_in(client, relay)
        for wrong in ({}, {"csrf": ""}, {"csrf": csrf[:-1]}):
            assert (await do(client, "suspend", tenant="acme", **wrong))[0] == 403
        assert relay.queue.suspended.names() == []
        for operation in ("nothing", "list", "login", "summary"):
            assert (await do(client, operation, csrf=csrf))[0] == 404
        async with client.post("/do/suspend", data={"csrf": csrf, "x": "y" * 20_000}) as response:
            assert response.status == 413
        _, text = await do(client, "hold", csrf=csrf, message="nothing", back="//attacker.example")
        assert "hold failed: no message nothing in the queue" in text
        _, text = await do(client, "hold", csrf=csrf, wrong="x")
        assert "hold failed:" in text
        async with client.post("/logout", data={"csrf": "wrong"}):
            await text_of(client, "/holds")
        async with client.post("/logout", data={"csrf": csrf}) as response:
            assert 'type="password"' in await response.text()
        assert 'type="password"' in await text_of(client, "/")


@pytest.mark.parametrize(
    "target", ["//x.example", "https://x.example/", "/\\x.example", "", "/a\r\nb: c"]
)
async def test_a_login_leads_to_this_page_only(directory: Path, target: str) -> None:
    async with staged(directory) as stage, page_relay(stage) as relay, client_of(relay) as client:
        token = (directory / "queue" / "admin.token").read_text().strip()
        fields = {"token": token, "next": target}
        async with client.post("/login", data=fields, allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["Location"] == "/"


async def test_a_tenant_sees_its_own_mail(directory: Path) -> None:
    tokens = directory / "tokens"
    admin = {"address": "127.0.0.1:0", "tokens_file": "tokens"}
    limits = {"messages": ["100/h"]}
    tenants = {name: {"domains": [f"{name}.example"], "limits": limits} for name in ("acme", "globex")}
    text = add_token(tokens, "acme", Role.OPERATE, "acme")
    async with staged(directory) as stage:
        page_stage.add_dead(stage)
        async with page_relay(stage, admin=admin, tenants=tenants) as relay, client_of(relay) as client:
            letter = b"From: a@sender.example\r\nSubject: x\r\n\r\nx\r\n"
            other = await relay.enqueue("a@sender.example", ["u@dead.example"], letter)
            csrf = await log_in_by(client, text)
            for path in ("/", "/zones/bulk", "/holds", "/tenants", "/providers", "/providers/x"):
                async with client.get(path, allow_redirects=False) as response:
                    assert (response.status, response.headers["Location"]) == (303, "/search")
            assert "messages" in await text_of(client, "/tenants/acme")
            await text_of(client, "/tenants/globex", 403)
            assert "No event has" in await text_of(client, f"/search?q={other}")
            await text_of(client, f"/messages/{other}", 404)
            for operation in ("hold", "delete", "bounce", "release"):
                assert "failed" in (await do(client, operation, csrf=csrf, message=other))[1]
            assert "failed" in (await do(client, "flush", csrf=csrf, zone="bulk"))[1]
            assert "failed" in (await do(client, "suspend", csrf=csrf, tenant="globex"))[1]
            assert relay.queue.suspended.names() == []
            async with client.get("/series?minutes=30") as response:
                assert response.status == 403


async def test_what_strangers_write_is_text(directory: Path) -> None:
    async with staged(directory) as stage:
        await page_stage.incident(stage)
        async with page_relay(stage) as relay, client_of(relay) as client:
            await page_stage.send_incident(relay)
            await log_in(client, relay)
            message = await page_stage.submit(relay, "throttles.example", 1, "bulk", 5)
            pages = (*PAGES, f"/messages/{message}", "/search?q=user1@throttles.example")
            texts = [
                await text_of(client, path) for path in (*pages, "/search?q=<script>alert(1)</script>")
            ]
            assert not any("<script>" in text or "<img" in text for text in texts)
            assert any("&lt;script&gt;document.title" in text for text in texts)
            await text_of(client, "/messages/<script>", 404)
            await text_of(client, "/zones/<script>", 404)


async def test_a_view_is_sent_when_it_changes(directory: Path) -> None:
    async with staged(directory) as stage:
        page_stage.add_dead(stage)
        async with page_relay(stage) as relay, client_of(relay) as client:
            await log_in(client, relay)
            async with client.get("/zones/bulk", headers={"Accept": "text/event-stream"}) as response:
                assert response.headers["Content-Type"] == "text/event-stream"
                first = await event_of(response)
                assert "Zone bulk" in first
                assert "<html" not in first
                await page_stage.submit(relay, "dead.example", 17, "bulk", 1)
                while "17" not in await event_of(response):
                    pass
            async with client.get("/search", headers={"Accept": "text/event-stream"}) as response:
                assert response.status == 204  # its browser does not ask again


async def event_of(response: aiohttp.ClientResponse) -> str:
    line = await response.content.readline()
    assert await response.content.readline() == b"\n"
    return str(from_json(line.removeprefix(b"data: ")))


async def test_watchers_are_limited_and_let_the_relay_stop(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "WATCHERS_MAX", 2)
    async with staged(directory) as stage, page_relay(stage) as relay, client_of(relay) as client:
        await log_in(client, relay)
        asked: Any = {"headers": {"Accept": "text/event-stream"}}
        async with client.get("/", **asked) as one, client.get("/", **asked) as two:
            await event_of(one)
            await event_of(two)
            async with client.get("/", **asked) as three:
                assert three.status == 204
            await relay.stop()
            await one.content.read()  # it ends
        page = _page_of(relay)
        await until(lambda: not page._watchers, "the end of the streams")


def _page_of(relay: Relay) -> Page:
    assert relay.admin is not None
    assert relay.admin._page is not None
    return relay.admin._page


async def test_files_and_charts(directory: Path) -> None:
    async with staged(directory) as stage, page_relay(stage) as relay, client_of(relay) as client:
        for name, kind in STATIC.items():
            async with client.get(f"/static/{name}") as response:
                assert response.content_type == kind
                tag = response.headers["ETag"]
            async with client.get(f"/static/{name}", headers={"If-None-Match": tag}) as response:
                assert response.status == 304
        for wrong in ("uplot.LICENSE", "nothing", "..%2Fpage.py"):
            await text_of(client, f"/static/{wrong}", 404)
        await log_in(client, relay)
        await text_of(client, "/series?minutes=7", 400)
        assert from_json((await text_of(client, "/series?minutes=30&zone=bulk")).encode()) == {
            "time_s": []
        }


def test_every_event_has_a_line() -> None:
    """A timeline shows whatever an event log may have."""
    environment = make_environment("relay.example")
    source = '{% import "parts.html" as parts with context %}{{ parts.events(found) }}'
    for kind in EVENTS:
        event: dict[str, Any] = {"event": kind.name, "time_ms": 1}
        if kind.name == "accepted":
            event |= {"sender": "", "recipients": [], "size_bytes": 1, "submitter": "x", "campaign": ""}
        text = environment.from_string(source).render(found=[event], session=None)
        assert f"<b>{event['event']}</b>" in text


async def test_no_page(directory: Path) -> None:
    """`admin.page: false`: no route, and `zonemta status` says so."""
    admin = {"address": "127.0.0.1:0", "page": False}
    async with (
        staged(directory) as stage,
        page_relay(stage, admin=admin) as relay,
        client_of(relay) as client,
    ):
        await text_of(client, "/", 404)
        with pytest.raises(Exception, match="serves no page"):
            url_of(relay)
