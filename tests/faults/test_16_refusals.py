"""16. The refusals of known clients are counted as those of strangers are: no client fills the event log."""

import asyncio
import smtplib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.relay import logged_events, relaying, staged
from zonemta_py.events.schema import Rejected
from zonemta_py.intake import context
from zonemta_py.intake.context import Rejections
from zonemta_py.storage.open import DiskSpace

COUNT = 100
TENANTS = {
    "acme": {"networks": ["127.0.0.2/32"], "domains": ["acme.example"]},
    "globex": {"networks": ["127.0.0.3/32"], "domains": ["globex.example"]},
}


@pytest.mark.parametrize("processes", [0, 2])
async def test_known_clients_do_not_fill_the_event_log(directory: Path, processes: int) -> None:
    """Two tenants and a trusted client, refused at MAIL and after DATA: every refusal is counted, two records of a kind."""
    listener: dict[str, Any] = {
        "address": "127.0.0.1:0", "max_message_size": 100, "max_errors": 2000, "senders": "any",
        "trusted_networks": ["127.0.0.4/32"],
    }  # fmt: skip
    counts = {"receivers": processes, "senders": processes}
    async with staged(directory) as stage:
        config = stage.config(listeners=[listener], processes=counts, tenants=TENANTS)
        async with relaying(config) as relay:

            def refused(ip: str, sender: str, large: int) -> None:
                host, port = relay.addresses[0]
                with smtplib.SMTP(host, port, "client.example", source_address=(ip, 0)) as client:
                    client.ehlo()
                    for _ in range(COUNT):
                        assert client.docmd(f"MAIL FROM:<{sender}>")[0] == (553 if not large else 250)
                        if large:
                            client.docmd("RCPT TO:<u@x.example>")
                            assert client.data(b"x" * large)[0] == 552

            await asyncio.gather(
                asyncio.to_thread(refused, "127.0.0.2", "ceo@globex.example", 0),
                asyncio.to_thread(refused, "127.0.0.3", "ceo@acme.example", 0),
                asyncio.to_thread(refused, "127.0.0.4", "ceo@any.example", 200),
            )
    records = logged_events(directory, "rejected")
    found: Counter[tuple[str, str, str]] = Counter()
    for record in records:
        found[record["client_ip"], record["tenant"], record["command"]] += record["count"]
    assert found == {
        ("127.0.0.2", "acme", "MAIL"): COUNT, ("127.0.0.3", "globex", "MAIL"): COUNT, ("127.0.0.4", "", "DATA"): COUNT,
    }  # fmt: skip
    assert len(records) <= 6


def refusal(**changes: Any) -> Rejected:
    fields: dict[str, Any] = {
        "time_ms": 1, "listener": "l", "client_ip": "192.0.2.1", "helo": "h", "user": "", "tenant": "", "command": "MAIL",
        "sender": "s@x.example", "recipient": "", "code": 550, "reply": "5.7.1 no",
    }  # fmt: skip
    return Rejected(**(fields | changes))


async def test_whose_and_which_refusals_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users of one address are not one client, and strangers cannot take the kinds of those who are known."""
    monkeypatch.setattr(context, "KINDS_MAX", 5)
    written: list[Any] = []
    counted = Rejections(written.append, DiskSpace(tmp_path, 1))
    for number in range(20):
        counted.add(refusal(client_ip=f"198.51.100.{number}", code=530), user="", is_known=False)
    for _ in range(10):
        for user in ("ann", "bob"):
            counted.add(refusal(user=user, tenant=f"of-{user}"), user=user, is_known=True)
        counted.add(refusal(command="DATA", code=552, user="ann"), user="ann", is_known=True)
    counted.close()
    known = [event for event in written if event.code != 530]
    sums: Counter[tuple[str, int]] = Counter()
    for event in known:
        sums[event.user, event.code] += event.count
    assert sums == {("ann", 550): 10, ("bob", 550): 10, ("ann", 552): 10}
    assert len(known) == 6
    strangers = [event for event in written if event.code == 530]
    assert sum(event.count for event in strangers) == 20
    assert strangers[-1].client_ip == ""


async def test_nothing_is_written_while_the_disk_is_full(tmp_path: Path) -> None:
    """Refusals of known clients do not make a full disk fuller; none is forgotten."""
    written: list[Any] = []
    space = DiskSpace(tmp_path, 1)
    space.lack, space._checked_s = "full", float("inf")
    counted = Rejections(written.append, space)
    for _ in range(5):
        counted.add(refusal(user="ann"), user="ann", is_known=True)
    counted.flush()
    assert written == []
    counted.add_password(refusal(command="AUTH", code=535))
    assert len(written) == 1, "their number is limited"
    space.lack = ""
    counted.close()
    assert [event.count for event in written[1:]] == [5]
