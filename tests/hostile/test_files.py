"""Hostile files: configurations, lists, message templates, a damaged or stolen queue, a clock that jumps."""

from pathlib import Path

import pytest

from tests.kit.attacks import item
from tests.kit.queue import Clock, accept, lease, opened, problems, settle, spoil_chunk
from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError, LocalError, QueueCorrupt, QueueLocked
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.storage.leveldb_store import LevelDBStore
from zonemta_py.submit.merge import Template


@item(29)
@pytest.mark.parametrize(
    "text",
    [
        "hostname: a\nhostname: b\n", "x: &a [*a]\n", "hostname: !!python/object/apply:os.system [id]\n",
        "hostname: !!bool foo\n", "shutdown_grace: !!int ''\n", "shutdown_grace: !!timestamp foo\n",
        "routing: " + "[" * 5000 + "\n", "zones: " + "{a: " * 3000 + "\n", "queue: {min_free_disk: " + "9" * 400 + "}\n",
        "zones: {default: {rate: 5/0s}}\n", "shutdown_grace: " + "9" * 400 + "d\n", "\0", "\t- x", "a: b: c",
        "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", "hostname: \ud800\n", "- just\n- a list\n",
    ],
)  # fmt: skip
def test_configurations(text: str) -> None:
    """One error that names the file, whatever stands in it."""
    with pytest.raises(ConfigError, match=r"z\.yaml"):
        parse_config(text, Path("z.yaml"))


@item(14, 28)
@pytest.mark.parametrize("value", ["a\r\nBcc: x@y.example", "a\nb", "a\rb", "\0"])
def test_merge_fields(value: str) -> None:
    """A list cannot put a line end into a header; fields in values are not merged again."""
    template = Template(b"Subject: {{name}}\r\n\r\nHello {{name}}\r\n")
    header, body = template.render({"name": value})
    assert header.count(b"\r\n") == header.count(b"\n") == header.count(b"\r") == 1
    assert b"\0" not in header + body
    assert body.count(b"\n") == body.count(b"\r\n") == body.count(b"\r")
    assert b"{{name}}" in template.render({"name": "{{name}}"})[1]


@item(27)
def test_compressed_input_is_not_opened(directory: Path) -> None:
    """No interface takes compressed data: a gzip file as a list is an error that names it."""
    import gzip

    from zonemta_py.submit.recipients import read_rows

    path = directory / "list.csv"
    path.write_bytes(gzip.compress(b"email\n" + b"x@y.example\n" * 100_000))
    with pytest.raises(LocalError):
        list(read_rows(str(path)))


@item(30)
async def test_a_damaged_chunk_is_never_delivered(directory: Path) -> None:
    """Missing, shorter, longer, flipped: QueueCorrupt before the last byte is returned."""
    for spoil in (None, b"x" * 65_535, b"x" * 65_537, b"y" * 65_536):
        async with opened(directory / f"{(spoil or b'')[:1].hex()}{len(spoil or b'')}") as queue:
            message = await accept(queue, "a@x.example", body=b"x" * 150_000)
            spoil_chunk(queue.store, keys.chunk_key(message, 2), spoil)
            held = lease(queue, "x.example")
            got = b""
            with pytest.raises(QueueCorrupt):
                for chunk in queue.bodies.read(held.active):
                    got += chunk
            assert len(got) < 150_000
            await settle(queue, held, OutcomeKind.BOUNCED)


@item(30)
def test_two_processes_cannot_have_one_queue(directory: Path) -> None:
    store = LevelDBStore(directory / "db")
    with pytest.raises(QueueLocked):
        LevelDBStore(directory / "db")
    store.close()


@item(30)
def test_a_file_that_is_no_database(directory: Path) -> None:
    (directory / "db").mkdir()
    (directory / "db" / "CURRENT").write_text("MANIFEST-000099\n")
    with pytest.raises(LocalError, match="db"):
        LevelDBStore(directory / "db")


@item(30)
async def test_a_clock_that_jumps(directory: Path) -> None:
    """Ids only grow, due mail is sent when its time has come, nothing is lost either way."""
    clock = Clock()
    async with opened(directory, clock) as queue:
        made = [await accept(queue, "a@x.example")]
        clock.ms += 10**10
        made.append(await accept(queue, "b@x.example"))
        clock.ms -= 2 * 10**10
        made.append(await accept(queue, "c@x.example"))
        assert made == sorted(made)
        while held := queue.lease("default", "x.example", 10):
            await settle(queue, held, OutcomeKind.DEFERRED, due_ms=clock.ms + 1000)
        clock.ms += 10**11
        await flush(queue)
        woken = 0
        while held := queue.lease("default", "x.example", 10):
            woken += len(held.recipients)
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert woken == 3
        assert problems(queue.store) == []
