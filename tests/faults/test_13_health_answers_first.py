"""13. Health, metrics and the operator have an answer, whatever others hold: connections, requests, watches."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.listener import certificate
from tests.kit.relay import http_port, relaying, staged
from zonemta_py.admin import events as admin_events
from zonemta_py.admin.connections import ADDRESS, OPERATOR, TENANT, TOKEN, Owner, Shares, owner_of
from zonemta_py.admin.tokens import Role, Token, add_token
from zonemta_py.config.schema import HTTP_CONNECTIONS_MAX
from zonemta_py.events.observers import EventStream
from zonemta_py.relay.relay import Relay

LINES = {"Accept": "application/x-ndjson"}


# ---- shares


def taken(shares: Shares, *owners: Owner, tries: int = 200) -> list[int]:
    counts = [0] * len(owners)
    for _ in range(tries):
        for number, owner in enumerate(owners):
            counts[number] += shares.take(owner)
    return counts


@pytest.mark.parametrize("kind", [TOKEN, TENANT, ADDRESS])
def test_what_one_owner_may_have(kind: str) -> None:
    """It leaves something to another one of its kind, to other kinds, and to the operator."""
    shares = Shares(90, 10)
    [most] = taken(shares, Owner(kind, "one"))
    assert most == (60 if kind == TOKEN else 30)
    assert shares.take(Owner(kind, "two"))
    assert all(shares.take(Owner(each, "three")) for each in (TOKEN, TENANT, ADDRESS, OPERATOR))


def test_what_all_together_may_have() -> None:
    """Tenants have half, addresses without a token have half, and the last places are for operators."""
    shares = Shares(90, 10)
    assert sum(taken(shares, *(Owner(TENANT, f"t{number}") for number in range(50)))) == 40
    assert sum(taken(shares, *(Owner(ADDRESS, f"a{number}") for number in range(50)))) == 40
    assert not shares.take(Owner(TOKEN, "read"))
    assert taken(shares, Owner(OPERATOR, "admin"))[0] >= 7
    for number in range(40):
        shares.give_back(Owner(TENANT, f"t{number}"))
    assert shares.take(Owner(TOKEN, "read"))


def test_whose_a_request_is() -> None:
    """The tenant's, whichever of its tokens; the address is that of its network."""
    assert owner_of(Token("a", Role.READ, "x", "acme"), None) == Owner(TENANT, "acme")
    assert owner_of(Token("b", Role.ADMIN, "x", "acme"), None) == Owner(TENANT, "acme")
    assert owner_of(Token("c", Role.ADMIN, "x"), "192.0.2.1") == Owner(OPERATOR, "c")
    assert owner_of(Token("d", Role.READ, "x"), "192.0.2.1") == Owner(TOKEN, "d")
    assert owner_of(None, "2001:db8::1") == owner_of(None, "2001:db8::2")


# ---- in a relay


class Http:
    """The HTTP listener of a relay."""

    def __init__(self, relay: Relay, tokens: dict[str, str], context: ssl.SSLContext | None) -> None:
        self.relay = relay
        self.port = http_port(relay)
        self.tokens = tokens
        self.context = context

    async def silent(self, stack: AsyncExitStack, count: int, data: bytes = b"") -> list[Any]:
        """Connections that send ``data``, and no more."""
        made = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            stack.callback(writer.close)
            writer.write(data)
            made.append(reader)
        return made

    async def status(self, path: str, token: str = "", **options: Any) -> int:
        headers = {"Authorization": f"Bearer {self.tokens[token]}"} if token else {}
        scheme = "https" if self.context is not None else "http"
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(scaled(20))) as client,
            client.request(
                options.pop("method", "GET"), f"{scheme}://127.0.0.1:{self.port}{path}", headers=headers,
                ssl=self.context if self.context is not None else True, **options,
            ) as response,
        ):  # fmt: skip
            return response.status

    async def answers(self) -> dict[str, int]:
        """The status of what must always be answered."""
        return {
            "livez": await self.status("/livez"),
            "readyz": await self.status("/readyz"),
            "metrics": await self.status("/metrics"),
            "api": await self.status("/api/v1/summary", "admin"),
            "page": await self.status("/login"),
        }


ALL = dict.fromkeys(("livez", "readyz", "metrics", "api", "page"), 200)


@asynccontextmanager
async def serving(directory: Path, *, tls: bool = False, **settings: Any) -> AsyncIterator[Http]:
    """A relay with tokens of two tenants, of a reader and of the operator."""
    tokens = {
        name: add_token(directory / "tokens", name, role, tenant)
        for name, role, tenant in (
            ("admin", Role.ADMIN, ""), ("read", Role.READ, ""), ("send", Role.SEND, ""),
            ("acme", Role.READ, "acme"), ("beta", Role.READ, "beta"),
        )
    }  # fmt: skip
    admin: dict[str, Any] = {"address": "127.0.0.1:0", "tokens_file": "tokens", "mail": True}
    context = None
    if tls:
        cert, key, context = certificate(directory)
        admin["tls"] = {"certificate_file": str(cert), "key_file": str(key)}
    tenants = {name: {"users": [name], "domains": [f"{name}.example"]} for name in ("acme", "beta")}
    async with (
        staged(directory) as stage,
        relaying(stage.config(admin=admin, tenants=tenants, **settings)) as relay,
    ):
        yield Http(relay, tokens, context)


@pytest.mark.parametrize(
    ("tls", "count"), [(False, 0), (True, 0), (False, 2)], ids=["0/0", "tls-0/0", "2/2"]
)
async def test_silent_connections(directory: Path, tls: bool, count: int) -> None:
    """As many as there may be, and more: each new client gets in, and the oldest silent one is closed."""
    processes = {"receivers": count, "senders": count}
    async with serving(directory, tls=tls, processes=processes) as http, AsyncExitStack() as stack:
        await http.silent(stack, 2 * HTTP_CONNECTIONS_MAX)
        assert await http.answers() == ALL
        if not tls:
            await http.silent(stack, HTTP_CONNECTIONS_MAX, b"GET /livez HTTP/1.1\r\nHost: x\r\n")
            assert await http.answers() == ALL
            await http.silent(
                stack, HTTP_CONNECTIONS_MAX, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            assert await http.answers() == ALL
        assert http.relay.admin is not None
        assert http.relay.admin.server is not None
        assert 0 < len(http.relay.admin.server._connections._open) <= HTTP_CONNECTIONS_MAX


async def test_requests_without_end(directory: Path) -> None:
    """Forms without a token and messages of a token that stop in the middle: the others have an answer."""
    async with serving(directory) as http, AsyncExitStack() as stack:
        form = (
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: 10\r\n\r\n"
        )
        [link] = http.relay.admin.new_login()["urls"] if http.relay.admin is not None else []
        jar = aiohttp.CookieJar(unsafe=True)  # of an address without a name
        client = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
        async with client.get(link) as answer:
            assert answer.status == 200, "an operator with a session"
        await http.silent(stack, HTTP_CONNECTIONS_MAX, form)
        async with client.get(f"http://127.0.0.1:{http.port}/search") as answer:
            assert answer.status == 200
        assert await http.answers() == {**ALL, "page": 503}, "the same address has too many"
        mail = (
            f"POST /mail HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {http.tokens['send']}\r\n"
            "Content-Type: message/rfc822\r\nX-Envelope-Sender: \r\nX-Envelope-Recipient: dUBkLmV4YW1wbGU=\r\n"
            "Content-Length: 900\r\n\r\nSubject: "
        )
        await http.silent(stack, HTTP_CONNECTIONS_MAX, mail.encode())
        assert await http.answers() == {**ALL, "page": 503}
        assert await http.status("/api/v1/summary", "read") == 200


async def test_a_client_that_waits_keeps_its_place(directory: Path) -> None:
    """Requests that were answered before the end of their bodies, each of another network, are closed first."""
    request = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\na"
    async with serving(directory) as http, AsyncExitStack() as stack:

        async def answered(number: int) -> None:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", http.port, local_addr=(f"127.0.{number}.1", 0)
            )
            stack.callback(writer.close)
            writer.write(request)
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")

        for number in range(1, HTTP_CONNECTIONS_MAX):
            await answered(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        stack.callback(writer.close)
        for number in range(HTTP_CONNECTIONS_MAX, HTTP_CONNECTIONS_MAX + 20):
            await answered(number)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("count", [0, 2], ids=["0/0", "2/2"])
async def test_tails_of_a_tenant(directory: Path, count: int) -> None:
    """They leave some to other tenants, to readers and to the operator, over HTTP and on the control socket."""
    processes = {"receivers": count, "senders": count}
    async with serving(directory, processes=processes) as http, AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{http.port}"))

        async def watch(token: str, tries: int) -> int:
            statuses = []
            for _ in range(tries):
                headers = {**LINES, "Authorization": f"Bearer {http.tokens[token]}"}
                response = await stack.enter_async_context(client.get("/api/v1/tail", headers=headers))
                statuses.append(response.status)
            assert set(statuses) <= {200, 429}
            return statuses.count(200)

        assert await watch("acme", 20) in range(3, 6)
        assert await watch("beta", 20) >= 1
        assert await watch("read", 20) >= 2
        assert await watch("admin", 20) >= 2
        assert http.relay.admin is not None
        stream: EventStream = http.relay.admin._sources.stream
        path = directory / "queue" / "control.sock"
        before = len(stream._watchers)
        _, writer = await asyncio.open_unix_connection(str(path))
        stack.callback(writer.close)
        writer.write(b'{"operation":"tail"}\n')
        await until(lambda: len(stream._watchers) == before + 1, "a tail on the control socket")
        assert await http.answers() == ALL


async def test_searches_of_tenants(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's searches of the event log wait for each other, the operator's does not wait for them."""
    async with serving(directory) as http:
        assert http.relay.admin is not None
        began, go_on = list[str](), asyncio.Event()

        async def search(on: Any, directory: Path, request: Any) -> bytes:
            began.append(request.tenant or "")
            await go_on.wait()
            return b""

        monkeypatch.setattr(admin_events, "_search", search)
        path = "/api/v1/history?key=ann@a.example"
        tasks = [asyncio.create_task(http.status(path, "acme")) for _ in range(4)]
        await until(lambda: began == ["acme"], "the tenant's first")
        tasks.append(asyncio.create_task(http.status(path, "admin")))
        await until(lambda: began == ["acme", ""], "the operator's")
        go_on.set()
        assert await asyncio.gather(*tasks) == [200] * 5
