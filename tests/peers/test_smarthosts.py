"""12. Several smarthosts: in order, by MX of a name too, over a Unix socket; changed by a reload."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import Stage, empty, logged_events, relaying, send, staged
from tests.peers.scripts import DOMAIN, SENDERS, peers
from zonemta_py.core.errors import ConfigError
from zonemta_py.queue.upkeep.move import flush

NEVER: dict[str, Any] = {"retry": {"delays": ["1h"], "give_up_after": "2h"}}


def hosts_in_order(stage: Stage) -> dict[str, Any]:
    return {"zone": {"smarthost": [f"127.0.1.1:{stage.port}", f"mx.two.example:{stage.port}"]}}


@SENDERS
@pytest.mark.parametrize(
    "script",
    ["one connect 421 away", "one connect drop", "one mail 451 later", "one data drop"],
)
async def test_the_next_smarthost_takes_it(directory: Path, script: str, senders: int) -> None:
    async with peers(directory, script, senders, settings=hosts_in_order, **NEVER) as made:
        await made.send("a@x.example", "b@y.example")
        await made.finished()
        assert made.arrived("one") == []
        assert made.arrived("two") == ["a", "b"]
    assert logged_events(directory, "deferred") == []


@SENDERS
async def test_the_first_smarthost_is_preferred(directory: Path, senders: int) -> None:
    async with peers(directory, "", senders, settings=hosts_in_order, **NEVER) as made:
        for name in "abc":
            await made.send(f"{name}@{name}.example")
        await made.finished()
        assert (made.arrived("one"), made.sessions("two")) == (["a", "b", "c"], 0)


async def test_a_smarthost_that_is_not_in_dns(directory: Path) -> None:
    """The next one is used; without one the mail waits, because the configuration may be corrected."""

    def missing_first(stage: Stage) -> dict[str, Any]:
        return {"zone": {"smarthost": ["none.example:25", f"127.0.1.1:{stage.port}"]}}

    async with peers(directory, "", settings=missing_first, **NEVER) as made:
        await made.send("a@x.example")
        await made.finished()
        assert made.arrived("one") == ["a"]
    async with peers(directory, "", smarthost="mx:none.example", **NEVER) as made:
        await made.send("a@x.example")
        await made.is_deferred("a")
    assert "smarthost mx:none.example" in str(logged_events(directory, "deferred")[0]["reply"])


async def test_the_exchangers_of_a_smarthost(directory: Path) -> None:
    def by_mx(stage: Stage) -> dict[str, Any]:
        return {"zone": {"smarthost": f"mx:{DOMAIN}:{stage.port}"}}

    async with peers(directory, "one connect 421 away", settings=by_mx, **NEVER) as made:
        await made.send("a@x.example")
        await made.finished()
        assert made.arrived("two") == ["a"]


async def test_a_reload_changes_smarthosts_also_for_mail_that_waits(directory: Path) -> None:
    """In the window, outside it, and deferred."""
    queue = {"directory": "queue", "min_free_disk": "1MiB", "ready_window": 100}
    async with staged(directory) as stage:
        one, two = await stage.receiver("one.example"), await stage.receiver("two.example")
        dead = {"smarthost": "127.0.1.8:1", "retry": {"delays": ["1h"]}}
        async with relaying(stage.config(zones={"default": dead}, queue=queue)) as relay:
            for n in range(30):
                await send(relay, [f"a{n}-{m}@x{m}.example" for m in range(5)])
            await until(lambda: relay._delivery.zones["default"].describe("*") != "", "a failure")
            smarthost = [f"127.0.1.1:{stage.port}", f"127.0.1.2:{stage.port}"]
            await relay.reload(stage.config(zones={"default": {"smarthost": smarthost}}, queue=queue))
            await flush(relay.queue)
            relay._delivery.probe()
            await empty(relay)
            assert one.tally.recipients == 150
            assert two.messages == []


async def test_what_a_reload_must_not_change(directory: Path) -> None:
    """Mail that waits is stored under the names of destinations."""
    smarthost = {"smarthost": "127.0.1.1:25"}
    async with (
        staged(directory) as stage,
        relaying(stage.config(zones={"default": smarthost})) as relay,
    ):
        with pytest.raises(ConfigError, match=r"smarthost \(from none, or to none\): a change needs"):
            await relay.reload(stage.config())
        item = {"domains": ["a.example"], "connections": 1}
        zones = {"default": {**smarthost, "destinations": [item]}}
        with pytest.raises(ConfigError, match=r"destinations \(their domains, beside a smarthost\)"):
            await relay.reload(stage.config(zones=zones))


async def test_lmtp_over_a_unix_socket(directory: Path) -> None:
    """The success is a delivery, and each recipient has its own reply."""
    path = directory / "lmtp.sock"
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 local\r\n")
        recipients = 0
        while line := await reader.readline():
            lines.append(line.decode().strip())
            word = line[:4].upper()
            recipients += word == b"RCPT"
            if word == b"LHLO":
                writer.write(b"250-local\r\n250 8BITMIME\r\n")
            elif word == b"DATA":
                writer.write(b"354 go\r\n")
                await reader.readuntil(b"\r\n.\r\n")
                writer.write(b"250 2.0.0 stored\r\n552 5.2.2 full\r\n"[: 99 if recipients > 1 else 18])
            elif word == b"QUIT":
                break
            else:
                writer.write(b"250 2.1.0 ok\r\n")
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server, staged(directory) as stage:
        zone = {"transport": "lmtp", "smarthost": f"unix:{path}"}
        async with relaying(stage.config(zones={"default": zone})) as relay:
            await send(relay, ["a@x.example", "full@x.example"], sender="")
            await empty(relay)
    assert lines[0] == "LHLO relay.example"
    [delivered], [bounced] = (logged_events(directory, name) for name in ("delivered", "bounced"))
    assert (delivered["recipient"], delivered["mx"]) == ("a@x.example", str(path))
    assert (bounced["recipient"], bounced["status"]) == ("full@x.example", "5.2.2")
