"""A client on real sockets meets each limit of a provider; the clock is moved by the test."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.deadlines import scaled, until
from tests.kit.smtp_client import RawClient
from zonemta_py.bench.process import free_port
from zonemta_py.config.values import Word
from zonemta_py.core import clock
from zonemta_py.sink.provider import SinkProvider
from zonemta_py.sink.script import Rule, Script, Step, load_script
from zonemta_py.sink.server import Sink
from zonemta_py.sink.sink_limits import SinkLimits

HOSTS = ("127.0.0.21", "127.0.0.22")
ONE, TWO = "127.0.0.5", "127.0.0.6"
BODY = b"Subject: hi\r\n\r\nbody\r\n.\r\n"
OK = "250 2.0.0 Ok"


class Now:
    """The time of the sink."""

    def __init__(self) -> None:
        self.s = 5000.0

    def __call__(self) -> float:
        return self.s


class Playing:
    """A sink that plays one provider, and clients of it."""

    def __init__(self, sink: Sink, port: int) -> None:
        self.sink = sink
        self.port = port
        self.clients: list[RawClient] = []

    @property
    def provider(self) -> SinkProvider:
        return self.sink.providers["bigmail"]

    async def connect(self, source: str = ONE, host: str = HOSTS[0]) -> tuple[RawClient, str]:
        """A connection and its greeting."""
        client = await RawClient.connect(self.port, greeting=False, host=host, source=source)
        self.clients.append(client)
        return client, await client.reply()

    async def client(self, source: str = ONE, host: str = HOSTS[0]) -> RawClient:
        client, greeting = await self.connect(source, host)
        assert greeting.startswith("220")
        await client.ehlo()
        return client


@asynccontextmanager
async def playing(directory: Path, rules: Any = (), **limits: Any) -> AsyncIterator[Playing]:
    document = {"name": "bigmail", "local": list(HOSTS), **limits}
    path = directory / "s.yaml"
    path.write_text(yaml.safe_dump({"rules": list(rules), "providers": [document]}))
    sink = Sink(load_script(path), keep=True)
    port = free_port(*HOSTS, "127.0.0.23")
    await sink.start([*HOSTS, "127.0.0.23"], port)
    made = Playing(sink, port)
    try:
        yield made
    finally:
        for client in made.clients:
            client.close()
        await sink.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    time = Now()
    monkeypatch.setattr(clock, "monotonic_s", time)
    return time


async def test_sessions(directory: Path, now: Now) -> None:
    """Over both hosts; QUIT, an end without QUIT and a reset each give back the place."""
    async with playing(directory, sessions=3, sessions_per_address=2) as made:
        quitting, ending = await made.client(), await made.client(host=HOSTS[1])
        now.s += 1
        refused, greeting = await made.connect()
        assert greeting == "421 4.7.0 too many concurrent connections from your IP"
        assert await refused.ended()
        resetting = await made.client(TWO)
        assert (await made.connect(TWO))[1] == "421 4.7.0 too many connections"
        assert await quitting.command("QUIT") == "221 2.0.0 Bye"
        await made.client()
        ending.half_close()
        assert await ending.ended()
        await made.client(TWO)
        resetting.reset()
        await until(lambda: made.provider.open_sessions == 2, "the end of the session")
        await made.client(TWO)
        assert made.provider.most_sessions == 3
        assert {k: a.most_sessions for k, a in made.provider.clients.items()} == {ONE: 2, TWO: 2}
        assert [(v.at_s, str(v.limit), v.client) for v in made.provider.violations] == [
            (5001.0, "sessions_per_address", ONE), (5001.0, "sessions", TWO),
        ]  # fmt: skip
        assert made.sink.tally.refused == 2


class _Transport(asyncio.Transport):
    """A connection of a test whose end is never reported."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (HOSTS[0] if name == "sockname" else ONE, 0)

    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize(
    "end",
    [
        lambda session: session.data_received(b"QUIT\r\n"),
        lambda session: session.eof_received(),
        lambda session: session.connection_lost(ConnectionResetError()),
        lambda session: session.data_received(b"EHLO a\r\nMAIL FROM:<no@a>\r\n"),
    ],
    ids=["QUIT", "end of stream", "reset", "a reply that closes"],
)
def test_each_end_of_a_session_counts_at_once(end: Any) -> None:
    """Before the event loop reports the end of the connection: the client's next one may be accepted sooner."""
    rule = Rule(Step.MAIL, reply="421 4.7.0 no")
    sink = Sink(Script([rule], [SinkLimits("bigmail", tuple(map(Word, HOSTS)))]))
    session = sink.session()
    session.connection_made(_Transport())
    assert sink.providers["bigmail"].open_sessions == 1
    end(session)
    assert sink.providers["bigmail"].open_sessions == 0


async def test_a_place_that_becomes_free_within_the_slack(directory: Path) -> None:
    """The second session waits for its greeting; what it sends meanwhile is answered."""
    async with playing(directory, sessions=1, slack=f"{scaled(0.5)}s") as made:
        first = await made.client()
        early = await RawClient.connect(made.port, greeting=False, host=HOSTS[0], source=TWO)
        made.clients.append(early)
        await early.send(b"EHLO early.example\r\n")
        await until(lambda: len(made.sink.connections) == 2, "the second connection")
        await first.command("QUIT")
        assert (await early.reply()).startswith("220")
        assert (await early.reply()).startswith("250")
        assert (made.provider.most_sessions, made.provider.violations) == (1, [])
        _, greeting = await made.connect()
        assert greeting.startswith("421")
        assert len(made.provider.violations) == 1


async def test_a_client_that_does_not_wait_for_the_slack(directory: Path) -> None:
    async with playing(directory, sessions=1, slack=f"{scaled(0.2)}s") as made:
        await made.client()
        gone = await RawClient.connect(made.port, greeting=False, host=HOSTS[0])
        await until(lambda: len(made.sink.connections) == 2, "the second connection")
        gone.reset()
        await until(lambda: len(made.sink.connections) == 1, "its end")
        assert (await made.connect())[1].startswith("421")
        assert len(made.provider.violations) == 1


async def test_messages_of_a_session(directory: Path, now: Now) -> None:
    """The client is answered and disconnected, also when it sends whole transactions at once."""
    async with playing(directory, messages_per_session=2) as made:
        client = await made.client()
        assert [await client.message(BODY) for _ in range(2)] == [OK, OK]
        await client.send(b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n")
        assert await client.reply() == "421 4.7.0 too many messages in this session"
        assert await client.ended()
        assert made.provider.open_sessions == 0
        assert made.provider.account(ONE).violations == {"messages_per_session": 1}
        assert await (await made.client()).message(BODY) == OK
        assert len(made.sink.messages) == 3


async def test_rates(directory: Path, now: Now) -> None:
    """Exact at the edge of the window, by client address, over sessions and hosts."""
    async with playing(directory, rate=["2/s", "3/m"], rate_total="4/m") as made:
        one, other = await made.client(), await made.client(host=HOSTS[1])
        two = await made.client(TWO)
        assert [await one.message(BODY), await other.message(BODY)] == [OK, OK]
        now.s += 0.999
        assert await one.message(BODY) == "450 4.7.28 rate limit of your IP exceeded"
        assert await two.message(BODY) == OK
        now.s += 0.001
        assert await one.message(BODY) == OK
        now.s += 58.999
        assert await one.message(BODY) == "450 4.7.28 rate limit of your IP exceeded"
        assert await two.message(BODY) == "450 4.7.28 rate limit exceeded"
        now.s += 0.001
        assert await one.message(BODY) == OK
        account = made.provider.account(ONE)
        assert account.accepted.times_s.tolist() == [5000.0, 5000.0, 5001.0, 5060.0]
        assert account.violations == {"rate": 2, "rate_total": 1}
        assert made.provider.account(TWO).violations == {"rate_total": 1}
        assert len(made.sink.messages) == 5


async def test_a_message_that_a_rule_refuses_does_not_count(directory: Path, now: Now) -> None:
    rule = {"at": "dot", "recipient": "no@*", "reply": "554 5.7.1 spam"}
    async with playing(directory, [rule], rate="1/s") as made:
        client = await made.client()
        assert await client.message(BODY, "no@a.example") == "554 5.7.1 spam"
        assert await client.message(BODY) == OK
        assert (made.provider.account(ONE).messages, made.provider.violations) == (1, [])


async def test_a_rate_of_sessions(directory: Path, now: Now) -> None:
    async with playing(directory, connect_rate="2/m") as made:
        for _ in range(2):
            await (await made.client()).command("QUIT")
        now.s += 59.5
        refused, greeting = await made.connect()
        assert greeting == "421 4.7.0 too many connections from your IP in this time"
        assert await refused.ended()
        await made.client(TWO)
        now.s += 0.5
        await made.client()
        assert made.provider.account(ONE).violations == {"connect_rate": 1}


async def test_greylisting(directory: Path, now: Now) -> None:
    """One of two recipients has been tried before."""
    async with playing(directory, greylist="30s") as made:
        client = await made.client()
        for first in (True, False):
            await client.command("MAIL FROM:<s@x.example>")
            known = await client.command("RCPT TO:<known@a.example>")
            assert known == ("451 4.7.1 Greylisted" if first else "250 2.1.5 Ok")
            now.s += 30
        assert await client.command("RCPT TO:<new@a.example>") == "451 4.7.1 Greylisted"
        assert (await client.command("DATA")).startswith("354")
        await client.send(BODY)
        assert await client.reply() == OK
        account = made.provider.account(ONE)
        assert (account.recipients, account.refused, made.provider.violations) == (
            1,
            {"greylist": 2},
            [],
        )


async def test_blocks(directory: Path, now: Now) -> None:
    """One that too many messages start, and one of the test, which concern one client only."""
    block = {"after": "2 messages within 1m", "for": "10m", "reply": "550 5.7.1 blocked"}
    async with playing(directory, block=block) as made:
        client, other = await made.client(), await made.client(TWO)
        replies = [await client.message(BODY) for _ in range(3)]
        assert replies == [OK, OK, "550 5.7.1 blocked"]
        assert await client.command("MAIL FROM:<s@x.example>") == "550 5.7.1 blocked"
        assert await other.message(BODY) == OK
        now.s += 600
        assert await client.message(BODY) == OK
        made.provider.block(TWO, "421 4.7.0 come back later")
        assert await other.command("MAIL FROM:<s@x.example>") == "421 4.7.0 come back later"
        assert await other.ended()
        made.provider.unblock(TWO)
        assert await (await made.client(TWO)).message(BODY) == OK
        assert made.provider.account(ONE).violations == {"block": 1}
        assert made.provider.account(TWO).violations == {}


async def test_a_block_at_connect(directory: Path, now: Now) -> None:
    async with playing(directory, block={"at": "connect", "reply": "554 5.7.1 no service"}) as made:
        made.provider.block(ONE)
        refused, greeting = await made.connect()
        assert greeting == "554 5.7.1 no service"
        assert await refused.ended()
        await made.client(TWO)
        assert made.provider.open_sessions == 1


async def test_other_addresses_have_no_limits(directory: Path, now: Now) -> None:
    async with playing(directory, sessions=1, rate="1/h") as made:
        for _ in range(2):
            client = await made.client(host="127.0.0.23")
            assert [await client.message(BODY) for _ in range(2)] == [OK, OK]
        assert made.provider.clients == {}


def test_the_command_prints_the_accounts(directory: Path) -> None:
    """On one port of all addresses; times are those of this process's monotonic clock."""
    path = directory / "s.yaml"
    path.write_text("providers:\n- {name: bigmail, local: [127.0.0.21], rate: 1/h}\n- {name: other}\n")
    port = free_port("0.0.0.0")

    async def dialogues() -> list[str]:
        replies = []
        for host in (HOSTS[0], HOSTS[0], HOSTS[1]):
            async with await RawClient.connect(port, host=host, source=ONE) as client:
                await client.ehlo()
                replies.append(await client.message(BODY))
                await client.command("QUIT")
        return replies

    for options in (["--json"], []):
        began_s = clock.monotonic_s()
        sink = subprocess.Popen(
            [sys.executable, "-m", "zonemta_py", "sink", "--listen", f"0.0.0.0:{port}", "--script", str(path), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert sink.stderr is not None
            assert sink.stderr.readline().startswith(b"ready")
            assert asyncio.run(dialogues()) == [OK, "450 4.7.28 rate limit of your IP exceeded", OK]
            sink.send_signal(signal.SIGTERM)
            out, _ = sink.communicate(timeout=scaled(20))
        finally:
            sink.kill()
            sink.wait()
        if options:
            found = json.loads(out)["providers"]
            [accepted_s] = found["bigmail"]["clients"][ONE]["accepted_s"]
            [[violated_s, limit, client]] = found["bigmail"]["violations"]
            assert began_s < accepted_s < violated_s < clock.monotonic_s()
            assert (limit, client, found["other"]["messages"]) == ("rate", ONE, 1)
        else:
            line = (
                f"{ONE}: 1 messages, 1 sessions at the same time, violations: rate 1, refusals: rate 1"
            )
            assert line in out.decode()
