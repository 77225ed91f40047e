"""What an operator suspends does not send: zones, providers, addresses, domains; over restarts, until it is resumed."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.kit.deadlines import eventually, until
from tests.kit.relay import Stage, empty, logged_events, relaying, sound, staged
from zonemta_py.cli.main import main
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.inspect import recipient_rows
from zonemta_py.relay import delivery_service
from zonemta_py.relay.relay import Relay

FIRST, SECOND = "127.0.0.31", "127.0.0.32"
TEXT = b"Subject: hi\r\n\r\nbody\r\n"
# option, name as it is given, in normal form, and what of the mail waits
SUSPENDED = [
    ("--zone", "bulk", "zone bulk", {"x@bulk.example"}),
    ("--provider", "big", "provider big", {"x@a.example", "x@xn--bcher-kva.example"}),
    ("--provider", "mx.own.example", "provider mx.own.example", {"x@bulk.example"}),
    ("--domain", "Bücher.example.", "domain xn--bcher-kva.example", {"x@xn--bcher-kva.example"}),
    ("--address", SECOND, f"address {SECOND}", {"x@bulk.example"}),
    ("--address", FIRST, f"address {FIRST}", {"x@a.example", "x@xn--bcher-kva.example"}),
]
ALL = {"x@a.example", "x@xn--bcher-kva.example", "x@bulk.example"}


async def sending(stage: Stage, processes: tuple[int, int]) -> Config:
    """A relay with two zones, each with an address; one provider has two domains, another one of its own."""
    await stage.provider("big", ["a.example", "xn--bcher-kva.example"])
    await stage.provider("own", ["bulk.example"], ["mx.own.example"])
    (stage.directory / "providers.yaml").write_text("providers: {big: {mx: ['*.big.example']}}\n")
    return stage.config(
        providers={"file": "providers.yaml", "shipped": False},
        pools={"default": [{"address": FIRST}], "bulk": [{"address": SECOND}]},
        zones={"bulk": {"pool": "bulk"}},
        routing=[{"recipient_domain": "bulk.example", "zone": "bulk"}],
        processes={"receivers": processes[0], "senders": processes[1]},
    )


async def zonemta(*arguments: object) -> Result:
    runner = CliRunner()
    return await asyncio.to_thread(runner.invoke, main, [str(each) for each in arguments])


async def done(*arguments: object) -> str:
    found = await zonemta(*arguments)
    assert found.exit_code == 0, found.output
    return found.stdout


def waiting(relay: Relay) -> set[str]:
    return {row["recipient"] for row in recipient_rows(relay.queue.store)}


async def reasons(relay: Relay) -> dict[str, dict[str, Any]]:
    rows = (await done("queue", "list", "-c", relay.config.path, "--json")).splitlines()
    return {row["recipient"]: row["why"] for row in map(json.loads, rows)}


async def suspended(relay: Relay) -> dict[str, dict[str, Any]]:
    """Why each recipient waits, when all of them wait for the suspension: senders look up hosts first."""

    async def said() -> bool:
        found = [why["name"] for why in (await reasons(relay)).values()]
        return bool(found) and set(found) == {"operator_suspension"}

    await eventually(said, "every recipient to wait for the suspension")
    return await reasons(relay)


async def assert_suspended(config: Config, number: int) -> None:
    """Mail of what is suspended is counted apart from mail whose destination does not answer."""
    for name in ("zone", "destination"):
        rows = [
            json.loads(line)
            for line in (
                await done("queue", "summary", "--by", name, "-c", config.path, "--json")
            ).splitlines()
        ]
        counts = [sum(row[state] for row in rows) for state in ("suspended", "unreachable", "waiting")]
        assert counts == [number, 0, 0], name
    listed = await done("queue", "list", "-c", config.path, "--state", "suspended")
    assert len(listed.splitlines()) == number
    assert "suspended: an operator has suspended what sends them" in await done(
        "queue", "flush", "-c", config.path
    )


@pytest.mark.parametrize(("option", "given", "what", "wait"), SUSPENDED)
async def test_each_kind(
    directory: Path, option: str, given: str, what: str, wait: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its mail waits with the reason, over a restart; the other mail leaves; resumed, all of it leaves."""
    caplog.set_level(logging.WARNING)
    async with staged(directory) as stage:
        config = await sending(stage, (0, 0))
        chosen = ("-c", config.path, option, given)
        async with relaying(config) as relay:
            said = await done("suspend", *chosen, "--reason", "ticket 7")
            assert said == f"suspended {what}\n"
            for address in ALL:
                await relay.enqueue("s@sender.example", [address], TEXT)
            await until(lambda: waiting(relay) == wait, "the other mail to leave")
            for why in (await suspended(relay)).values():
                assert why["reason"] == f"{what} is suspended: ticket 7"
                assert why["until_ms"] == 0
        assert f"{what} is suspended: ticket 7" in caplog.text
        async with relaying(config) as relay:
            await suspended(relay)
            assert waiting(relay) == wait
            text = f"suspended by an operator: {what}; suspended by that: {len(wait)} recipient"
            assert text in await done("status", "-c", config.path)
            await assert_suspended(config, len(wait))
            assert await done("resume", *chosen) == f"resumed {what.partition(' ')[2]}\n"
            await empty(relay)
            assert sound(relay)
            again = await zonemta("resume", *chosen)
            assert again.exit_code == 1
            assert f"{what} is not suspended; suspended: nothing" in again.output
    events = [
        (each["what"], each["provider"] or each["address"], each["from"], each["to"], each["cause"])
        for each in logged_events(directory, "shaped")
    ]
    kind, _, name = what.partition(" ")
    named = name if kind in ("provider", "address") else ""
    assert events == [
        ("suspended", named, "sending", "suspended", f"an operator: {what}: ticket 7"),
        ("resumed", named, "suspended", "sending", f"an operator: {what}"),
    ]


@pytest.mark.parametrize("processes", [(0, 0), (2, 2)])
async def test_for_a_time(directory: Path, processes: tuple[int, int]) -> None:
    """It ends by itself, and is not stored any more after the next change."""
    async with staged(directory) as stage:
        config = await sending(stage, processes)
        async with relaying(config) as relay:
            chosen = ("-c", config.path, "--provider", "big")
            said = await done("suspend", *chosen, "--for", "1h")
            assert said.startswith("suspended provider big until 20")
            for address in ALL:
                await relay.enqueue("s@sender.example", [address], TEXT)
            await until(lambda: waiting(relay) == ALL - {"x@bulk.example"}, "the other mail to leave")
            for why in (await suspended(relay)).values():
                assert 3_500_000 < why["until_ms"] - clock.now_ms() <= 3_600_000
            listed = await done("suspend", "-c", config.path, "--list")
            assert "provider  big" in listed
            await done("suspend", *chosen, "--for", "100ms")  # instead of the hour
            await empty(relay)
            assert await done("suspend", "-c", config.path, "--list") == "nothing is suspended\n"


async def test_all_at_once_when_the_relay_is_down(directory: Path) -> None:
    """A relay finds at its start what was suspended while it was down; ``--all`` resumes it."""
    async with staged(directory) as stage:
        config = await sending(stage, (0, 0))
        async with relaying(config):
            pass
        for option, name in (("--zone", "bulk"), ("--provider", "big"), ("--address", FIRST)):
            await done("suspend", "-c", config.path, option, name)
        listed = await done("suspend", "-c", config.path, "--list", "--json")
        rows = [json.loads(line) for line in listed.splitlines()]
        assert [next(iter(row.items())) for row in rows] == [
            ("address", FIRST), ("provider", "big"), ("zone", "bulk"),
        ]  # fmt: skip
        async with relaying(config) as relay:
            for address in ALL:
                await relay.enqueue("s@sender.example", [address], TEXT)
            await until(lambda: waiting(relay) == ALL, "the mail")

            async def all_wait() -> bool:
                found = (await reasons(relay)).values()
                return {why["name"] for why in found} == {"operator_suspension"}

            await eventually(all_wait, "all of it to wait")
            assert len((await done("resume", "-c", config.path, "--all")).splitlines()) == 3
            await empty(relay)
        assert await done("resume", "-c", config.path, "--all") == "nothing was suspended\n"


@pytest.mark.parametrize("processes", [(0, 0), (2, 2)])
async def test_a_campaign_at_a_provider(directory: Path, processes: tuple[int, int]) -> None:
    """Its mail is held there, with the reason, over a restart; all other mail leaves; at its end it is sent."""
    june = b"X-Campaign: june\r\n" + TEXT
    async with staged(directory) as stage:
        config = await sending(stage, processes)
        chosen = ("-c", config.path, "--campaign", "june", "--provider", "big")
        async with relaying(config) as relay:
            said = await done("suspend", *chosen, "--reason", "wrong list")
            assert said == "suspended mail of campaign june to provider big\n"
            await relay.enqueue("s@sender.example", sorted(ALL), june)
            await relay.enqueue("s@sender.example", ["y@a.example"], TEXT)
            held = ALL - {"x@bulk.example"}

            async def are_held() -> bool:
                found = {name: why["name"] for name, why in (await reasons(relay)).items()}
                return found == dict.fromkeys(held, "mail_suspension")

            await eventually(are_held, "its mail to be held, and the other to leave")
        async with relaying(config) as relay:
            assert {why["reason"] for why in (await reasons(relay)).values()} == {
                "mail of campaign june to provider big is suspended: wrong list"
            }
            assert "suspended mail of campaign june to provider big" in await done(
                "status", "-c", config.path
            )
            listed = await done("suspend", "-c", config.path, "--list", "--json")
            assert json.loads(listed)["mail"] == {"campaign": "june", "provider": "big"}
            assert "mail  campaign june, provider big" in await done(
                "suspend", "-c", config.path, "--list"
            )
            said = await done("resume", *chosen)
            assert said == "resumed mail of campaign june to provider big, released 2 recipients\n"
            await empty(relay)
            assert sound(relay)
            assert (await zonemta("resume", *chosen)).exit_code == 1
            await done("suspend", "-c", config.path, "--campaign", "june", "--for", "1s")
            await relay.enqueue("s@sender.example", sorted(ALL), june)
            await empty(relay)
            assert await done("suspend", "-c", config.path, "--list") == "nothing is suspended\n"
    events = [
        (each["what"], each["provider"], each["from"], each["to"], each["cause"])
        for each in logged_events(directory, "shaped")
    ]
    what = "an operator: mail of campaign june to provider big"
    assert events[:2] == [
        ("suspended", "big", "sending", "suspended", f"{what}: wrong list"),
        ("resumed", "big", "suspended", "sending", what),
    ]


@pytest.mark.parametrize("running", [True, False])
async def test_names_that_are_not_there(directory: Path, running: bool) -> None:
    """The error suggests what may be meant."""
    async with staged(directory) as stage:
        config = await sending(stage, (0, 0))
        async with relaying(config):
            if running:
                await refused(config)
        if not running:
            await refused(config)


async def refused(config: Config) -> None:
    for arguments, code, text in [
        (("--zone", "bluk"), 2, "no zone 'bluk'; did you mean 'bulk'?"),
        (("--provider", "bgi"), 2, "no provider 'bgi'; did you mean 'big'?"),
        (("--provider", "qqqq"), 2, "no provider 'qqqq'; there is big, smarthost"),
        (("--address", "127.0.0.33"), 2, "no address '127.0.0.33'; there is "),
        (("--address", "system"), 2, "no address 'system'; there is 127.0.0.31, 127.0.0.32"),
        (("--address", "300.1.1.1"), 2, "'300.1.1.1' does not appear to be an IPv4 or IPv6 address"),
        (("--domain", "a..example"), 2, "domain 'a..example': "),
        (("--tenant", "acme"), 2, "no tenant 'acme'; there is none"),
        (
            ("--zone", "bulk", "--domain", "a.example"),
            2,
            "a --zone, --provider, --address, --domain or --user",
        ),
        (("--campaign", "june", "--address", FIRST), 2, "a --tenant, a --campaign or both"),
        (("--campaign", "june", "--provider", "bgi"), 2, "no provider 'bgi'; did you mean 'big'?"),
        (("--campaign", "june", "--zone", "bluk"), 2, "no zone 'bluk'; did you mean 'bulk'?"),
        (("--campaign", "june", "--domain", "a..example"), 2, "domain 'a..example': "),
        ((), 2, "name what to suspend or resume"),
        (("--zone", "bulk", "--reason", " "), 1, "reason: expected 1 to 255 printable characters"),
        (("--zone", "bulk", "--for", "soon"), 2, "'soon' is not a duration"),
        (("--zone", "bulk", "--for", "0s"), 2, "'0s' is not a duration of more than 0s"),
    ]:
        found = await zonemta("suspend", "-c", config.path, *arguments)
        assert (found.exit_code, text in found.output) == (code, True), found.output
    assert await done("suspend", "-c", config.path, "--list") == "nothing is suspended\n"


async def test_a_domain_behind_a_smarthost(directory: Path) -> None:
    """The answer says where a domain is not suspended; the smarthost can be, as a provider."""
    async with staged(directory) as stage:
        sink = await stage.receiver("smart.example")
        zones = {"default": {"smarthost": f"127.0.1.1:{stage.port}"}}
        config = stage.config(zones=zones, processes={"receivers": 0, "senders": 0})
        async with relaying(config) as relay:
            said = await done("suspend", "-c", config.path, "--domain", "a.example")
            assert said.splitlines()[1].startswith("not in default, where mail goes to a smarthost")
            await relay.enqueue("s@sender.example", ["x@a.example"], TEXT)
            await empty(relay)
            await done("suspend", "-c", config.path, "--provider", "smarthost")
            await relay.enqueue("s@sender.example", ["y@b.example"], TEXT)

            async def waits() -> bool:
                found = (await reasons(relay)).values()
                return [why["name"] for why in found] == ["operator_suspension"]

            await eventually(waits, "the reason")
            assert len(sink.messages) == 1
            await done("resume", "-c", config.path, "--provider", "smarthost")
            await empty(relay)


@pytest.mark.parametrize("processes", [(0, 0), (2, 2)])
async def test_what_waits_is_given_up_in_time(
    directory: Path, processes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Senders hear of the delay once, and of the end; what is not so old waits on."""
    monkeypatch.setattr(delivery_service, "SWEEP_EVERY_S", 0.05)
    async with staged(directory) as stage:
        returned = await stage.receiver("sender.example")
        config = await sending(stage, processes)
        async with relaying(config):
            pass
        await done("suspend", "-c", config.path, "--provider", "big", "--reason", "ticket 7")
        retry = {"give_up_after": "2s", "warn_after": "1ms"}
        config = stage.config(
            **yaml.safe_load(Path(config.path).read_text())
            | {"zones": {"default": {"retry": retry, "bounce": {"aggregate": "attempt"}}, "bulk": {}}}
        )
        async with relaying(config) as relay:
            await relay.enqueue("s@sender.example", ["x@a.example", "y@a.example"], TEXT)
            await until(lambda: len(returned.messages) == 1, "the warning")
            assert b"ticket 7" in returned.messages[0].data
            await until(lambda: len(returned.messages) == 2, "the report")
            assert b"ticket 7" in returned.messages[1].data
            await empty(relay)
            assert sound(relay)
    for event in logged_events(directory, "expired"):
        assert (event["attempt"], event["class"], event["provider"]) == (0, "expired", "big")
    assert len(logged_events(directory, "expired")) == 2


async def test_a_damaged_message_is_no_obstacle_to_giving_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery_service, "SWEEP_EVERY_S", 0.05)
    async with staged(directory) as stage:
        returned = await stage.receiver("sender.example")
        config = await sending(stage, (0, 0))
        async with relaying(config):
            pass
        await done("suspend", "-c", config.path, "--provider", "big")
        async with relaying(config) as relay:
            damaged = str(await relay.enqueue("s@sender.example", ["x@a.example"], TEXT))
            await until(lambda: waiting(relay) == {"x@a.example"}, "the one that is damaged then")
            relay.queue._active._entries.clear()
            batch = relay.queue.store.batch([(keys.meta_key(damaged), None)], sync=True)
            relay.queue.store.write(batch)
            await until(lambda: "not given up" in caplog.text, "it was looked at")
            await relay.enqueue("s@sender.example", ["y@a.example"], b"X-Expire: 1s\r\n" + TEXT)
            await until(lambda: len(returned.messages) == 1, "the report on the other one")
            assert relay._delivery._tasks.running("limits of providers") == 1


async def test_room_at_an_address_is_not_lost_on_what_is_suspended(directory: Path) -> None:
    """One session for all providers: what may use it gets it, whatever else waits for it."""
    domains = [f"d{number}.example" for number in range(6)]
    async with staged(directory) as stage:
        for number, domain in enumerate(domains):
            await stage.provider(f"p{number}", [domain])
        config = stage.config(pools={"default": [{"address": FIRST, "limits": {"sessions": 1}}]})
        async with relaying(config):
            pass
        for number in range(3):
            await done("suspend", "-c", config.path, "--provider", f"mx.p{number}.example")
        async with relaying(config) as relay:
            for domain in domains:
                await relay.enqueue("s@sender.example", [f"x@{domain}"], TEXT)
            await until(lambda: waiting(relay) == {f"x@{each}" for each in domains[:3]}, "the others")
            await done("resume", "-c", config.path, "--all")
            await empty(relay)
