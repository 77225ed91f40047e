"""A program with a relay in it: it takes mail by a call, and delivers it into maildirs.

python docs/examples/embedded.py FOLDER
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


async def main(folder: Path) -> None:
    """Enqueue three messages, one of them twice under one key; leave when the relay has stopped."""
    config = parse_config(CONFIG, folder / "zonemta.yaml")
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
        print(f"carol@readers.example: queued as {first}, asked again: {again}")
        try:
            await relay.enqueue("app@app.example", ["nobody"], LETTER)
        except NotAccepted as exc:
            print(f"nobody: {exc}")
        while len(list(folder.glob("mail/readers.example/*/new/*"))) < 3:
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
