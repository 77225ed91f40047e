"""Domains of tenants that count only while DNS says so."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kit.deadlines import eventually, until
from tests.kit.relay import Stage, relaying, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.cli.main import main
from zonemta_py.config.schema import Config
from zonemta_py.relay import domain_verifier
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.nameserver import SERVFAIL, Records

PROCESSES = pytest.mark.parametrize(
    "processes",
    [{"receivers": 0, "senders": 0}, {"receivers": 1, "senders": 1}],
    ids=["one process", "several"],
)


def config_of(stage: Stage, processes: dict[str, int], *domains: str) -> Config:
    tenant: dict[str, Any] = {"networks": ["127.0.0.0/8"], "domains": list(domains), "verify": "dns"}
    return stage.config(tenants={"acme": tenant}, processes=processes)


def records(stage: Stage, **values: str | list[str]) -> None:
    """TXT records of ``_zonemta.NAME.example``."""
    texts: Records = {
        f"_zonemta.{name}.example": value if isinstance(value, str) else {"TXT": value}
        for name, value in values.items()
    }
    stage.names.records = {**stage.names.records, **texts}


async def reply(relay: Relay, domain: str, author: str = "") -> str:
    """The reply to a message from ``domain``: at MAIL, if that is refused."""
    async with await RawClient.connect(relay.addresses[0].port) as client:
        await client.ehlo()
        found = await client.command(f"MAIL FROM:<s@{domain}>")
        if found.startswith("250"):
            await client.command("RSET")
            data = f"From: n@{author or domain}\r\n\r\nhello\r\n.\r\n".encode()
            found = await client.message(data, "x@a.example", sender=f"s@{domain}")
        return found


def zonemta(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@PROCESSES
async def test_a_domain_counts_while_its_record_names_the_tenant(
    directory: Path, processes: dict[str, int]
) -> None:
    """Looked up at the start, by command and after a reload; a failing name server changes nothing."""
    page = directory / "zonemta.yaml"
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        records(stage, one=["acme"], two=["globex"], three=["other", "acme"])
        config = config_of(stage, processes, "one.example", "*.two.example", "three.example")
        async with relaying(config) as relay:
            verified = relay.queue.verified
            await until(lambda: verified.get("acme", "two.example") is not None, "the look-ups")

            async def accepted() -> bool:
                return (await reply(relay, "one.example")).startswith("250")

            await eventually(accepted, "the receivers to know")
            assert (await reply(relay, "three.example")).startswith("250")
            refused = await reply(relay, "x.two.example")
            assert (
                refused
                == "450 4.7.1 two.example is not verified: no TXT record of _zonemta.two.example is acme"
            )
            assert (await reply(relay, "one.example", "x.two.example")) == refused
            assert (await reply(relay, "four.example")).startswith("553 5.7.1")

            result = await asyncio.to_thread(zonemta, "tenant", "verify", "acme", "-c", page, "--json")
            rows = {row["domain"]: row for row in map(json.loads, result.output.splitlines())}
            assert {name: row["verified"] for name, row in rows.items()} == {
                "one.example": True, "two.example": False, "three.example": True,
            }  # fmt: skip
            assert result.exit_code == 1
            records(stage, two=["acme"], one=SERVFAIL, three=[])
            result = await asyncio.to_thread(zonemta, "tenant", "verify", "acme", "-c", page)
            assert "one.example: verified, last on 20" in result.output
            assert "three.example: not verified, last on 20" in result.output

            async def changed() -> bool:
                now = [await reply(relay, name) for name in ("x.two.example", "three.example")]
                return [each[:3] for each in now] == ["250", "450"]

            await eventually(changed, "the receivers to know")
            records(stage, five=["acme"])
            await relay.reload(config_of(stage, processes, "five.example"))
            await until(lambda: ("acme", "five.example") in verified, "the look-up")
        shown = await asyncio.to_thread(zonemta, "tenant", "show", "acme", "-c", page)
        assert "five.example: verified, last on 20" in shown.output
        result = await asyncio.to_thread(zonemta, "tenant", "verify", "acme", "-c", page)
        assert "not running" in result.output


async def test_when_it_is_looked_up_again(directory: Path) -> None:
    """A verified domain after a day, another after an hour."""
    async with staged(directory) as stage:
        records(stage, one=["acme"])
        config = config_of(stage, {"receivers": 0, "senders": 0}, "one.example", "two.example")
        async with relaying(config) as relay:
            verified = relay.queue.verified
            await until(lambda: verified.get("acme", "two.example") is not None, "the look-ups")
            verifier, now_ms = relay._verifier, relay.queue.now()

            def due(after_ms: int) -> list[str]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(relay.queue, "now", lambda: now_ms + after_ms)
                    domains = [domain for _, domain in verifier._domains()]
                    return [domain for domain in domains if verifier._is_due("acme", domain)]

            assert due(0) == []
            assert due(domain_verifier.FAILED_AGAIN_MS + 1000) == ["two.example"]
            assert due(domain_verifier.AGAIN_MS + 1000) == ["one.example", "two.example"]


async def test_a_tenant_without_verification(directory: Path) -> None:
    (directory / "zonemta.yaml").write_text("tenants: {acme: {domains: [a.example]}}\n")
    result = await asyncio.to_thread(
        zonemta, "tenant", "verify", "acme", "-c", directory / "zonemta.yaml"
    )
    assert result.exit_code == 2
    assert "tenants.acme.verify is none" in result.output
