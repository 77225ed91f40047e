"""23. Smarthosts by LOGIN and by names of /etc/hosts; what is final and what is not: 521, an address as MX, SMTPUTF8."""

import asyncio
import smtplib
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import everything
from tests.kit.relay import logged_events, received, relaying, send, staged
from tests.kit.tls_sink import TlsSink
from zonemta_py.delivery import endpoints
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink

PROCESSES = [{"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}]
in_processes = pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
SLOW = {"delays": ["1h"]}


@in_processes
async def test_smarthosts(directory: Path, processes: dict[str, int]) -> None:
    """AUTH LOGIN without an initial response; a name that only /etc/hosts knows. DNS is asked for other names."""
    (directory / "password").write_text("secret\n")
    local = Sink(keep=True)
    port = await local.start("127.0.0.1")
    async with staged(directory) as stage:
        login = await stage.receiver("login.example", kind=TlsSink, login=True)
        assert isinstance(login, TlsSink)
        auth = {"username": "me", "password_file": "password"}
        zones = {
            "login": {
                "smarthost": f"mx.login.example:{stage.port}",
                "smarthost_auth": auth,
                "tls": "off",
            },
            "local": {"smarthost": f"LocalHost:{port}"},
        }
        routing = [{"sender_domain": f"{name}.example", "zone": name} for name in zones]
        config = stage.config(zones=zones, routing=routing, processes=processes)
        async with relaying(config) as relay:
            await send(relay, ["x@a.example"], sender="s@login.example")
            await send(relay, ["x@a.example"], sender="s@local.example")
            await received(login, 1)
            await received(local, 1)
        assert login.passwords == [("secret", False)]
    await local.close()


def test_the_hosts_file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "hosts"
    monkeypatch.setattr(endpoints, "HOSTS_FILE", path)
    assert endpoints.hosts_file() == {}
    path.write_bytes(
        b"# 192.0.2.9 no\n192.0.2.1 Mail.example. mail # the first\n2001:DB8::1\tmail\n192.0.2.1 mail\n"
        b"fe80::1%lo0 link\nnonsense\n\xff\xfe \n"
    )
    found = {
        "mail.example": ("192.0.2.1",),
        "mail": ("192.0.2.1", "2001:db8::1"),
        "link": ("fe80::1%lo0",),
    }
    assert endpoints.hosts_file() == found


@in_processes
async def test_final_answers(directory: Path, processes: dict[str, int]) -> None:
    """A domain whose hosts all greet with 521, or whose MX records have addresses only, gets no mail, ever."""
    never = Rule(Step.CONNECT, reply="521 mx.example does not accept mail")
    async with staged(directory) as stage:
        good = await stage.receiver("good.example")
        await stage.receiver("never.example", never)
        await stage.receiver("busy.example", Rule(Step.CONNECT, reply="421 4.3.2 busy"))
        listed = "521 5.7.1 Blocked by DNSBL"
        await stage.receiver("listed.example", Rule(Step.CONNECT, reply=listed))
        hosts = {
            "half.example": ["10 mx.never.example.", "20 mx.good.example."],
            "later.example": ["10 mx.busy.example.", "20 mx.never.example."],
            "after.example": ["10 mx.never.example.", "20 mx.busy.example."],
            "literal.example": ["10 192.0.2.1.", "20 192.0.2.2."],
            "partly.example": ["10 192.0.2.1.", "20 mx.good.example."],
        }
        stage.names.records = stage.names.records | {name: {"MX": mx} for name, mx in hosts.items()}
        domains = [*hosts, "never.example", "listed.example"]
        zone = {"port": stage.port, "retry": SLOW}
        async with relaying(stage.config(zones={"default": zone}, processes=processes)) as relay:
            for domain in domains:
                await send(relay, [f"{domain}@{domain}", f"more@{domain}"], sender="")
            await received(good, 2)
            deferred = [b"later.example@", b"after.example@", b"listed.example@"]
            await until(
                lambda: (
                    sum(
                        key.startswith(b"deferred/") and any(name in key for name in deferred)
                        for key in everything(relay.queue.store)
                    )
                    == len(deferred)
                    and not any(b"delivery-zone" in key for key in everything(relay.queue.store))
                ),
                "three deferred messages",
            )
    bounced = {
        (each["domain"], each["code"], each["status"]) for each in logged_events(directory, "bounced")
    }
    assert {domain for domain, *_ in bounced} == {"never.example", "literal.example"}
    assert ("never.example", 521, "") in bounced


@in_processes
async def test_the_flag_alone(directory: Path, processes: dict[str, int]) -> None:
    """SMTPUTF8 that nothing needs, to a peer that does not offer it; an address, or a header, that needs it."""
    plain = ("PIPELINING", "8BITMIME")
    letters = [
        ("x@a.example", "Subject: hi\r\n\r\nbody\r\n"),
        ("y@a.example", "Subject: hi\r\n\r\nb\u00f6dy\r\n"),
        ("z@a.example", "Subject: h\u00ef\r\n\r\nbody\r\n"),
        ("\u00e4@a.example", "Subject: hi\r\n\r\nbody\r\n"),
    ]
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", extensions=plain)
        seven = await stage.receiver("b.example", extensions=("PIPELINING",))
        async with relaying(stage.config(processes=processes)) as relay:
            host, port = relay.addresses[0]

            def submit() -> None:
                with smtplib.SMTP(host, port, "client.example") as client:
                    for address, text in [*letters, ("x@b.example", letters[1][1])]:
                        options = ["SMTPUTF8", "BODY=8BITMIME"]
                        client.sendmail("", [address], text.encode(), mail_options=options)

            await asyncio.to_thread(submit)
            await until(lambda: not everything(relay.queue.store), "an empty queue")
        assert sorted(each.recipients[0] for each in sink.messages) == ["x@a.example", "y@a.example"]
        assert len(seven.messages) == 1
    bounced = {each["recipient"]: each["status"] for each in logged_events(directory, "bounced")}
    assert bounced == {"z@a.example": "5.6.7", "\u00e4@a.example": "5.6.7"}
