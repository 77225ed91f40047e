"""2. What the filesystem store does not understand stays, is named, and does not hide the other mail."""

from pathlib import Path

import pytest

from tests.kit.queue import accept, lease, opened, problems, settle
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import OutcomeKind

STORE = "filesystem"
FOREIGN = "0b6e4b1c-5f0e-4a55-9d3c-3f3c3d2f3d11"  # Kannader's names are UUIDs


def tree(directory: Path) -> set[str]:
    """The names of everything below ``directory``, without the relay's own keys."""
    return {str(p.relative_to(directory)) for p in directory.rglob("*") if ".relay" not in p.parts}


async def test_a_lost_marker(directory: Path) -> None:
    """The body and both recipients stay on disk, the check names the message, other mail goes out."""
    async with opened(directory, store=STORE) as queue:
        message = await accept(queue, "a@x.example", "b@x.example", body=b"b" * 70_000)
        await accept(queue, "c@y.example")
    (directory / "files" / "data" / message / "accepted").unlink()
    before = tree(directory / "files" / "data" / message)
    for _ in range(2):
        async with opened(directory, store=STORE) as queue:
            assert any("'accepted' is missing" in text for text in problems(queue.store))
            with pytest.raises(QueueCorrupt):
                queue.lease("default", "x.example", 10)
        assert tree(directory / "files" / "data" / message) == before
    async with opened(directory, store=STORE) as queue:
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)


async def test_mail_of_another_program(directory: Path) -> None:
    """A queue of Kannader's in the same directories is not touched."""
    async with opened(directory, store=STORE) as queue:
        await accept(queue, "a@x.example")
    root = directory / "files"
    mail = root / "data" / FOREIGN
    (mail / "to").mkdir(parents=True)
    (mail / "contents").write_bytes(b"mail\r\n")
    (mail / "to" / "metadata").write_text("{}")
    (root / "queue" / f"{FOREIGN}.to").symlink_to(f"../data/{FOREIGN}/to")
    before = tree(root)
    async with opened(directory, store=STORE) as queue:
        assert tree(root) == before
        assert [text for text in problems(queue.store) if FOREIGN in text]
        await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
    assert (root / "queue" / f"{FOREIGN}.to" / "metadata").read_text() == "{}"


async def test_a_body_that_was_never_accepted_goes(directory: Path) -> None:
    """A crash before the batch of the first chunk leaves contents and nothing else."""
    async with opened(directory, store=STORE) as queue:
        queue.open_message()
    rest = directory / "files" / "data" / ("0" * 24)
    rest.mkdir()
    (rest / "contents").write_bytes(b"half")
    async with opened(directory, store=STORE) as queue:
        assert not rest.exists()
        assert problems(queue.store) == []


async def test_no_directory_of_a_transaction_stays(directory: Path) -> None:
    """.relay/inflight had one for each message that was ever sent."""
    inflight = directory / "files" / "data" / ".relay" / "inflight"
    async with opened(directory, store=STORE) as queue:
        for number in range(3):
            await accept(queue, f"a{number}@x.example")
            held = lease(queue, "x.example")
            await queue.start(held)
            assert len(list(inflight.iterdir())) == 1
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert list(inflight.iterdir()) == []
    left_by_an_older_version = inflight / ("0" * 24)
    left_by_an_older_version.mkdir()
    async with opened(directory, store=STORE) as queue:
        assert not left_by_an_older_version.exists()
