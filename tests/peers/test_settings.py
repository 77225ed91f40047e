"""15. Settings by destination, and 12. switches by peer."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import Stage, logged_events
from tests.peers.scripts import DOMAIN, SENDERS, BreaksOnPipelining, peers

NEVER: dict[str, Any] = {"retry": {"delays": ["1h"], "give_up_after": "2h"}}


def item(**values: Any) -> dict[str, Any]:
    return {"domains": [DOMAIN], **values}


@SENDERS
async def test_connections_to_one_domain(directory: Path, senders: int) -> None:
    async with peers(
        directory, "one data stall=300ms 354 go", senders, destinations=[item(connections=2)], **NEVER
    ) as made:
        await asyncio.gather(*(made.send(f"a{n}") for n in range(8)))
        await made.finished()
        assert made.sessions("one") <= 2
        assert len(made.arrived("one")) == 8


@SENDERS
async def test_recipients_of_a_transaction(directory: Path, senders: int) -> None:
    destinations = [item(recipients_per_transaction=2)]
    async with peers(directory, "", senders, destinations=destinations, **NEVER) as made:
        await made.send(*(f"a{n}" for n in range(5)))
        await made.finished()
        assert sorted(len(m.recipients) for m in made.hosts["one"].messages) == [1, 2, 2]


@SENDERS
async def test_tls_that_one_domain_must_have(directory: Path, senders: int) -> None:
    """The peer offers none: its mail waits, and that of others is sent to the same host."""
    async with peers(directory, "", senders, destinations=[item(tls="required")], **NEVER) as made:
        await made.send("a", "b@one.example")
        await made.is_deferred("a")
        await made.sent_to("one", 1)
        assert made.arrived("one") == ["b"]
    [deferred] = logged_events(directory, "deferred")
    assert "offers no TLS, which is required" in str(deferred["reply"])


async def test_a_retry_policy_of_its_own(directory: Path) -> None:
    destinations = [item(retry={"give_up_after": "0s"})]
    async with peers(directory, "one rcpt 450 4.2.1 later", destinations=destinations, **NEVER) as made:
        await made.send("a", "b@one.example", sender="")
        await made.is_deferred("b")
    [expired] = logged_events(directory, "expired")
    assert expired["recipient"] == f"a@{DOMAIN}"


@SENDERS
async def test_a_smarthost_for_some_domains(directory: Path, senders: int) -> None:
    """They wait together, and a transaction has recipients of several of them."""

    def through_two(stage: Stage) -> dict[str, Any]:
        found = {"domains": [DOMAIN, "*.other.example"], "smarthost": f"127.0.1.2:{stage.port}"}
        return {"zone": {"destinations": [found]}}

    async with peers(directory, "", senders, settings=through_two, **NEVER) as made:
        await made.send("a", "b@x.other.example", "c@one.example")
        await made.finished()
        assert (made.arrived("one"), made.arrived("two")) == (["c"], ["a", "b"])
        assert len(made.hosts["two"].messages) == 1


async def test_a_session_is_not_shared_between_policies(directory: Path) -> None:
    """One domain's mail goes in plain text; the other's, at the same host, would use another policy."""
    async with peers(directory, "", destinations=[item(tls="off")], **NEVER) as made:
        await made.send("a")
        await made.finished()
        await made.send("b@one.example")
        await made.finished()
        assert made.sessions("one") == 2


# ---- switches by peer


@SENDERS
@pytest.mark.parametrize("name", ["mx.one.example", "*.one.example", "127.0.1.1"])
async def test_pipelining_that_is_switched_off(directory: Path, name: str, senders: int) -> None:
    """The host closes the connection when commands come together; one by one they are accepted."""

    def switches(stage: Stage) -> dict[str, Any]:
        return {"peers": {name: {"pipelining": False}}}

    async with peers(
        directory, "", senders, settings=switches, kind=BreaksOnPipelining, **NEVER
    ) as made:
        await made.send("a", "b")
        await made.finished()
        assert made.arrived("one") == ["a", "b"]
        assert made.sessions("one") == 1


@SENDERS
async def test_broken_pipelining_is_learned(directory: Path, senders: int) -> None:
    """The connection is lost between the replies: the same host gets the commands one by one, for an hour."""
    async with peers(
        directory, "", senders, kind=BreaksOnPipelining, messages_per_connection=1, **NEVER
    ) as made:

        def has(name: str) -> bool:
            return name in made.arrived("one")

        for name in "abc":
            await made.send(name)
            await until(partial(has, name), "the message")
        assert made.sessions("one") == 4, "one lost session, then one for each message"
        assert made.sessions("two") == 0
    assert logged_events(directory, "deferred") == []


async def test_starttls_that_is_switched_off(directory: Path) -> None:
    """The host offers it and cannot do it: no session is lost over that."""

    def switches(stage: Stage) -> dict[str, Any]:
        return {"peers": {"mx.one.example": {"starttls": False}}}

    offers = {"one": ("PIPELINING", "STARTTLS")}
    async with peers(directory, "", offers=offers, settings=switches, **NEVER) as made:
        await made.send("a")
        await made.finished()
        assert (made.arrived("one"), made.sessions("one")) == (["a"], 1)


# ---- 13. hosts of equal preference


@SENDERS
async def test_mail_that_comes_in_ones_is_spread(directory: Path, senders: int) -> None:
    async with peers(
        directory,
        "",
        senders,
        hosts=("one", "two", "three"),
        equal=True,
        timeouts={"idle": "1h"},
        **NEVER,
    ) as made:
        for n in range(30):
            await made.send(f"a{n}")
            await made.finished()
        shares = [len(made.arrived(host)) for host in ("one", "two", "three")]
        assert min(shares) >= 1, shares
        assert [made.sessions(host) for host in ("one", "two", "three")] == [1, 1, 1]


async def test_a_host_that_opens_no_session_is_not_asked_for_each_message(directory: Path) -> None:
    async with peers(directory, "one connect 421 busy", equal=True, **NEVER) as made:
        for n in range(10):
            await made.send(f"a{n}")
            await made.finished()
        assert len(made.arrived("two")) == 10
        assert made.sessions("one") <= 2


# ---- 10. 8-bit mail


@SENDERS
async def test_the_host_that_takes_8_bit_mail_is_preferred(directory: Path, senders: int) -> None:
    offers = {"one": ("PIPELINING",)}
    async with peers(directory, "", senders, offers=offers, **NEVER) as made:
        await made.send("a", message="Subject: x\r\n\r\ngrün\r\n".encode())
        await made.finished()
        assert made.arrived("one") == []
        assert made.hosts["two"].messages[0].data.endswith("grün\r\n".encode())


@SENDERS
async def test_8_bit_mail_for_hosts_that_take_none(directory: Path, senders: int) -> None:
    offers = {"one": ("PIPELINING",), "two": ("PIPELINING",)}
    async with peers(directory, "", senders, offers=offers, **NEVER) as made:
        await made.send("a", message="Subject: x\r\n\r\ngrün\r\n".encode())
        await made.send("b", message=b"Subject: x\r\n\r\nplain\r\n")
        await made.finished()
        assert made.arrived("one") == ["a", "b"]
        bodies = [m.data.rpartition(b"\r\n\r\n")[2] for m in made.hosts["one"].messages]
        assert sorted(bodies) == [b"gr=C3=BCn\r\n", b"plain\r\n"]
        assert made.sessions("two") <= 1


@SENDERS
async def test_a_pool_of_a_tenant_that_cannot_reach_the_host(directory: Path, senders: int) -> None:
    """Its mail waits; the destination is not suspended for the others."""

    def own_pool(stage: Stage) -> dict[str, Any]:
        tenants = {
            "acme": {"users": ["ann"], "domains": ["acme.example"], "pool": "six"},
            "globex": {"users": ["bob"], "domains": ["globex.example"]},
        }
        return {"tenants": tenants, "pools": {"default": [{}], "six": [{"address": "::1"}]}}

    async with peers(directory, "", senders, settings=own_pool, **NEVER) as made:
        for number in range(3):
            for user, tenant in (("ann", "acme"), ("bob", "globex")):
                data = f"From: n@{tenant}.example\r\n\r\nhello\r\n".encode()
                await made.relay.enqueue(
                    f"s@{tenant}.example", [f"{user}{number}@{DOMAIN}"], data, user=user
                )
        await made.sent_to("one", 3)
        assert made.arrived("one") == ["bob0", "bob1", "bob2"]
        await made.is_deferred("ann0", "ann1", "ann2")
        assert made.suspended() == ""
    replies = {str(e["reply"]) for e in logged_events(directory, "deferred")}
    assert replies == {"no address of pool 'six' can reach 127.0.1.1"}
