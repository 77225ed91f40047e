"""A program with a relay in it: mail is enqueued by a call, and delivered into maildirs.

python docs/examples/embedded.py DIRECTORY
"""

import asyncio
import sys
from pathlib import Path

from zonemta_py import NotAccepted, Relay, parse_config

CONFIG = """\
hostname: app.example
listeners: []
queue: {directory: queue, min_free_disk: 1MiB}
events: {directory: events}
zones:
  default:
    transport: maildir
    maildir: {path: "mail/{domain}/{user}", create: true}
"""
LETTER = b"From: App <app@app.example>\nSubject: Hello\n\nDear reader,\n\nhello.\n"


async def main(directory: Path) -> None:
    """Enqueue three messages, one of them twice with the same key, and wait until they are delivered."""
    config = parse_config(CONFIG, directory / "zonemta.yaml")
    async with Relay(config, log_level="warning") as relay:
        for reader in ("ann@readers.example", "bob@readers.example"):
            message = await relay.enqueue("app@app.example", [reader], LETTER)
            print(f"{reader}: queued as {message}")
        first = await relay.enqueue(
            "app@app.example", ["carol@readers.example"], LETTER, key="june-carol"
        )
        again = await relay.enqueue(
            "app@app.example", ["carol@readers.example"], LETTER, key="june-carol"
        )
        print(f"carol@readers.example: queued as {first}, repeated: {again}")
        try:
            await relay.enqueue("app@app.example", ["incomplete"], LETTER)
        except NotAccepted as exc:
            print(f"incomplete: {exc}")
        while len(list(directory.glob("mail/readers.example/*/new/*"))) < 3:
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
