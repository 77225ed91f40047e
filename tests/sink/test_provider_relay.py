"""A relay sends to providers with limits: one that knows them keeps them, and one that does not is found out."""

from pathlib import Path

from tests.kit.deadlines import time_limit, until
from tests.kit.relay import empty, relaying, send, sound, staged
from zonemta_py.sink.sink_limits import LimitName

DOMAINS = ["d1.example", "d2.example", "d3.example"]
NO_CONTROLLER = {"controller": {"enabled": False}}
HOSTS = ["mx1.bigmail.example", "mx2.bigmail.example"]


async def test_a_relay_with_the_limits_of_the_provider(directory: Path) -> None:
    """Domains that share hosts share their sessions: nothing is refused."""
    async with staged(directory) as stage:
        bigmail = await stage.provider(
            "bigmail", DOMAINS, HOSTS, sessions=2, messages_per_session=4, slack=time_limit(0.05)
        )
        zone = {"connections": 2, "messages_per_connection": 4}
        async with relaying(stage.config(zones={"default": zone})) as relay:
            for number in range(30):
                await send(relay, [f"{number}@{DOMAINS[number % 3]}"])
            await empty(relay)
            assert sound(relay)
        assert bigmail.violations == []
        assert 1 <= bigmail.most_sessions <= 2
        assert len(bigmail.accepted) == 30 == len(stage.sinks["bigmail"].messages)
        used = {message.local for message in stage.sinks["bigmail"].messages}
        assert used <= set(bigmail.limits.local)
        assert len(bigmail.limits.local) == 2
        assert {m.recipients[0].partition("@")[2] for m in stage.sinks["bigmail"].messages} == set(
            DOMAINS
        )


async def test_a_relay_without_limits_is_found_out(directory: Path) -> None:
    """Its controller, which would go back by itself, is off: each excess is counted, and everything arrives."""
    async with staged(directory) as stage:
        bigmail = await stage.provider("bigmail", DOMAINS, rate="5/s")
        free = await stage.provider("free", ["free.example"])
        async with relaying(stage.config(shaping=NO_CONTROLLER)) as relay:
            await send(relay, [f"{n}@free.example" for n in range(10)])
            for number in range(12):
                await send(relay, [f"{number}@{DOMAINS[number % 3]}"])
            await empty(relay)
        [account] = bigmail.clients.values()
        assert account.violations[LimitName.RATE] == len(bigmail.violations) > 0
        assert account.messages == 12
        assert account.accepted.most_within(1.0) == 5
        assert free.violations == []
        assert sum(each.recipients for each in free.clients.values()) == 10


async def test_a_relay_with_too_many_sessions_is_found_out(directory: Path) -> None:
    """The provider never has more than two, and counts each attempt at a third."""
    async with staged(directory) as stage:
        bigmail = await stage.provider("bigmail", DOMAINS, HOSTS, sessions=2)
        zone = {"connections": 5, "recipients_per_transaction": 1}
        async with relaying(stage.config(zones={"default": zone})) as relay:
            await send(relay, [f"{n}@{DOMAINS[n % 2]}" for n in range(60)])
            await empty(relay)
        assert {str(each.limit) for each in bigmail.violations} == {"sessions"}
        assert bigmail.most_sessions == 2
        assert len(bigmail.accepted) == 60


async def test_a_block_that_ends(directory: Path) -> None:
    """What a provider blocks waits until the test ends the block."""
    async with staged(directory) as stage:
        bigmail = await stage.provider("bigmail", DOMAINS, HOSTS)
        bigmail.block("127.0.0.1", "451 4.7.1 blocked")
        async with relaying(stage.config()) as relay:
            await send(relay, [f"a@{domain}" for domain in DOMAINS])
            await until(lambda: bigmail.account("127.0.0.1").refused, "a refusal")
            assert bigmail.account("127.0.0.1").messages == 0
            bigmail.unblock("127.0.0.1")
            await empty(relay)
        assert bigmail.account("127.0.0.1").recipients == 3
        assert bigmail.violations == []
