"""SMTP dialogues as text files, played against a running listener.

C: what the client sends (CRLF is added; C! sends without it, with Python escapes)
S: what the relay answers: a prefix of the line
S~ the connection is closed
Q: how many messages are in the queue after that
A first line ``# listener: {yaml}`` gives the listener more keys.
"""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.listener import ListenerUnderTest, listening
from zonemta_py.queue.format import keys

pytestmark = pytest.mark.usefixtures("queue_client")

DIALOGUES = Path(__file__).parents[1] / "dialogues"


@pytest.mark.parametrize("path", sorted(DIALOGUES.glob("*.txt")), ids=lambda p: p.stem)
async def test_dialogue(path: Path, tmp_path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    extra = "\n".join(
        f"    {line.split(':', 1)[1].strip()}" for line in lines if line.startswith("# listener:")
    )
    async with listening(tmp_path, extra) as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        for number, line in enumerate(lines, 1):
            where = f"{path.name}:{number}: {line}"
            kind, text = line[:2], line[3:]
            if kind == "C:":
                writer.write(text.encode() + b"\r\n")
            elif kind == "C!":
                writer.write(text.encode("latin-1").decode("unicode_escape").encode("latin-1"))
            elif kind == "S:":
                got = await asyncio.wait_for(reader.readline(), scaled(10))
                assert got.decode("utf-8", "replace").startswith(text), f"{where}\n got {got!r}"
            elif kind == "S~":
                assert await asyncio.wait_for(reader.read(), scaled(10)) == b"", where
            elif kind == "Q:":
                await until(partial(_holds, relay, int(text)), where)
            else:
                assert not line or line.startswith("#"), where
        writer.close()
        assert relay.listener.context.queue.failure is None


def _holds(relay: ListenerUnderTest, messages: int) -> bool:
    found = relay.queue.store.keys(keys.WAITING, keys.end_of(keys.WAITING))
    return len({keys.parse_recipient(key)[1] for key in found}) == messages
