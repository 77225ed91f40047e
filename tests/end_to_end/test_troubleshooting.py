"""The nine situations of docs/troubleshooting.md: the commands that it names give the answers that it names.

``pytest -s`` prints the commands and what they say.
"""

import asyncio
import smtplib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.deadlines import scaled, until
from tests.kit.listener import users_file
from tests.kit.relay import Stage, empty, http_port, relaying, send, staged
from zonemta_py.config.load import load_config
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step

LETTER = b"From: news@acme.example\r\nSubject: news\r\nMessage-ID: <7@acme.example>\r\n\r\nHello\r\n"
DOCS = Path(__file__).parents[2] / "docs/troubleshooting.md"


class Operator:
    """Someone at the relay's machine, with the documentation."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def zonemta(self, *arguments: str) -> str:
        """What a command prints. It has to be one of docs/troubleshooting.md."""
        assert_documented(arguments)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "zonemta_py", *arguments, "-c", self._relay.config.path,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), scaled(30))
        print(f"\n$ zonemta {' '.join(arguments)}\n{output.decode()}", end="")
        return output.decode()

    @asynccontextmanager
    async def watching(self, *arguments: str) -> AsyncIterator[asyncio.StreamReader]:
        """What a command prints that does not end."""
        assert_documented(arguments)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-u", "-m", "zonemta_py", *arguments, "-c", self._relay.config.path,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert self._relay.admin is not None
        watchers = self._relay.admin._sources.stream._watchers
        await until(lambda: bool(watchers), "the watcher")
        try:
            yield process.stdout
        finally:
            process.kill()
            await process.wait()


def assert_documented(arguments: tuple[str, ...]) -> None:
    """A command is one of docs/troubleshooting.md, with its options."""
    words = list(arguments)
    command = " ".join(words[:2] if words[0] in ("queue", "tenant", "config", "shaping") else words[:1])
    lines = [line for line in DOCS.read_text().splitlines() if f"zonemta {command}" in line]
    options = [word for word in words if word.startswith("--")]
    assert any(all(option in line for option in options) for line in lines), arguments


@asynccontextmanager
async def operated(stage: Stage, **changes: Any) -> AsyncIterator[tuple[Relay, Operator]]:
    stage.config(**{"admin": {"address": "127.0.0.1:0"}, **changes})
    async with relaying(load_config(stage.directory / "zonemta.yaml")) as relay:
        yield relay, Operator(relay)


async def test_1_why_one_recipient_has_no_mail(directory: Path) -> None:
    async with staged(directory) as stage:
        greylisted = Rule(
            Step.RCPT, recipient="ann*", reply="451 4.7.1 Greylisted, try again in 5 minutes"
        )
        await stage.receiver("customer.example", greylisted)
        zones = {"default": {"retry": {"delays": ["15m"]}}}
        async with operated(stage, zones=zones) as (relay, operator):
            message = await relay.enqueue(
                "news@acme.example", ["ann@customer.example", "bob@customer.example"], LETTER
            )
            await until(lambda: bool(relay.queue.traffic.failures), "the deferral")
            found = await operator.zonemta("history", "ann@customer.example")
            assert message in found
            assert "Greylisted" in found
            why = await operator.zonemta("why", message, "ann@customer.example")
            assert "retry" in why
            assert "Greylisted" in why
            assert "next in 1" in why
            assert "zones.default.retry" in why
            assert "delivered" in await operator.zonemta("history", message)


async def test_2_what_happened_to_a_message_of_yesterday(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("customer.example")
        async with operated(stage) as (relay, operator):
            await relay.enqueue("news@acme.example", ["bob@customer.example"], LETTER)
            await empty(relay)
            for key in ("<7@acme.example>", "bob@customer.example"):
                found = await operator.zonemta("history", key)
                assert "accepted" in found
                assert "delivered" in found
                assert "mx.customer.example" in found
                assert "250" in found


async def test_3_who_is_slow(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("fast.example")
        await stage.receiver("slow.example", Rule(Step.DOT, stall_s=scaled(0.6)))
        async with operated(stage) as (relay, operator):
            for domain in ("fast.example", "slow.example"):
                await send(relay, [f"ann@{domain}"])
            await empty(relay)
            rows = (
                await operator.zonemta("top", "--once", "--by", "destination", "--minutes", "1")
            ).splitlines()
            times = {row.split()[1]: int(row.split()[-1]) for row in rows[1:]}
            assert times["slow.example"] >= 500
            assert times["slow.example"] > times["fast.example"]


async def test_4_a_customer_says_that_nothing_leaves(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("customer.example", Rule(Step.RCPT, times=1, reply="451 4.7.1 later"))
        tenants = {"acme": {"domains": ["acme.example"], "networks": ["127.0.0.0/8"]}}
        zones = {"default": {"retry": {"delays": ["1h"]}}}
        async with operated(stage, tenants=tenants, zones=zones) as (relay, operator):
            await send(relay, ["bob@customer.example"], LETTER, "news@acme.example")
            await until(lambda: bool(relay.queue.traffic.failures), "the deferral")
            await operator.zonemta("suspend", "--tenant", "acme", "--reason", "complaints above 0.3 %")
            await relay.flush()
            await until(lambda: relay.queue.census.zones()["default"][3] == 1, "the hold")
            assert "acme" in await operator.zonemta("queue", "summary", "--by", "tenant")
            found = await operator.zonemta("queue", "list", "--tenant", "acme")
            assert "tenant suspension" in found
            assert "complaints above" in found
            assert "complaints above" in await operator.zonemta("tenant", "show", "acme")
            await operator.zonemta("resume", "--tenant", "acme")
            await empty(relay)


async def test_5_the_disk_is_nearly_full(directory: Path) -> None:
    async with staged(directory) as stage:
        queue = {"directory": "queue", "min_free_disk": "1000000GB"}
        async with operated(stage, queue=queue) as (relay, operator):
            with pytest.raises(smtplib.SMTPSenderRefused, match="452"):
                await send(relay, ["bob@customer.example"])
            found = await operator.zonemta("status")
            assert "less than queue.min_free_disk is free" in found
            url = f"http://127.0.0.1:{http_port(relay)}/readyz"
            process = await asyncio.create_subprocess_exec(
                "curl", "-s", url, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await process.communicate()
            print(f"\n$ curl -s localhost:8125/readyz\n{output.decode()}")
            assert b"min_free_disk" in output


async def test_6_a_rate_is_too_low(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("customer.example")
        async with operated(stage, zones={"default": {"rate": "1/m"}}) as (relay, operator):
            messages = [
                await relay.enqueue("news@acme.example", [f"u{number}@customer.example"], LETTER)
                for number in range(30)
            ]
            await until(lambda: relay.queue.traffic.zones.row("default", 0)[1] >= 1, "a delivery")
            assert "waiting" in await operator.zonemta("queue", "summary")
            why = await operator.zonemta("why", messages[-1])
            assert "rate" in why
            assert "[zones.default.rate]" in why
            assert "1/m" in await operator.zonemta("config", "show")
            path = Path(relay.config.path)
            path.write_text(path.read_text().replace("1/m", "1000/s"))
            assert "zones.default.rate" in await operator.zonemta("reload")
            await empty(relay)


async def test_7_a_smarthost_is_dead(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has a few lines, however many messages wait."""
    async with staged(directory) as stage:
        sink = await stage.receiver("smart.example")
        await sink.close()
        zone = {"smarthost": f"127.0.1.1:{stage.port}", "retry": {"delays": ["15m"]}}
        async with operated(stage, zones={"default": zone}) as (relay, operator):
            for number in range(200):
                await relay.enqueue("news@acme.example", [f"u@c{number}.example"], LETTER)
            await until(lambda: bool(relay.queue.windows.zone("default").suspended()), "the suspension")
            found = await operator.zonemta("queue", "summary", "--by", "destination", "--troubled")
            assert "unreachable" in found
            assert "refused" in " ".join(found.split())
            assert "unreachable 1 destination" in await operator.zonemta("status")
            about = [r for r in caplog.records if "unreachable" in r.message or "refused" in r.message]
            assert len(about) <= 3
            await sink.start("127.0.1.1", stage.port)
            await operator.zonemta("queue", "flush")
            await empty(relay)


async def test_8_a_wrong_password_in_a_loop(
    directory: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with staged(directory) as stage:
        auth = {"users_file": str(users_file(directory)), "require_tls": False}
        listener = {"address": "127.0.0.1:0", "senders": "any", "auth": auth}
        async with operated(stage, listeners=[listener]) as (relay, operator):

            def try_it() -> None:
                address = relay.addresses[0]
                for _ in range(4):
                    with (
                        smtplib.SMTP(address.host, address.port, timeout=scaled(20)) as client,
                        pytest.raises(smtplib.SMTPAuthenticationError),
                    ):
                        client.login("news", "wrong")

            async with operator.watching("tail", "--event", "rejected") as output:
                await asyncio.to_thread(try_it)
                line = (await asyncio.wait_for(output.readline(), scaled(30))).decode()
                line += (await asyncio.wait_for(output.readline(), scaled(30))).decode()
            print(f"$ zonemta tail --event rejected\n{line}")
            assert "news" in line
            assert "127.0.0.1" in line
            log = caplog.text + capfd.readouterr().err  # a receiver's process has a log of its own
            line = "authentication failed: user='news' client="
            assert f"{line}127.0.0.1" in log
            assert f"{line}192.0.2.7" in DOCS.read_text()


async def test_9_a_provider_blocks_an_address(directory: Path) -> None:
    """A rule pauses the mail, an operator ends the pause; then one stops it, and goes on."""
    address, blocked = "127.0.0.31", "450 4.7.1 Client host blocked using zen.example"
    rule = {
        "name": "big-blocked",
        "provider": "big",
        "class": "blocked",
        "action": "suspend",
        "for": "2h",
    }
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": [rule]}))
    (directory / "providers.yaml").write_text("providers: {big: {mx: ['*.big.example']}}\n")
    settings: dict[str, Any] = {
        "providers": {"file": "providers.yaml", "shipped": False},
        "shaping": {"file": "shaping.yaml", "shipped": False},
        "pools": {"default": [{"address": address}]},
    }
    async with staged(directory) as stage:
        provider = await stage.provider("big", ["customer.example"])
        async with operated(stage, **settings) as (relay, operator):
            provider.block(address, blocked)
            async with operator.watching("tail", "--event", "shaped") as output:
                for number in range(10):
                    await relay.enqueue("news@acme.example", [f"u{number}@customer.example"], LETTER)
                lines = "".join(
                    [(await asyncio.wait_for(output.readline(), scaled(30))).decode() for _ in range(2)]
                )
            print(f"$ zonemta tail --event shaped\n{lines}")
            assert f"big from {address}: pace: full -> " in lines
            assert f"big from {address}: pause: sending -> paused until " in lines
            found = await operator.zonemta("queue", "summary", "--by", "destination", "--troubled")
            assert "rule big-blocked [shaping.file]" in " ".join(found.split())
            assert "next in 2.0h" in await operator.zonemta("shaping", "status", "--provider", "big")
            provider.unblock(address)
            chosen = ("--provider", "big", "--address", address)
            assert f"cleared for {address} at big" in await operator.zonemta("shaping", "clear", *chosen)
            await relay.flush()
            await empty(relay)
            reason = ("--for", "2h", "--reason", "ticket 4711")
            await operator.zonemta("suspend", "--provider", "big", *reason)
            message = await relay.enqueue("news@acme.example", ["x@customer.example"], LETTER)
            assert "suspended by an operator: provider big" in await operator.zonemta("status")
            assert "ticket 4711" in await operator.zonemta("why", message)
            await operator.zonemta("resume", "--provider", "big")
            await empty(relay)
