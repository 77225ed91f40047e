"""19. An address is carried as it came: long local parts, dots anywhere, underscores; what we make has RFC 5321's form."""

import csv
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.edges.test_19_http_and_library import fields, url_of
from tests.kit import queue as queue_kit
from tests.kit.deadlines import until
from tests.kit.queue import accept, everything, opened, problems
from tests.kit.relay import empty, ledger, received, relaying, send, sound, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError
from zonemta_py.pipeline.plan.suppression import address_or_reason, entry_key
from zonemta_py.queue.format.keys import WAITING, parse_recipient, waiting_key
from zonemta_py.sink.script import Rule, Step
from zonemta_py.smtp.address import expand_verp, normalise
from zonemta_py.storage.filesystem_layout import relay_key, relay_path
from zonemta_py.submit.recipients import read_rows
from zonemta_py.transports.tracing import _ADDRESS

VERP = f"b+{'0123456789abcdef' * 4}0123456789=example.org@lists.example"
SRS = (
    "SRS0=Hs1k=V7=a-rather-long-domain-name.example=with.a.long.local.part.of.a.person@forwarder.example"
)
ADDRESSES = [
    "user..name@docomo.example", "user.@docomo.example", ".user@docomo.example", VERP, SRS,
    "user@mail_host.example", '"a".b@lists.example', "x" * 250 + "@lists.example", "Mixed..Case@docomo.example",
]  # fmt: skip
DOMAINS = ["docomo.example", "lists.example", "forwarder.example", "mail_host.example"]
ONE, MANY = {"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}


@pytest.mark.parametrize("processes", [ONE, MANY], ids=["0/0", "2/2"])
async def test_carried_to_the_receiver(directory: Path, processes: dict[str, int]) -> None:
    """By SMTP, HTTP and from a program, through two zones; the report of a failure finds such a sender."""
    listener = {"address": "127.0.0.1:0", "envelope_syntax": "relaxed"}
    async with staged(directory) as stage:
        for domain in DOMAINS:
            rules = [Rule(Step.RCPT, recipient="Mixed*", reply="550 5.1.1 no such user")]
            await stage.receiver(domain, *(rules if domain == "docomo.example" else []))
        config = stage.config(
            zones={"second": {}}, routing=[{"recipient_domain": "docomo.example", "zone": "second"}],
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True}, processes=processes, listeners=[listener],
        )  # fmt: skip
        async with relaying(config) as relay:
            await send(relay, ADDRESSES, sender="bounce..1@mail_host.example")
            await relay.enqueue(SRS, ADDRESSES[:-1], b"Subject: x\r\n\r\nfrom a program\r\n")
            async with (
                aiohttp.ClientSession() as client,
                client.post(url_of(relay), data=b"Subject: x\r\n\r\nx\r\n", headers=fields(*ADDRESSES[:-1])) as answer,
            ):  # fmt: skip
                assert answer.status == 204
            async with await RawClient.connect(relay.addresses[0][1]) as raw:
                await raw.ehlo()
                for line in ("MAIL FROM:a@b.example SIZE=9", "RCPT TO: Bare.@docomo.example"):
                    assert (await raw.command(line)).startswith("250")
                await raw.command("DATA")
                assert (await raw.command("Subject: x\r\n\r\nx\r\n.")).startswith("250")
            [report] = [
                each for each in await received(stage.sinks["mail_host.example"], 4) if each.sender == ""
            ]
            await until(lambda: sum(s.tally.messages for s in stage.sinks.values()) >= 14, "all")
            await empty(relay)
            assert sound(relay)
    got = sorted(r for s in stage.sinks.values() for m in s.messages if m.sender for r in m.recipients)
    assert got == sorted([*ADDRESSES[:-1] * 3, "Bare.@docomo.example"])
    assert report.recipients == ["bounce..1@mail_host.example"]
    assert b'To: <"bounce..1"@mail_host.example>\r\n' in report.data
    assert b"Final-Recipient: rfc822; Mixed..Case@docomo.example\r\n" in report.data
    assert {m.sender for s in stage.sinks.values() for m in s.messages} >= {SRS, "a@b.example"}
    history = ledger(directory)
    assert (history.total("delivered"), history.total("bounced"), list(history.open_recipients())) == (
        26,
        1,
        [],
    )


async def test_a_listener_says_whether_brackets_are_needed(directory: Path) -> None:
    async with (
        staged(directory) as stage,
        relaying(stage.config(processes=ONE)) as relay,
        await RawClient.connect(relay.addresses[0][1]) as raw,
    ):
        await raw.ehlo()
        assert (await raw.command("MAIL FROM:a@b.example")).startswith("501 5.5.4")
        assert (await raw.command("MAIL FROM:<a@b.example>")).startswith("250")
        assert (await raw.command("RCPT TO:a@b.example")).startswith("501 5.5.4")


def test_lists_keep_these_rows(directory: Path) -> None:
    """What ``submit`` and ``pipeline plan`` read, and what ``pipeline suppress`` writes."""
    path = directory / "list.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["email"], *([each] for each in ADDRESSES)])
    assert [(row.address, row.problem) for row in read_rows(str(path))] == [(a, "") for a in ADDRESSES]
    for address in ADDRESSES:
        assert address_or_reason(address) == (address, None)
        assert entry_key(address) == address.lower()


@pytest.mark.parametrize("address", [*ADDRESSES, "ü" * 150 + "@b.example", "a/../b@c.example"])
def test_keys_on_disk(address: str) -> None:
    """A recipient is found again in its key, in LevelDB and as the name of a file."""
    key = waiting_key("default", "0" * 24, normalise(address))
    assert parse_recipient(key)[2] == address
    path = relay_path(key)
    assert all(len(name.encode()) <= 255 for name in path.split("/"))
    assert relay_key(path.split("/")[2:]) == key


@pytest.mark.parametrize("kind", ["leveldb", "filesystem"])
async def test_a_queue_of_them_opens_again(
    directory: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_kit, "kind", kind)
    addresses = [*ADDRESSES, "ü" * 150 + "@b.example"]
    async with opened(directory / "queue") as queue:
        await accept(queue, *addresses)
    async with opened(directory / "queue") as queue:
        found = [parse_recipient(key)[2] for key in everything(queue.store) if key.startswith(WAITING)]
        assert sorted(found) == sorted(addresses)
        assert problems(queue.store) == []


@pytest.mark.parametrize(
    "command",
    ["RCPT TO:<u.@docomo.example>", "RCPT TO:u.@docomo.example", "RCPT TO: <u..x@Docomo.example> NOTIFY=NEVER",
     "MAIL FROM:u@docomo.example SIZE=5", 'RCPT TO:<"a b"@docomo.example>'],
)  # fmt: skip
def test_a_trace_by_domain_sees_them(command: str) -> None:
    assert [domain.lower() for domain in _ADDRESS.findall(command)] == ["docomo.example"]


@pytest.mark.parametrize("address", ["a@b_c.example", "a..b@c.example", "x" * 65 + "@c.example"])
def test_what_we_make_is_strict(directory: Path, address: str) -> None:
    zones = {"default": {"bounce": {"double_bounce_to": address}}}
    with pytest.raises(ConfigError, match="double_bounce_to"):
        parse_config(yaml.safe_dump({"zones": zones}), directory / "z.yaml")


def test_verp_makes_no_long_local_part() -> None:
    assert expand_verp("list@b.example", VERP) == "list@b.example"
    assert expand_verp("list@b.example", "user..name@c.example") == "list@b.example"
    assert expand_verp("list@b.example", "user@c.example") == "list+user=c.example@b.example"
