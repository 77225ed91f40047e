"""Commands and transactions, beyond the dialogue files."""

import asyncio
import smtplib
from pathlib import Path

import pytest

from tests.intake.dialogue import BEGIN, connected
from tests.kit.listener import listening
from zonemta_py.core.errors import QueueUnavailable

pytestmark = pytest.mark.usefixtures("queue_client")

MESSAGE = b"Subject: hi\r\n\r\nbody\r\n"


async def test_a_few_bad_recipients_do_not_end_a_long_session(tmp_path: Path) -> None:
    """Errors are counted between messages."""
    async with listening(tmp_path, "    max_errors: 3") as relay:

        def dialogue() -> None:
            with smtplib.SMTP("127.0.0.1", relay.address.port) as client:
                for _ in range(10):
                    client.ehlo_or_helo_if_needed()
                    client.mail("a@b.example")
                    assert client.rcpt("bad")[0] // 100 == 5
                    client.rcpt("c@d.example")
                    assert client.data(MESSAGE)[0] == 250

        await asyncio.to_thread(dialogue)


async def test_stamps_and_routing_header(tmp_path: Path) -> None:
    """Received is first, missing fields are added, the routing field is removed, the others are unchanged."""
    async with listening(
        tmp_path, rest="zones: {default: {}, bulk: {}}\nrouting: [{header: X-Sending-Zone}]"
    ) as relay:

        def dialogue() -> None:
            with smtplib.SMTP("127.0.0.1", relay.address.port, "me.example") as client:
                client.sendmail(
                    "a@b.example",
                    ["c@d.example"],
                    b"X-Sending-Zone: bulk\r\nX-Odd:  kept \r\n\r\nbody\r\n",
                )
                client.sendmail(
                    "a@b.example",
                    ["e@f.example", "g@f.example"],
                    b"Date: then\r\nMessage-ID: <mine@b>\r\n\r\nbody\r\n",
                )

        await asyncio.to_thread(dialogue)
        first = relay.queue.lease("bulk", "d.example", 1)
        assert first is not None
        header = first.active.meta.header.decode()
        assert header.startswith(
            f"Received: from me.example ([127.0.0.1])\r\n\tby relay.example with ESMTP id {first.active.id}\r\n\tfor <c@d.example>;\r\n\t"
        )
        assert f"Message-ID: <{first.active.id}@relay.example>\r\n" in header
        assert "Date: " in header
        assert header.endswith("X-Odd:  kept \r\n")
        assert "X-Sending-Zone" not in header
        second = relay.queue.lease("default", "f.example", 2)
        assert second is not None
        header = second.active.meta.header.decode()
        assert "for <" not in header
        assert header.endswith("Date: then\r\nMessage-ID: <mine@b>\r\n")
        assert header.count("Date: ") == header.count("Message-ID: ") == 1


async def test_a_full_disk_and_an_unwritable_queue(tmp_path: Path) -> None:
    """Both are temporary: 452 and 451."""
    async with listening(tmp_path) as relay:
        relay.listener.context.disk_space._min_bytes = 1 << 62
        relay.listener.context.disk_space._checked_s = -10.0
        reader, writer = await connected(relay, BEGIN[0])
        assert (await reader.readline()).startswith(b"452 4.3.1")
        relay.listener.context.disk_space._min_bytes = 1
        relay.listener.context.disk_space._checked_s = -10.0
        writer.write(b"".join(BEGIN))
        await reader.readuntil(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        relay.queue.commits.failure = QueueUnavailable("disk")
        writer.write(b"Subject: x\r\n\r\ny\r\n.\r\n")
        assert (await reader.readline()).startswith(b"451 4.3.0")
        writer.write(BEGIN[0])
        assert (await reader.readline()).startswith(b"451 4.3.0")
        relay.queue.commits.failure = None
        writer.close()
