"""The channel programs in docs/examples, each on a queue with mail in it."""

import subprocess
import sys
from pathlib import Path

import pytest

import zonemta_py
from tests.kit.deadlines import scaled
from tests.kit.dequeue import meta_of, per_recipient, reports, rows
from zonemta_py import Queue
from zonemta_py.dequeue import AsyncMessage, Disposition, adequeue
from zonemta_py.smtp.reports.dsn import SUCCESS

EXAMPLES = Path(zonemta_py.__file__).parents[1] / "docs" / "examples"
TEXT = b"Subject: x\r\n\r\nHello\r\n.stuffed\r\n"


def program(name: str, *arguments: str | Path) -> str:
    """What an example prints."""
    command = [sys.executable, EXAMPLES / f"{name}.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def filled(directory: Path, count: int = 3, notify: int = 0) -> Path:
    """A queue with messages in the zone ``list``."""
    async with Queue(directory / "queue") as queue:
        for number in range(count):
            new = queue.start("s@a.example", zone="list")
            new.to(f"u{number}@b.example")
            new.to(f"v{number}@b.example")
            new._recipients = [
                type(r)(r.address, notify, f"rfc822;{r.address}") for r in new._recipients
            ]
            await new.write(TEXT)
            await new.finish()
    return directory / "queue"


async def left(queue_folder: Path) -> int:
    async with Queue(queue_folder) as queue:
        return len(rows(queue))


async def test_simple(directory: Path) -> None:
    queue = await filled(directory)
    said = program("simple", queue, "list").splitlines()
    assert said[-1] == "3 messages"
    assert sum(line == "  | Hello" for line in said) == 3
    assert "  to <v2@b.example>" in said
    assert await left(queue) == 0


async def test_batch_smtp(directory: Path) -> None:
    """Each message once, in one of the files, dot-stuffed; a requested report says relayed."""
    queue = await filled(directory, 9, SUCCESS)
    (directory / "out").mkdir()
    program("bsmtp", queue, "list", directory / "out")
    files = [path.read_bytes() for path in (directory / "out").iterdir()]
    assert 1 <= len(files) <= 3
    assert all(text.startswith(b"HELO relay.example\n") and text.endswith(b"QUIT\n") for text in files)
    whole = b"".join(files)
    for number in range(9):
        assert whole.count(b"RCPT TO:<u%d@b.example>" % number) == 1
    assert whole.count(b"\n..stuffed\n.\n") == 9
    async with Queue(queue) as opened:
        found = await reports(opened)
        assert [about["Action"] for about in per_recipient(found[0])] == ["relayed", "relayed"]
        assert len(found) == 9


async def test_batch_smtp_that_cannot_be_written(directory: Path) -> None:
    """Nothing is lost: the first message is deferred, the others are not changed."""
    queue = await filled(directory, 30)
    program("bsmtp", queue, "list", directory / "nowhere")
    async with Queue(queue) as opened:
        states = [row["state"] for row in rows(opened)]
        assert len(states) == 60
        assert 0 < states.count("deferred") < 60


async def test_rot13(directory: Path) -> None:
    """The body is encoded; header and envelope do not change."""
    queue = await filled(directory, 2, SUCCESS)
    program("rot13", queue, "list", "out")
    seen: list[bytes] = []

    async def look(message: AsyncMessage) -> None:
        assert {(r.notify, r.orcpt[:8]) for r in message.recipients()} == {(SUCCESS, "rfc822;u"), (SUCCESS, "rfc822;v")}  # fmt: skip
        seen.append(b"\n".join(message.lines()))
        await message.finish(Disposition.DELIVERED)

    async with Queue(queue) as opened:
        assert rows(opened, "list") == []
        assert meta_of(opened, rows(opened)[0]["message"]).sender == "s@a.example"
        await adequeue(opened, "out", look, max_attempts=1, retry_interval_s=0.01)
    assert len(seen) == 2
    assert all(b"Subject: x" in text and text.endswith(b"\n\nUryyb\n.fghssrq") for text in seen)


@pytest.mark.timeout(60)
def test_content_filter(directory: Path) -> None:
    """Good messages are delivered, the bad one is reported to its sender."""
    assert program("content_filter", directory) == "3 messages checked\n"
    assert sorted(path.name for path in (directory / "mail" / "there.example").iterdir()) == [
        "goodbye",
        "hello",
    ]
    (report,) = (directory / "mail" / "here.example" / "ann" / "new").iterdir()
    assert b"5.7.1" in report.read_bytes()
