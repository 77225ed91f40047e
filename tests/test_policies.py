"""Policies alone, and in a relay: keys, processes, large bodies."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.relay import ONE_PROCESS, empty, logged_events, relaying, send, staged
from tests.kit.smtp_client import RawClient
from zonemta_py import Envelope, NotAccepted, Relay
from zonemta_py.core.errors import ConfigError
from zonemta_py.policies import (
    Client,
    Forward,
    Lookup,
    run_policies,
    split_by_domain,
    split_by_recipient,
)
from zonemta_py.smtp.commands import Rcpt

CLIENT = Client("127.0.0.1", "client.example", "", "ESMTP")


def envelope(*recipients: str, header: bytes = b"Subject: x\r\n") -> Envelope:
    return Envelope("s@a.example", [Rcpt(r, 2, f"rfc822;{r}") for r in recipients], header, CLIENT)


def test_what_the_client_asked_goes_along() -> None:
    """Through renaming and splitting, for the recipient it was about."""
    forward = Forward([("^u@", "v@")])
    one, two = run_policies([forward, split_by_recipient], envelope("u@x.example", "w@x.example"))
    assert one.recipients == ["v@x.example"]
    assert one.asked("v@x.example").orcpt == "rfc822;u@x.example"
    assert two.asked("w@x.example").notify == 2
    assert two.asked("other@x.example") is None


def test_two_that_become_one() -> None:
    """A forwarded recipient that was there already gets the message once."""
    (one,) = run_policies([Forward([("^u@", "v@")])], envelope("u@x.example", "v@x.example"))
    assert one.recipients == ["v@x.example"]


def test_fields() -> None:
    one = envelope("u@x.example", header=b"Subject: a\r\n b\r\nX: 1\r\nx: 2\r\n")
    assert (one.field("subject"), one.field("X"), one.field("none")) == ("a b", "1", "")
    one.prepend("X-New", "é")
    assert one.header.startswith("X-New: é\r\n".encode())
    for name, value in (("X:", "a"), ("", "a"), ("X", "a\r\nBcc: all@x.example")):
        with pytest.raises(ValueError, match="is not a header field"):
            one.prepend(name, value)


def test_no_recipient_left() -> None:
    assert run_policies([lambda each: []], envelope("u@x.example")) == []


@pytest.mark.parametrize("address", ["nobody", "a b@x.example", "u@x.example\r\nX: y", "@"])
def test_an_invalid_address(address: str) -> None:
    """The result of a policy is checked like the commands of a client."""

    def spoil(one: Envelope) -> None:
        one.recipients.append(address)

    with pytest.raises(ValueError):
        run_policies([spoil], envelope("u@x.example"))


@given(st.lists(st.sampled_from(["a@x.example", "b@x.example", "a@y.example", "c@Y.example"]), unique=True, min_size=1))  # fmt: skip
def test_splitting_keeps_every_recipient(addresses: list[str]) -> None:
    for split in (split_by_domain, split_by_recipient):
        made = split(envelope(*addresses))
        assert sorted(each for one in made for each in one.recipients) == sorted(addresses)


def test_lookups() -> None:
    """An alias, a separate message with VERP and fields; the others stay together."""
    book: dict[str, Mapping[str, Any]] = {
        "a@x.example": {"alias": "b@y.example"},
        "v@x.example": {"verp": "bounces.example"},
        "h@x.example": {"add_headers": {"X-One": "1", "X-Two": "2"}},
    }
    made = Lookup(book.get)(envelope("a@x.example", "v@x.example", "h@x.example", "r@x.example"))
    assert [one.recipients for one in made] == [
        ["b@y.example", "r@x.example"], ["v@x.example"], ["h@x.example"],
    ]  # fmt: skip
    assert made[1].sender == "s+v=x.example@bounces.example"
    assert made[2].field("X-Two") == "2"
    assert made[0].header == envelope().header


def split(one: Envelope) -> Iterable[Envelope]:
    """What the configurations here name."""
    return split_by_recipient(one)


@pytest.mark.parametrize("receivers", [0, 1])
async def test_split_through_a_relay(directory: Path, receivers: int) -> None:
    """Large bodies whole in each, in the relay's process and in a receiver's."""
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        config = stage.config(
            policies=[f"{__name__}.split"], processes={"receivers": receivers, "senders": 0}
        )
        body = b"Subject: x\r\n\r\n" + b"".join(b"line %d\r\n" % n for n in range(20_000))
        async with relaying(config) as relay:
            await send(relay, ["u@d.example", "v@d.example", "w@d.example"], body)
            await empty(relay)
        assert len(sink.messages) == 3
        assert all(message.data.endswith(body.partition(b"\r\n\r\n")[2]) for message in sink.messages)
    assert len(logged_events(directory, "accepted")) == 3


async def test_a_repeat_under_policies(directory: Path) -> None:
    """The same key is the same submission, however many messages it became; a larger one adds the new."""
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        config = stage.config(policies=[f"{__name__}.split"], processes=ONE_PROCESS)
        async with relaying(config) as relay:
            replies = []
            for to in (["u", "v"], ["u", "v"], ["u", "v", "w"]):
                client = await RawClient.connect(relay.addresses[0].port)
                await client.ehlo()
                data = b"X-Submission-Key: k\r\n\r\nbody\r\n.\r\n"
                replies.append(await client.message(data, *(f"{name}@d.example" for name in to)))
                client.close()
            first = replies[0].split()[-1]
            assert f"queued as {first} duplicate" in replies[1]
            assert "1 new recipients" in replies[2]
            await empty_but_keys(relay)
        events = logged_events(directory, "accepted")
        named = [each["submission"] or each["message"] for each in events]
        assert named == [first, first, replies[2].split()[-1]], "each says which id its client was given"
        assert sorted(message.recipients[0][0] for message in sink.messages) == ["u", "v", "w"]


async def empty_but_keys(relay: Relay) -> None:
    from tests.kit.deadlines import until
    from zonemta_py.queue.format import keys

    store = relay.queue.store
    await until(lambda: not list(store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE))))


async def test_functions_that_cannot_be(directory: Path) -> None:
    """A name that leads nowhere; a function of this program for another process."""
    async with staged(directory) as stage:
        with pytest.raises(ConfigError, match=r"policies: no function 'nowhere\.at_all'"):
            Relay(stage.config(policies=["nowhere.at_all"]))
        with pytest.raises(ConfigError, match=r"bounce\.function"):
            Relay(stage.config(zones={"default": {"bounce": {"function": "nowhere.at_all"}}}))
        with pytest.raises(ConfigError, match="receivers: 0"):
            Relay(stage.config(processes={"receivers": 1, "senders": 0}), policies=[split_by_domain])


async def test_refused_by_a_program(directory: Path) -> None:
    """``enqueue`` raises what SMTP would have answered."""

    def never(one: Envelope) -> None:
        raise NotAccepted("550 5.7.1 not today")

    async with (
        staged(directory) as stage,
        Relay(stage.config(processes=ONE_PROCESS), policies=[never]) as relay,
    ):
        with pytest.raises(NotAccepted, match=r"550 5\.7\.1 not today"):
            await relay.enqueue("s@a.example", ["u@d.example"], b"Subject: x\n\nbody\n")
        await empty(relay)


def all_to_one(one: Envelope) -> None:
    """Every recipient becomes the same address; mail without a subject is refused."""
    if not one.field("Subject"):
        raise NotAccepted("550 5.6.0 no subject")
    for address in list(one.recipients):
        one.rename(address, "all@d.example")


def copied(one: Envelope) -> list[Envelope]:
    """Each by itself, and a copy for the archive."""
    return [*split_by_recipient(one), one.copy(["archive@d.example"])]


async def replies_of(relay: Relay, *to: Iterable[str]) -> list[str]:
    found = []
    for names in to:
        client = await RawClient.connect(relay.addresses[0].port)
        await client.ehlo()
        data = b"X-Submission-Key: k\r\nSubject: x\r\n\r\nbody\r\n.\r\n"
        found.append(await client.message(data, *(f"{name}@d.example" for name in names)))
        client.close()
    return found


async def test_a_repeat_that_leads_to_the_same(directory: Path) -> None:
    """New recipients that policies lead where the message already went: a duplicate, and the reply says so."""
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        async with relaying(
            stage.config(policies=[f"{__name__}.all_to_one"], processes=ONE_PROCESS)
        ) as relay:
            replies = await replies_of(relay, "u", "uv", "uv", "u")
            first = replies[0].split()[-1]
            assert all(f"queued as {first} duplicate, accepted " in reply for reply in replies[1:]), (
                replies
            )
            await empty_but_keys(relay)
        assert [message.recipients for message in sink.messages] == [["all@d.example"]]


async def test_what_policies_add_is_sent_once(directory: Path) -> None:
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        async with relaying(
            stage.config(policies=[f"{__name__}.copied"], processes=ONE_PROCESS)
        ) as relay:
            await replies_of(relay, "u", "uv", "uv", "vw", "w")
            await empty_but_keys(relay)
            from zonemta_py.queue.format import keys

            assert not list(relay.queue.store.keys(keys.OPEN, keys.end_of(keys.OPEN)))
        got = sorted(message.recipients[0].partition("@")[0] for message in sink.messages)
        assert got == ["archive", "u", "v", "w"]


async def test_a_loop_gives_its_key_back(directory: Path) -> None:
    """A message that is refused at the last moment does not keep later ones out."""
    async with staged(directory) as stage:
        await stage.receiver("d.example")
        async with relaying(stage.config(processes=ONE_PROCESS)) as relay:
            client = await RawClient.connect(relay.addresses[0].port)
            await client.ehlo()
            loop = b"X-Submission-Key: k\r\n" + b"Received: x\r\n" * 60 + b"\r\nbody\r\n.\r\n"
            assert (await client.message(loop, "u@d.example")).startswith("554 5.4.6")
            client.close()
            (reply,) = await replies_of(relay, "u")
            assert reply.startswith("250")
            await empty_but_keys(relay)


def spoil(one: Envelope) -> None:
    """Says in the recipient what it does to the envelope."""
    match one.recipients[0].partition("@")[0]:
        case "text":
            one.header = "Subject: x\r\n"  # type: ignore[assignment]  # a mistake
        case "open":
            one.header = b"Subject: x"
        case "body":
            one.header = b"Subject: x\r\n\r\nbody\r\n"
        case "sender":
            one.sender = "a@b.example\r\nX: y"


@pytest.mark.parametrize("name", ["text", "open", "body", "sender"])
async def test_an_envelope_that_cannot_be_stored(directory: Path, name: str) -> None:
    """A policy's defect is answered as one, and nothing of the message stays."""
    async with staged(directory) as stage:
        await stage.receiver("d.example")
        async with relaying(
            stage.config(policies=[f"{__name__}.spoil"], processes=ONE_PROCESS)
        ) as relay:
            (reply,) = await replies_of(relay, [name])
            assert reply.startswith("421 4.3.0")
            (reply,) = await replies_of(relay, "u")
            assert reply.startswith("250")
            await empty_but_keys(relay)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("one", "expected package.module.function"),
        ("zonemta_py.policies.Forward", "is a class"),
        ("asyncio.sleep", "is a coroutine function"),
        ("zonemta_py.policies.nothing", "no attribute 'nothing'"),
        ("broken_policies.x", "cannot be loaded: ZeroDivisionError"),
        ("importing_policies.x", r"No module named 'nosuchmodule' \(imported by importing_policies\)"),
    ],
)
async def test_a_name_that_is_no_policy(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    """Said when the relay is made, in one line."""
    (directory / "broken_policies.py").write_text("1 / 0\n")
    (directory / "importing_policies.py").write_text("import nosuchmodule\n")
    monkeypatch.syspath_prepend(str(directory))
    async with staged(directory) as stage:
        with pytest.raises(ConfigError, match=problem):
            Relay(stage.config(policies=[name]))
        with pytest.raises(ConfigError, match="a list of functions"):
            Relay(stage.config(), policies=split_by_domain)  # type: ignore[arg-type]  # a mistake
        async with Relay(stage.config(processes=ONE_PROCESS), backoff=[60, 120]) as relay:
            assert relay.config.zones["default"].retry.delays == (60, 120)
