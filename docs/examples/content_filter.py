"""A content filter in a relay: mail waits in a zone of its own until it has been checked.

Clean mail continues in the zone that delivers it; other mail is refused with a report to its sender.

python docs/examples/content_filter.py DIRECTORY
"""

import asyncio
import sys
from pathlib import Path

from zonemta_py import Relay, parse_config
from zonemta_py.dequeue import AsyncMessage, Disposition, adequeue

CONFIG = """\
hostname: filter.example
listeners: []
queue: {directory: queue, min_free_disk: 1MiB}
events: {directory: events}
zones:
  default:
    transport: dequeue
    bounce: {zone: reports}
  out:
    transport: maildir
    maildir: {path: "mail/{domain}/{user}", create: true}
  reports:
    transport: maildir
    maildir: {path: "mail/{domain}/{user}", create: true}
"""
WORDS = (b"lottery", b"crypto")


async def check(message: AsyncMessage) -> None:
    """Pass the message on or refuse it. Reads the lines once to check them, and again to copy them."""
    recipients = list(message.recipients())
    bad = any(word in line.lower() for line in message.lines() for word in WORDS)
    if bad:
        for recipient in recipients:
            message.dispose(recipient.address, Disposition.FAILED, "550 5.7.1 this looks like spam")
        await message.finish()
        return
    new = message.start(zone="out")
    for recipient in recipients:
        new.to(recipient)
    await new.copy(message, rewind=True)
    await new.finish()
    await message.finish(Disposition.RELAYED)


async def main(directory: Path) -> None:
    """Enqueue three messages, one of them bad, and wait for two deliveries and a report."""
    async with Relay(parse_config(CONFIG, directory / "zonemta.yaml"), log_level="warning") as relay:
        for word in ("hello", "LOTTERY", "goodbye"):
            letter = f"From: ann@here.example\nSubject: {word}\n\n{word}, reader\n".encode()
            await relay.enqueue("ann@here.example", [f"{word.lower()}@there.example"], letter)
        count = await adequeue(relay, "default", check, max_attempts=1, retry_interval_s=0.2)
        while len(list(directory.glob("mail/*/*/new/*"))) < 3:
            await asyncio.sleep(0.01)
        print(f"{count} messages checked")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
