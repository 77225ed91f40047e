"""The limits of providers hold at the receivers, in one process and over several."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.deadlines import eventually, time_limit, until
from tests.kit.relay import Stage, empty, logged_events, relaying, sound, staged
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.requests import ListRequest, ReleaseRequest
from zonemta_py.core import clock
from zonemta_py.egress.admission import SOURCE_RUN
from zonemta_py.egress.paths import Limit
from zonemta_py.sink.nameserver import SILENT
from zonemta_py.sink.provider import SinkProvider
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink

ADDRESSES = ["127.0.0.31", "127.0.0.32"]
PROCESSES = [(0, 0), (2, 2)]
SLACK = time_limit(0.2)  # by which a slow machine may be late
PERIOD = time_limit(2)  # of a rate: longer than the slack
MANY = 20 * SOURCE_RUN  # messages: an address of two that none of 20 draws takes is one in a million
TEXT = b"Subject: hi\r\n\r\nbody\r\n"


def shaped(stage: Stage, processes: tuple[int, int], providers: dict[str, Any], **changes: Any) -> Any:
    """A relay with two addresses, and these providers by name: the hosts are ``*.NAME.example``."""
    own = {name: {"mx": [f"*.{name}.example"], "limits": limits} for name, limits in providers.items()}
    (stage.directory / "providers.yaml").write_text(yaml.safe_dump({"providers": own}))
    return stage.config(
        providers={"file": "providers.yaml", "shipped": False},
        pools={"default": [{"address": each} for each in ADDRESSES], **changes.pop("pools", {})},
        processes={"receivers": processes[0], "senders": processes[1]},
        **changes,
    )


async def fill(relay: Any, domains: Sequence[str], messages: int, name: str = "m") -> None:
    """Submit ``messages`` of one recipient each."""
    for number in range(messages):
        await relay.enqueue(
            "s@sender.example", [f"{name}{number}@{domains[number % len(domains)]}"], TEXT
        )


def kept(provider: SinkProvider, messages: int) -> None:
    """Nothing was over a limit, and everything came."""
    assert provider.violations == []
    assert len(provider.accepted) == messages


@pytest.mark.parametrize("processes", PROCESSES)
async def test_sessions_of_a_provider(directory: Path, processes: tuple[int, int]) -> None:
    """Domains that share a host share its sessions, from each address and from all, idle ones included."""
    domains = [f"d{n}.example" for n in range(8)]
    async with staged(directory) as stage:
        limits: dict[str, Any] = {"sessions": 4, "sessions_per_address": 3, "messages_per_session": 5}
        big = await stage.provider("big", domains, **limits)
        free = await stage.provider("free", ["free.example"])
        async with relaying(shaped(stage, processes, {"big": limits})) as relay:
            await fill(relay, domains, 200)
            await fill(relay, ["free.example"], 20, "f")
            senders, users = relay._delivery.senders, set[int]()

            def sent() -> bool:
                children = senders._supervisor.children if senders is not None else ()
                users.update(child.slot for child in children if child.held["big"])
                return len(big.accepted) == 200

            await until(sent, "all of it")
            assert len(users) == min(1, processes[1]), "its sessions are in one process"
            await empty(relay)
            assert sound(relay)
        kept(big, 200)
        kept(free, 20)
        assert big.most_sessions > 1
        assert set(big.clients) == set(ADDRESSES)


@pytest.mark.parametrize("processes", PROCESSES)
async def test_rates_of_a_provider(directory: Path, processes: tuple[int, int]) -> None:
    """No period of the length of a rate has more messages. That most of it is used: ``test_permits``, on a virtual clock."""
    domains = [f"d{n}.example" for n in range(5)]
    async with staged(directory) as stage:
        limits: dict[str, Any] = {"rate": [f"10/{PERIOD}"]}
        big = await stage.provider("big", domains, **limits, slack=SLACK)
        async with relaying(shaped(stage, processes, {"big": limits})) as relay:
            await fill(relay, domains, 60)
            await empty(relay)
        kept(big, 60)


@pytest.mark.parametrize("processes", PROCESSES)
async def test_three_providers_and_two_pools(directory: Path, processes: tuple[int, int]) -> None:
    """Of forty domains: each provider gets everything, no limit of any is exceeded, and others' mail passes by."""
    limits: dict[str, dict[str, Any]] = {
        "alpha": {"sessions": 6, "sessions_per_address": 2, "messages_per_session": 10, "rate": [f"40/{PERIOD}"]},
        "beta": {"sessions": 4, "rate": [f"30/{PERIOD}"], "connect_rate": [f"6/{PERIOD}"]},
        "gamma": {"sessions_per_address": 3, "messages_per_session": 20},
    }  # fmt: skip
    names = [*limits, *limits, "gamma", "gamma"]
    domains = {
        name: [f"d{n}.example" for n in range(40) if names[n % len(names)] == name] for name in limits
    }
    senders = {"bulk": ADDRESSES, "news": ["127.0.0.33", "127.0.0.34"]}
    async with staged(directory) as stage:
        found = {
            name: await stage.provider(name, domains[name], **each, slack=SLACK)
            for name, each in limits.items()
        }
        free = await stage.provider("free", ["free.example"])
        config = shaped(
            stage, processes, limits,
            pools={zone: [{"address": each} for each in own] for zone, own in senders.items()},
            zones={"default": {}, **{zone: {"pool": zone} for zone in senders}},
            routing=[{"sender_domain": f"{zone}.example", "zone": zone} for zone in senders],
        )  # fmt: skip
        async with relaying(config) as relay:
            for number in range(480):
                zone = "news" if number % 3 else "bulk"
                await relay.enqueue(f"s@{zone}.example", [f"m{number}@d{number % 40}.example"], TEXT)
                if number % 40 == 0:
                    await fill(relay, ["free.example"], 1, f"f{number}-")
            await empty(relay)
            assert sound(relay)
        for name, provider in found.items():
            kept(provider, 12 * len(domains[name]))
            assert set(provider.clients) == {each for own in senders.values() for each in own}
        kept(free, 12)


@pytest.mark.parametrize("processes", PROCESSES)
async def test_new_sessions_of_a_provider(directory: Path, processes: tuple[int, int]) -> None:
    """Sessions that are open are used while no new one may be opened."""
    domains = [f"d{n}.example" for n in range(3)]
    async with staged(directory) as stage:
        limits: dict[str, Any] = {"connect_rate": ["2/s"], "messages_per_session": 10}
        big = await stage.provider("big", domains, ["mx.big.example"], **limits)
        async with relaying(shaped(stage, processes, {"big": limits})) as relay:
            await fill(relay, domains, 60)
            await empty(relay)
        kept(big, 60)


@pytest.mark.parametrize("limits", [{"sessions": 40}, {}], ids=["limits", "free"])
@pytest.mark.parametrize("processes", PROCESSES)
async def test_addresses_share_the_sessions(
    directory: Path, processes: tuple[int, int], limits: dict[str, Any]
) -> None:
    """By weight. The bound on connections only excludes one for each second message; ``test_schedule`` has the draws."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], **limits)
        pool = [{"address": ADDRESSES[0], "weight": 3}, {"address": ADDRESSES[1]}]
        config = shaped(
            stage, processes, {"big": limits},
            pools={"default": pool}, zones={"default": {"connections": 4}},
        )  # fmt: skip
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 400)
            await empty(relay)
        kept(big, 400)
        often, rarely = (big.clients[each] for each in ADDRESSES)
        assert len(often.connected) + len(rarely.connected) < 200, (
            "fewer than one for each second message"
        )
        assert 0.4 < often.messages / 400 < 0.98


@pytest.mark.parametrize("processes", PROCESSES)
async def test_a_long_window_holds_over_a_restart(directory: Path, processes: tuple[int, int]) -> None:
    """What was sent in the hour counts in the next run."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], rate=["10/h"])
        free = await stage.provider("free", ["free.example"])
        config = shaped(stage, processes, {"big": {"rate": ["10/h"]}})
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 14)
            await until(lambda: len(big.accepted) == 14, "what the addresses may send")
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 10, "n")
            await until(lambda: len(big.accepted) == 20, "what is left of the hour")
            await fill(relay, ["free.example"], 5)
            await until(lambda: len(free.accepted) == 5, "mail to others")
            state = relay._delivery.views["default"].why("d.example")
            assert state is not None
            assert state.name == "provider_rate"
            assert state.until_ms > clock.now_ms() + 3_000_000
            assert sound(relay)
        kept(big, 20)


@pytest.mark.parametrize(
    ("processes", "at"),
    [((0, 0), "mail"), ((2, 2), "mail"), ((0, 0), "connect"), ((2, 2), "connect")],
)
async def test_a_blocked_address_is_left_at_once(
    directory: Path, processes: tuple[int, int], at: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing leaves from it to that provider from the next lease on; after the pause it comes back by steps."""
    domains = [f"d{n}.example" for n in range(4)]
    blocked = ADDRESSES[0]
    rules = [{"name": "block", "class": "blocked", "action": "suspend", "for": time_limit(6)}]
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": rules}))
    async with staged(directory) as stage:
        big = await stage.provider("big", domains, block={"at": at})
        other = await stage.provider("other", ["o.example"])
        config = shaped(
            stage, processes, {}, shaping={
                "file": "shaping.yaml", "shipped": False,
                "controller": {"interval": time_limit(0.5), "step": 50},
            },
            zones={"default": {"retry": {"delays": ["100ms"]}, "connections_per_domain": 2}},
        )  # fmt: skip
        big.block(blocked, "421 4.7.0 your IP is blocked for its bad reputation")
        async with relaying(config) as relay:
            await fill(relay, domains, MANY)
            await fill(relay, ["o.example"], MANY)
            await until(lambda: len(big.accepted) == len(other.accepted) == MANY, "all mail")
            account = big.account(blocked)
            first = account.refused.total()
            assert account.messages == 0
            assert 1 <= first <= 2 * len(domains), "those that were under way"
            assert other.account(blocked).messages > 0, "it is used elsewhere"
            big.unblock(blocked)
            await fill(relay, domains, 10, "n")
            await until(lambda: account.messages or len(big.accepted) == MANY + 10, "the next mail")
            await until(lambda: not relay._delivery.egress.shaper.controller.paces, "the last step")
            await fill(relay, domains, MANY, "o")
            await empty(relay)
        assert account.messages > 0
        assert account.refused.total() == first
    changes = logged_events(directory, "shaped")
    assert [each["what"] for each in changes[:2]] == ["pace", "pause"]
    assert f"mx.big.example from {blocked}: pause: paused until 20" in caplog.text
    assert {(each["provider"], each["address"]) for each in changes} == {("mx.big.example", blocked)}
    assert changes[-1]["to"] == "full"
    assert {each["provider"] for each in logged_events(directory, "delivered")} == {
        "mx.big.example", "mx.other.example",
    }  # fmt: skip


@pytest.mark.parametrize("limits", [{"sessions_per_address": 2}, {}], ids=["limits", "free"])
@pytest.mark.parametrize("processes", PROCESSES)
async def test_a_greylisted_recipient_keeps_its_address(
    directory: Path, processes: tuple[int, int], limits: dict[str, Any]
) -> None:
    """A server of which the list knows address, sender and recipient takes the second attempt."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], greylist="200ms")
        async with relaying(shaped(stage, processes, {"big": limits})) as relay:
            await fill(relay, ["d.example"], MANY)
            await empty(relay)
        kept(big, MANY)
    attempts = [*logged_events(directory, "deferred"), *logged_events(directory, "delivered")]
    addresses: dict[str, set[str]] = {}
    for each in attempts:
        addresses.setdefault(each["recipient"], set()).add(each["source_ip"])
    assert all(len(each) == 1 for each in addresses.values())
    assert set.union(*addresses.values()) == set(ADDRESSES)


BLOCKED = "554 5.7.1 your IP is blocked for its bad reputation"


@pytest.mark.parametrize(
    ("at", "reply", "attempt"),
    [
        ("mail", "451 4.3.2 try again later", 3),
        ("mail", "451 4.7.1 your IP is blocked for its bad reputation", 2),
        ("connect", BLOCKED, 2),
    ],
)
@pytest.mark.parametrize(("addresses", "processes"), [(1, (0, 0)), (2, (0, 0)), (2, (2, 2))])
async def test_the_fallback_pool(
    directory: Path, at: str, reply: str, attempt: int, addresses: int, processes: tuple[int, int]
) -> None:
    """After as many deferrals as the zone says, and at once after a block, at whatever step it is said."""
    last = "127.0.0.33"
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], block={"at": at})
        for address in ADDRESSES:
            big.block(address, reply)
        zone = {"fallback_pool": "last", "fallback_after": 2, "retry": {"delays": ["50ms"]}}
        pools = {
            "default": [{"address": each} for each in ADDRESSES[:addresses]],
            "last": [{"address": last}],
        }
        config = shaped(
            stage, processes, {}, pools=pools, zones={"default": zone},
            shaping={"shipped": False, "controller": {"enabled": False}},
        )  # fmt: skip
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 5)
            await empty(relay)
        assert big.account(last).messages == 5
    assert {each["attempt"] for each in logged_events(directory, "delivered")} == {attempt}


@pytest.mark.parametrize("at", ["mail", "connect"])
async def test_a_blocked_message_leaves_its_address(directory: Path, at: str) -> None:
    """Without rules and controller, too: the next attempt is made from another address of the pool."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], block={"at": at})
        big.block(ADDRESSES[0], BLOCKED.replace("554 5", "451 4"))
        config = shaped(
            stage, (0, 0), {}, zones={"default": {"retry": {"delays": ["50ms"]}}},
            shaping={"shipped": False, "controller": {"enabled": False}},
        )  # fmt: skip
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], MANY)
            await empty(relay)
        assert big.account(ADDRESSES[1]).messages == MANY
    refused = logged_events(directory, "deferred")
    assert 0 < len(refused) == len({each["recipient"] for each in refused}), "nothing twice"
    phase = "connect" if at == "connect" else "mail"
    assert {(each["source_ip"], each["code"], each["class"], each["phase"]) for each in refused} == {
        (ADDRESSES[0], 451, "blocked", phase)
    }
    assert all(each["mx"] == "mx.big.example" and each["mx_ip"] for each in refused)


@pytest.mark.parametrize("controller", [True, False])
async def test_the_shipped_rules_leave_a_blocked_address(directory: Path, controller: bool) -> None:
    """The first blocked reply lowers the pace to a few a minute; without the controller 20 of them pause the address."""
    messages, underway = 200, 4
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], block={"at": "mail"})
        other = await stage.provider("other", ["o.example"])
        big.block(ADDRESSES[0], "451 4.7.1 your IP is blocked for its bad reputation")
        zone = {"retry": {"delays": ["50ms"]}, "connections_per_domain": underway}
        settings = {"controller": {"enabled": controller}}
        config = shaped(stage, (0, 0), {}, zones={"default": zone}, shaping=settings)
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], messages)
            await fill(relay, ["o.example"], MANY, "o")
            await empty(relay)
        assert big.account(ADDRESSES[1]).messages == messages
        refused = big.account(ADDRESSES[0]).refused.total()
        assert other.account(ADDRESSES[0]).messages > 0, "it is used elsewhere"
    first = logged_events(directory, "shaped")[0]
    assert (first["provider"], first["address"]) == ("mx.big.example", ADDRESSES[0])
    if controller:
        assert first["what"] == "pace"
        assert 1 <= refused < 20 + underway
    else:
        assert (first["what"], first["cause"]) == ("pause", "rule blocked")
        assert 20 <= refused < 20 + underway


def recipients_of(sink: Sink) -> set[int]:
    """The numbers of those that have got the message."""
    return {int(each[1]) for message in sink.messages for each in message.recipients}


async def test_what_rules_make_of_a_recipient(directory: Path) -> None:
    """Held and released, returned at a deferral, with a ladder of its own, not counted, refused for good and tried again."""
    rules = [
        {"name": "hold", "pattern": "S1", "action": "hold"},
        {"name": "return", "pattern": "S2", "action": "bounce"},
        {"name": "ladder", "pattern": "S3", "action": "retry", "delays": ["1ms"]},
        {"name": "free", "pattern": "S4", "action": "not_counted"},
        {"name": "again", "pattern": "S5", "action": "defer"},
        {"name": "soon", "pattern": "S5", "action": "retry", "delays": ["1ms"]},
    ]
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": rules}))
    replies = {1: "550 5.7.1 S1", 2: "451 4.7.1 S2", 3: "451 4.7.1 S3", 4: "451 4.7.1 S4"}
    replies[5] = "554 5.7.1 S5"
    async with staged(directory) as stage:
        sink = await stage.receiver(
            "d.example",
            *(
                Rule(Step.RCPT, recipient=f"r{number}@*", reply=reply, times=2 if number > 2 else 1)
                for number, reply in replies.items()
            ),
        )
        zone = {"retry": {"delays": ["1h"]}, "bounce": {"aggregate": "attempt"}}
        config = shaped(
            stage,
            (0, 0),
            {},
            shaping={"file": "shaping.yaml", "shipped": False},
            zones={"default": zone},
        )
        async with relaying(config) as relay:
            message = await relay.enqueue("", [f"r{number}@d.example" for number in replies], TEXT)
            delivered = partial(recipients_of, sink)
            await until(lambda: delivered() == {3, 5}, "those with a ladder of their own")
            left = {("r1@d.example", "held", 1), ("r4@d.example", "deferred", 0)}

            async def settled() -> bool:
                rows = [row async for row in run_operation(Operations(relay.queue), ListRequest())]
                return {(row["recipient"], row["state"], row["attempts"]) for row in rows} == left

            await eventually(settled, f"the queue holds {left}")
            await relay.flush()
            released = run_operation(Operations(relay.queue), ReleaseRequest(str(message)))
            assert [row async for row in released] == [{"released": 1}]
            await until(lambda: 1 in delivered(), "the one that was held")
            await relay.flush()
            await until(lambda: 4 in delivered(), "the last")
            await empty(relay)
            assert sound(relay)
    assert [each["recipient"] for each in logged_events(directory, "bounced")] == ["r2@d.example"]
    [held] = logged_events(directory, "held")
    assert (held["recipient"], held["reason"]) == ("r1@d.example", "rule 'hold' of shaping: 550 S1")
    deferred = {each["recipient"]: each["due_ms"] for each in logged_events(directory, "deferred")}
    assert (deferred["r1@d.example"], deferred["r4@d.example"] > 0) == (0, True)
    attempts = {each["recipient"]: each["attempt"] for each in logged_events(directory, "delivered")}
    assert attempts == {"r1@d.example": 2, "r3@d.example": 3, "r4@d.example": 1, "r5@d.example": 3}


async def test_a_pool_that_a_reload_removes(directory: Path) -> None:
    """A rule has sent mail to a pool that is not there any more: it leaves from its own one again."""
    rules = [{"name": "other", "class": "policy", "action": "pool", "pool": "last", "for": "1h"}]
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": rules}))
    last, changes = "127.0.0.33", {"shaping": {"file": "shaping.yaml", "shipped": False}}
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"])
        for each in ADDRESSES:
            big.block(each, "451 4.7.0 local policy")
        config = shaped(stage, (0, 0), {}, pools={"last": [{"address": last}]}, **changes)
        async with relaying(config) as relay:
            await fill(relay, ["d.example"], 20)
            await until(lambda: big.account(last).messages, "mail from the other pool")
            for each in ADDRESSES:
                big.unblock(each)
            (directory / "shaping.yaml").write_text("rules: []\n")
            await relay.reload(shaped(stage, (0, 0), {}, **changes))
            before = big.account(last).messages
            await fill(relay, ["d.example"], 20, "n")
            await empty(relay)
        assert len(big.accepted) == 40
        assert big.account(last).messages <= before + 20


async def test_a_provider_that_no_address_reaches(directory: Path) -> None:
    """It is a failed attempt, with a reason: the mail must not wait without end at a limit."""
    async with staged(directory) as stage:
        await stage.provider("big", ["d.example"])
        own = {"big": {"mx": ["*.big.example"], "family": "ipv6", "limits": {"sessions": 2}}}
        (directory / "providers.yaml").write_text(yaml.safe_dump({"providers": own}))
        config = stage.config(
            providers={"file": "providers.yaml", "shipped": False},
            pools={"default": [{"address": ADDRESSES[0]}]},
            zones={"default": {"retry": {"delays": ["50ms"], "give_up_after": "200ms"}}},
        )
        async with relaying(config) as relay:
            await relay.enqueue("", ["x@d.example"], TEXT)
            await empty(relay)
    [expired] = logged_events(directory, "expired")
    assert "can reach" in expired["reply"] or "can be reached" in expired["reply"]


async def test_a_pool_without_a_usable_address(directory: Path) -> None:
    """Its mail waits, says why, and leaves when a reload brings an address back; the keys of changed files are named."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"])

        def config(*, disabled: bool) -> Any:
            pool = [{"address": each, "disabled": disabled} for each in ADDRESSES]
            return shaped(stage, (0, 0), {"big": {"sessions": 1 + disabled}}, pools={"default": pool})

        async with relaying(config(disabled=True)) as relay:
            await relay.enqueue("", ["x@d.example"], TEXT)
            workers = relay._delivery.zones["default"]
            await until(
                lambda: (why := workers.why("d.example")) and why.name == "no_source", "a reason"
            )
            why = workers.why("d.example")
            assert why is not None
            assert why.reason == "every address of the pool 'default' is disabled"
            changed = await relay.reload(config(disabled=False))
            assert {"providers.file", "pools.default[0].disabled"} <= set(changed)
            await empty(relay)
        assert len(big.accepted) == 1
    [delivered] = logged_events(directory, "delivered")
    assert delivered["attempt"] == 1


async def test_a_provider_that_gets_another_name(directory: Path) -> None:
    """What an operator has suspended by its name leaves, and the relay says so."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"])
        named = shaped(stage, (0, 0), {"big": {}})
        async with relaying(named) as relay:
            await relay._queue.suspended.suspend("provider:big", "ticket 4711")
            assert relay.status()["warnings"] == []
            table = named.providers.file
            assert table is not None
            table.write_text(table.read_text().replace("big:", "large:", 1))
            await relay.reload(named)
            [warning] = relay.status()["warnings"]
            assert warning.startswith(
                "the suspension of the provider 'big' concerns no mail: found 'big'"
            )
            await relay.enqueue("", ["x@d.example"], TEXT)
            await empty(relay)
        assert len(big.accepted) == 1


@pytest.mark.parametrize(
    ("limits", "of_address", "hosts"),
    [({"sessions": 1}, {}, ["big", "big"]), ({}, {"limits": {"sessions": 1}}, ["big", "other"])],
    ids=["provider", "address"],
)
async def test_zones_that_share_a_session_have_it_in_turn(
    directory: Path, limits: dict[str, Any], of_address: dict[str, Any], hosts: list[str]
) -> None:
    """The zone that has the only session of a provider, or of an address, does not keep it while its mail lasts."""
    messages = 60
    async with staged(directory) as stage:
        slow = [{"at": "dot", "stall": "20ms"}]  # so that mail waits in both zones
        found = {
            name: await stage.provider(name, [f"{name}.example"], rules=slow) for name in set(hosts)
        }
        config = shaped(
            stage, (0, 0), {"big": limits, "other": {}},
            pools={"default": [{"address": ADDRESSES[0], **of_address}]},
            zones={"default": {"connections_per_domain": 1}, "second": {"connections_per_domain": 1}},
            routing=[{"sender_domain": "second.example", "zone": "second"}],
        )  # fmt: skip
        async with relaying(config) as relay:
            for number in range(messages):
                for sender, host in zip(("s@sender.example", "s@second.example"), hosts, strict=True):
                    await relay.enqueue(sender, [f"{sender[2:5]}{number}@{host}.example"], TEXT)
            await empty(relay)
        assert sum(len(each.accepted) for each in found.values()) == 2 * messages
    zones = [each["zone"] for each in logged_events(directory, "delivered")]
    last = {zone: len(zones) - zones[::-1].index(zone) for zone in ("default", "second")}
    assert min(last.values()) > len(zones) - SOURCE_RUN * 3, (
        f"one has waited for the end of the other: {last}"
    )


async def test_a_zone_that_waits_for_its_own_rate_does_not_keep_a_session_of_an_address(
    directory: Path,
) -> None:
    """It has mail for two providers in line for that, and may send one message: its other turn waits, the other zone does not."""
    async with staged(directory) as stage:
        slow = [{"at": "dot", "stall": "20ms"}]  # so that mail waits in both zones
        for name in ("big", "other", "third"):
            await stage.provider(name, [f"{name}.example"], rules=slow)
        config = shaped(
            stage, (0, 0), {"big": {}, "other": {}, "third": {}},
            pools={"default": [{"address": ADDRESSES[0], "limits": {"sessions": 1}}]},
            zones={"default": {"connections_per_domain": 1}, "second": {"rate": "12/m"}},
            routing=[{"sender_domain": "second.example", "zone": "second"}],
        )  # fmt: skip
        async with relaying(config) as relay:
            for number in range(20):
                await relay.enqueue("s@sender.example", [f"a{number}@big.example"], TEXT)
            for name in ("other", "third"):
                await relay.enqueue("s@second.example", [f"b@{name}.example"], TEXT)
            await empty(relay)
    zones = [each["zone"] for each in logged_events(directory, "delivered")]
    assert (len(zones), zones[-1]) == (22, "second")


async def test_an_idle_session_with_another_host_is_no_room(directory: Path) -> None:
    """A domain that needs a new session waits until one is allowed, and is not tried again and again meanwhile."""
    async with staged(directory) as stage:
        one = await stage.provider("one", ["one.example"], hosts=["a.big.example"])
        two = await stage.provider("two", ["two.example"], hosts=["b.big.example"])
        config = shaped(
            stage, (0, 0), {"big": {"connect_rate": f"1/{time_limit(5)}"}},
            pools={"default": [{"address": ADDRESSES[0]}]},
        )  # fmt: skip
        async with relaying(config) as relay:
            egress = relay._delivery.zones["default"]._egress
            refused, not_permitted = 0, egress.not_permitted

            def count(slot: Any) -> None:
                nonlocal refused
                refused += 1
                not_permitted(slot)

            egress.not_permitted = count
            await fill(relay, ["one.example"], 1)
            await until(lambda: len(one.accepted) == 1, "the first session")
            await fill(relay, ["two.example"], 3, "n")
            await until(lambda: refused > 0, "no session for it")
            await fill(relay, ["one.example"], 2, "k")
            await until(lambda: len(one.accepted) == 3, "mail that has a session")
            assert len(two.accepted) == 0
            await empty(relay)
        assert len(two.accepted) == 3
    assert 1 <= refused <= 5


async def test_mail_waits_for_a_look_up_and_not_for_a_connection(directory: Path) -> None:
    """The only connection of the zone serves others while a name server says nothing; then that domain has its turn."""
    async with staged(directory) as stage:
        big = await stage.provider("big", ["slow.example", *(f"d{n}.example" for n in range(3))])
        records = dict(stage.names.records)
        stage.names.records = {**records, "slow.example": SILENT}
        config = shaped(
            stage, (0, 0), {"big": {"sessions": 5}}, zones={"default": {"connections": 1}},
            resolver={"nameservers": [f"127.0.0.1:{stage.dns_port}"], "timeout": "60s"},
        )  # fmt: skip
        async with relaying(config) as relay:
            workers = relay._delivery.zones["default"]
            await fill(relay, ["slow.example"], 3)
            await until(lambda: (why := workers.why("slow.example")) and why.name, "a reason")
            await fill(relay, [f"d{n}.example" for n in range(3)], 12, "n")
            await until(lambda: len(big.accepted) == 12, "mail to the others")
            look_up = Limit.PROVIDER_LOOK_UP.value
            await until(lambda: (why := workers.why("slow.example")) and why.name == look_up, look_up)
            stage.names.records = records
            await empty(relay)
        assert len(big.accepted) == 15
    assert {each["attempt"] for each in logged_events(directory, "delivered")} == {1}
