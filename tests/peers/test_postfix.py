"""A Postfix with its usual limits as the receiver: a list of 5,000 recipients arrives."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import everything
from tests.kit.relay import logged_events, relaying, send, staged
from zonemta_py.bench import peers

RECIPIENTS = 5_000
LIMITS = """\
default_transport = discard
relay_transport = discard
smtpd_client_connection_count_limit = 5
smtpd_recipient_limit = 50
smtpd_recipient_overshoot_limit = 10
smtpd_client_event_limit_exceptions =
"""


class PostfixReceiver(peers.PostfixRelay):
    """An instance that discards what it accepts."""

    main_cf = (
        peers.MAIN_CF.replace("relayhost = [127.0.0.1]:{sink_port}\n", "")
        .replace("smtpd_client_connection_count_limit = 0\n", "")
        .replace("relay.bench", "mx.bench")
        + LIMITS
    )

    def log(self) -> str:
        """What it has logged."""
        return (self.directory / "log/mail.log").read_text()


@pytest.mark.skipif(bool(peers.PostfixRelay.missing()), reason=peers.PostfixRelay.missing() or "-")
async def test_a_list_for_postfix(directory: Path) -> None:
    """Its limits of sessions and recipients are learned: none is deferred, and few connections are refused."""
    with tempfile.TemporaryDirectory() as home:  # pytest's are closed to those who give up root
        receiver = await asyncio.to_thread(PostfixReceiver, Path(home), 9)
        try:
            async with staged(directory) as stage:
                smarthost = f"127.0.0.1:{receiver.port}"
                zone = {"smarthost": smarthost, "recipients_per_transaction": 100, "connections": 20}
                async with relaying(stage.config(zones={"default": zone})) as relay:
                    for first in range(0, RECIPIENTS, 1000):
                        await send(relay, [f"{n}@list.example" for n in range(first, first + 1000)])
                    store = relay.queue.store
                    await until(lambda: everything(store) == [], "the delivery of the list", 120)
        finally:
            await asyncio.to_thread(receiver.stop)
        log = receiver.log()
    assert len(logged_events(directory, "delivered")) == RECIPIENTS
    assert logged_events(directory, "deferred") == logged_events(directory, "bounced") == []
    assert log.count("Connection concurrency limit exceeded") <= 10
    assert log.count(" connect from") <= 60
