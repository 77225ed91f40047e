"""The admin listener: tokens, roles, the Host field, addresses, and what a client may not do."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from tests.kit.deadlines import scaled, until
from zonemta_py.admin import http_server
from zonemta_py.admin.http_server import HttpRoute, HttpServer
from zonemta_py.admin.tokens import Role, Token, Tokens, digest_of
from zonemta_py.config.endpoints import AdminAddress
from zonemta_py.config.schema import Admin, AdminTls
from zonemta_py.core.errors import LocalError

LOCAL = AdminAddress("127.0.0.1", 0)


async def answer(request: web.Request, token: Token | None) -> web.StreamResponse:
    return web.json_response({"by": token.name if token is not None else ""})


async def fail(request: web.Request, token: Token | None) -> web.StreamResponse:
    raise RuntimeError("a secret of the relay")


async def misread(request: web.Request, token: Token | None) -> web.StreamResponse:
    raise web.RequestPayloadError("not what the header says")


ROUTES = [
    HttpRoute("GET", "/misread", misread, Role.READ, is_local=True),
    HttpRoute("GET", "/open", answer, Role.READ, is_local=True),
    HttpRoute("GET", "/closed", answer, Role.READ),
    HttpRoute("POST", "/change", answer, Role.OPERATE),
    HttpRoute("GET", "/broken", fail, Role.READ, is_local=True),
]
TOKENS = Tokens(Token(f"t-{role}", role, digest_of(f"text-{role}")) for role in Role)


@asynccontextmanager
async def serving(
    *addresses: AdminAddress, routes: Sequence[HttpRoute] = ROUTES, tls: AdminTls | None = None
) -> AsyncIterator[HttpServer]:
    settings = Admin(address=addresses or (LOCAL,), tls=tls or AdminTls())
    server = HttpServer(settings, routes, TOKENS, "relay.example")
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def status_of(
    server: HttpServer, method: str, path: str, text: str = "", **headers: str
) -> tuple[int, str]:
    fields = {"Authorization": f"Bearer {text}"} if text else {}
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.ports[0]}") as client,
        client.request(method, path, headers={**fields, **headers}) as response,
    ):
        return response.status, await response.text()


async def test_who_may_do_what() -> None:
    async with serving() as server:
        assert await status_of(server, "GET", "/open") == (200, '{"by": ""}')
        assert (await status_of(server, "GET", "/closed"))[0] == 401
        assert (await status_of(server, "GET", "/closed", "text-wrong"))[0] == 401
        for role, allowed in (("read", 200), ("send", 403), ("operate", 200), ("admin", 200)):
            assert (await status_of(server, "GET", "/closed", f"text-{role}"))[0] == allowed
        for role, allowed in (("read", 403), ("send", 403), ("operate", 200), ("admin", 200)):
            assert (await status_of(server, "POST", "/change", f"text-{role}"))[0] == allowed
        assert "the token 't-read' has the role read, not operate" in (
            await status_of(server, "POST", "/change", "text-read")
        )[1]  # fmt: skip
        assert (await status_of(server, "POST", "/open"))[0] == 405
        assert (await status_of(server, "GET", "/nowhere"))[0] == 404


async def test_a_page_that_calls_itself_by_another_name() -> None:
    """DNS rebinding: the Host field is that of the page. With a token it does not matter."""
    async with serving() as server:
        assert (await status_of(server, "GET", "/open", Host="evil.example"))[0] == 403
        assert (await status_of(server, "GET", "/open", Host="RELAY.example"))[0] == 401, "see point 07"
        assert (await status_of(server, "GET", "/open", Host="localhost:1"))[0] == 200
        assert (await status_of(server, "GET", "/closed", "text-read", Host="ops.example"))[0] == 200


async def test_an_internal_error_is_not_shown() -> None:
    async with serving() as server:
        status, text = await status_of(server, "GET", "/broken")
        assert status == 500
        assert "secret" not in text
        assert (await status_of(server, "GET", "/misread"))[0] == 400


async def test_a_connection_that_ends_before_its_body_is_read(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its handler begins, too: it is lost, and there is nothing to say in the log."""
    failures: list[BaseException] = []
    data_received = RequestHandler.data_received

    def received(self: RequestHandler, data: bytes) -> None:
        data_received(self, data)
        if self.transport is not None:
            self.transport.abort()

    async def read(request: web.Request, token: Token | None) -> web.StreamResponse:
        try:
            await request.post()
        except BaseException as exc:
            failures.append(exc)
            raise
        return web.Response()

    monkeypatch.setattr(RequestHandler, "data_received", received)
    async with serving(routes=[HttpRoute("POST", "/form", read, Role.READ, is_open=True)]) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.ports[0])
        writer.write(
            b"POST /form HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: 9\r\n\r\na"
        )
        await until(lambda: bool(failures), "the end of the request")
        writer.close()
    assert not caplog.records


async def test_a_wrong_token_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        for _ in range(3):
            await status_of(server, "GET", "/closed", "guess")
        await status_of(server, "GET", "/closed")
    assert caplog.text.count("authentication failed: token client=127.0.0.1 path=/closed") == 1
    assert "guess" not in caplog.text


async def test_several_addresses_and_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    async with serving(LOCAL, AdminAddress("::1", 0), AdminAddress("", 0, str(path))) as server:
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.ports[2] == 0
        connector = aiohttp.UnixConnector(str(path))
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.get("http://localhost/open") as response,
        ):
            assert response.status == 200, "a Unix socket is of this machine"
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://[::1]:{server.ports[1]}/open") as response,
        ):
            assert response.status == 200
    assert not path.exists()


async def test_another_address_needs_a_token_for_all() -> None:
    """What is open on a loopback address is not on others."""
    async with serving() as server:
        original = http_server.refusal_of_local
        try:
            http_server.refusal_of_local = lambda request, names: "elsewhere"
            assert (await status_of(server, "GET", "/open"))[0] == 401
            assert (await status_of(server, "GET", "/open", "text-read"))[0] == 200
        finally:
            http_server.refusal_of_local = original


async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = AdminTls(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with serving(tls=tls) as server:
        url = f"https://127.0.0.1:{server.ports[0]}/open"
        async with aiohttp.ClientSession() as client, client.get(url, ssl=context) as response:
            assert response.status == 200
    with pytest.raises(LocalError, match=r"admin\.tls: .*nothing\.pem"):
        async with serving(tls=AdminTls(tmp_path / "nothing.pem", tmp_path / "key.pem")):
            pass


async def test_a_socket_path_with_a_file_of_somebody_else(tmp_path: Path) -> None:
    """It is not removed."""
    path = tmp_path / "file"
    path.write_text("keep me")
    with pytest.raises(LocalError, match=r"admin\.address: unix:"):
        async with serving(AdminAddress("", 0, str(path))):
            pass
    assert path.read_text() == "keep me"


async def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HTTP_CONNECTIONS_MAX", 3)
    async with serving() as server:
        held = [await asyncio.open_connection("127.0.0.1", server.ports[0]) for _ in range(4)]
        assert await asyncio.wait_for(held[0][0].read(), scaled(10)) == b"", "the oldest"
        for _, writer in held[1:]:
            writer.write(b"GET /open HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for reader, _ in held[1:]:
            assert (await asyncio.wait_for(reader.readline(), scaled(10))).startswith(b"HTTP/1.1 200")
        for _, writer in held:
            writer.close()


async def test_only_open_connections_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a port check, and those that asked for what there is not."""
    monkeypatch.setattr(http_server, "HTTP_CONNECTIONS_MAX", 3)
    async with serving() as server:

        def connections() -> list[object]:
            assert server._runner.server is not None
            return [*server._runner.server.connections]

        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", server.ports[0])
            writer.close()
            await writer.wait_closed()
            await until(lambda: not connections(), "the end of the connection")
        for method, path, status in (("GET", "/nowhere", 404), ("POST", "/open", 405)) * 2:
            assert (await status_of(server, method, path))[0] == status
        assert (await status_of(server, "GET", "/open"))[0] == 200
        held = [await asyncio.open_connection("127.0.0.1", server.ports[0]) for _ in range(4)]
        assert await asyncio.wait_for(held[0][0].read(), scaled(10)) == b""
        for _, writer in held:
            writer.close()


async def test_a_request_under_way_at_the_stop() -> None:
    """It has the grace period, once: a client that does not read does not have it twice."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def wait(request: web.Request, token: Token | None) -> web.StreamResponse:
        began.set()
        await go_on.wait()
        return await answer(request, token)

    limits: list[float | None] = []
    async with serving(routes=[HttpRoute("GET", "/wait", wait, Role.READ, is_local=True)]) as server:
        assert server._runner.server is not None
        shutdown = server._runner.server.shutdown

        async def recorded(timeout: float | None = None) -> None:
            limits.append(timeout)
            await shutdown(timeout)

        server._runner.server.shutdown = recorded
        asking = asyncio.create_task(status_of(server, "GET", "/wait"))
        await began.wait()
        closing = asyncio.create_task(server.close(scaled(60)))
        await until(lambda: not server._connections.is_listening, "the beginning of the end")
        go_on.set()
        assert await asking == (200, '{"by": ""}')
        await closing
    assert set(limits) == {http_server.SHORTEST_S}


async def test_what_the_api_has_not_is_answered_as_json() -> None:
    async with serving(routes=[HttpRoute("GET", "/api/v1/open", answer, Role.READ)]) as server:
        assert await status_of(server, "GET", "/api/v1/nowhere") == (
            404, '{"error": "there is no /api/v1/nowhere; /api/openapi.json has what there is"}'
        )  # fmt: skip
        assert await status_of(server, "POST", "/api/v1/open") == (
            405, '{"error": "expected GET, not POST"}'
        )  # fmt: skip
        assert await status_of(server, "GET", "/nowhere") == (404, "404: Not Found")
