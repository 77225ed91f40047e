"""What suspends, warms up and shapes, over HTTP: who may, and what the answers are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.kit.relay import Stage, http_port, relaying, staged
from zonemta_py.admin.registry import OPERATIONS
from zonemta_py.admin.tokens import Role, add_token
from zonemta_py.core import clock
from zonemta_py.relay.relay import Relay

NEW = "127.0.0.31"
CHANGES = {
    "suspend": {"provider": "big"},
    "resume": {"provider": "big"},
    "warmuppause": {"address": NEW},
    "warmupcontinue": {"address": NEW},
    "shapingend": {"provider": "big", "address": NEW},
}


@asynccontextmanager
async def serving(stage: Stage) -> AsyncIterator[tuple[Relay, str]]:
    """A relay with a provider and a warm-up, and the URL of its API."""
    (stage.directory / "providers.yaml").write_text("providers: {big: {mx: ['*.big.example']}}\n")
    entry = {"address": NEW, "begins": clock.utc(clock.now_ms()).date(), "daily": [5, 10]}
    (stage.directory / "warmup.yaml").write_text(yaml.safe_dump([entry]))
    config = stage.config(
        admin={"address": "127.0.0.1:0", "tokens_file": "tokens"},
        providers={"file": "providers.yaml", "shipped": False},
        warmup={"file": "warmup.yaml"},
        pools={"default": [{"address": NEW}]},
        tenants={"acme": {}},
        processes={"receivers": 0, "senders": 0},
    )
    async with relaying(config) as relay:
        yield relay, f"http://127.0.0.1:{http_port(relay)}"


class Client:
    """Asks with a token."""

    def __init__(self, session: aiohttp.ClientSession, token: str) -> None:
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"}

    async def ask(self, name: str, **arguments: Any) -> tuple[int, Any]:
        """The status and the rows, or the text of the problem."""
        method, path = OPERATIONS[name].method, f"/api/v1/{OPERATIONS[name].path}"
        sent: dict[str, Any] = {"json": arguments} if method == "POST" else {"params": arguments}
        async with self._session.request(method, path, headers=self._headers, **sent) as response:
            answer = await response.json()
            return response.status, answer.get("rows", answer.get("error", answer))


@pytest.fixture
def tokens(directory: Path) -> dict[str, str]:
    path = directory / "tokens"
    path.touch(mode=0o600)
    return {
        "read": add_token(path, "r", Role.READ),
        "operate": add_token(path, "o", Role.OPERATE),
        "acme": add_token(path, "a", Role.OPERATE, "acme"),
    }


async def test_who_may(directory: Path, tokens: dict[str, str]) -> None:
    """What changes needs the role operate; a token of a tenant is for none of it."""
    async with (
        staged(directory) as stage,
        serving(stage) as (relay, url),
        aiohttp.ClientSession(url) as session,
    ):
        clients = {name: Client(session, token) for name, token in tokens.items()}
        for name, arguments in CHANGES.items():
            for who in ("read", "acme"):
                assert (await clients[who].ask(name, **arguments))[0] == 403, (name, who)
        for name in ("suspended", "warmup", "shaping"):
            assert (await clients["read"].ask(name))[0] == 200
            assert (await clients["acme"].ask(name))[0] == 403
        assert (await clients["acme"].ask("suspend", tenant="acme"))[0] == 403
        assert relay.queue.suspended.names() == []


async def test_answers(directory: Path, tokens: dict[str, str]) -> None:
    async with (
        staged(directory) as stage,
        serving(stage) as (_, url),
        aiohttp.ClientSession(url) as session,
    ):
        ask = Client(session, tokens["operate"]).ask
        until_ms = clock.now_ms() + 60_000
        assert await ask("suspend", domain="B\u00fccher.example", until_ms=until_ms, reason="x") == (
            200, [{"suspended": "xn--bcher-kva.example", "not_in": []}],
        )  # fmt: skip
        assert (await ask("suspend", tenant="acme"))[0] == 200
        _, rows = await ask("suspended")
        assert [(row.get("tenant"), row.get("domain"), row["until_ms"]) for row in rows] == [
            ("acme", None, 0), (None, "xn--bcher-kva.example", until_ms),
        ]  # fmt: skip
        assert (await ask("resume", all=True))[1] == [
            {"released": 0, "resumed": "xn--bcher-kva.example"}
        ]
        assert [row["tenant"] for row in (await ask("suspended"))[1]] == ["acme"], "it stays"
        assert (await ask("resume", tenant="acme"))[1] == [{"released": 0, "resumed": "acme"}]
        (paused,) = (await ask("warmuppause", address=NEW))[1]
        assert (paused["address"], paused["paused"], paused["allowed"]) == (NEW, True, 5)
        (continued,) = (await ask("warmupcontinue", address=NEW))[1]
        assert continued == {**paused, "paused": False}
        assert (await ask("warmup", address=NEW))[1] == [continued]
        assert (await ask("shaping", provider="big"))[1] == []


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        (
            "suspend",
            {"tenant": "acme", "address": NEW},
            "one of zone, provider and domain is expected",
        ),
        ("suspend", {"zone": "default", "until_ms": 1}, "until_ms: that time is over"),
        ("rates", {"limit": -1}, "limit: expected 1 or more"),
        ("suspend", {"tenant": "acme", "until_ms": 10**18}, "until_ms: expected unix milliseconds"),
        (
            "suspend",
            {"zone": "default", "reason": "a\nb"},
            "reason: expected 1 to 255 printable",
        ),
        ("suspend", {"zone": "defualt"}, "no zone 'defualt'; did you mean 'default'?"),
        ("suspend", {"address": "x"}, "'system' is the one that the system chooses"),
        ("resume", {"zone": "default"}, "zone default is not suspended; suspended: nothing"),
        ("resume", {"zone": "default", "all": True}, "expected no name"),
        ("shaping", {"provider": "bgi"}, "no provider 'bgi'; did you mean 'big'?"),
        ("shaping", {"address": "127.0.0.99"}, "no address '127.0.0.99'; there is"),
        ("warmup", {"address": "127.0.0.32"}, "127.0.0.32 has no warm-up"),
        ("warmuppause", {"address": NEW, "provider": "big"}, "for 'big'; there is all mail"),
        (
            "shapingend",
            {"provider": "big", "address": NEW},
            "there is no pace of 127.0.0.31 at big",
        ),
        (
            "shapingend",
            {"provider": "big", "pool": "default"},
            "no rule moved the mail of pool default",
        ),
        ("shapingend", {"provider": "big"}, "an address or a pool is expected"),
    ],
)
async def test_problems(
    directory: Path, tokens: dict[str, str], name: str, arguments: dict[str, Any], text: str
) -> None:
    async with (
        staged(directory) as stage,
        serving(stage) as (_, url),
        aiohttp.ClientSession(url) as session,
    ):
        found, problem = await Client(session, tokens["operate"]).ask(name, **arguments)
        assert (found, text in str(problem)) == (409, True), problem
