"""What happened to a message, an address, a Message-ID: in sealed and open segments, with and without an index."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.relay import empty, relaying, send, staged
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.requests import HistoryRequest, TailRequest
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.events import history as history_module
from zonemta_py.events import observers, segment_reading
from zonemta_py.events.history import events_of, in_lines, make_queries
from zonemta_py.events.index import NAME
from zonemta_py.events.observers import EventStream
from zonemta_py.events.segments import Segment
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step

TEXT = b"Subject: x\r\nMessage-ID: <one@news.example>\r\n\r\nx\r\n"


async def history(relay: Relay, key: str, **more: Any) -> list[dict[str, Any]]:
    assert relay.admin is not None
    operations: Operations = relay.admin._operations
    return [row async for row in run_operation(operations, HistoryRequest(key, **more))]


def named(rows: list[dict[str, Any]]) -> list[str]:
    return [row["event"] for row in rows]


async def test_the_events_of_a_message_address_and_message_id(directory: Path) -> None:
    """In the outbox, in the open segment, and after the end of the relay in the sealed one."""
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no"))
        await stage.receiver("sender.example")
        config = stage.config()
        async with relaying(config) as relay:
            await send(relay, ["ok@a.example", "no@a.example"], TEXT)
            await send(relay, ["ok@a.example"], b"Subject: y\r\n\r\ny\r\n")
            await empty_of_mail(relay)
            rows = await history(relay, "no@A.example")
            assert named(rows) == ["accepted", "bounced"]
            message = rows[0]["message"]
            assert named(await history(relay, message))[0] == "accepted"
            assert set(named(await history(relay, message))) == {"accepted", "bounced", "delivered"}
            assert named(await history(relay, "ok@a.example")).count("delivered") == 2
            assert await history(relay, "NO@a.example") == rows, "however it is written"
            found = await history(relay, "<one@news.example>")
            assert await history(relay, "<One@News.Example>") == found
            assert {row["message"] for row in found} == {message}
            assert await history(relay, "one@news.example") == found, "no address has it"
            assert await history(relay, message.upper()) != []
            for limit in (0, -1, 10_001):
                with pytest.raises(LocalError, match="limit: expected 1 to 10000"):
                    await history(relay, message, limit=limit)
            assert len(await history(relay, "ok@a.example", limit=1)) == 1
            assert await history(relay, "ok@a.example", tenant="acme") == []
            assert await history(relay, "ok@a.example", since_ms=rows[0]["time_ms"] + 10**7) == []
        events = directory / "events"
        assert named(events_of(events, "no@a.example", 0, 100)) == ["accepted", "bounced"]
        for index in events.rglob(NAME):
            index.unlink()
        assert named(events_of(events, "no@a.example", 0, 100)) == ["accepted", "bounced"]
        assert events_of(events, "nothing@a.example", 0, 100) == []


async def empty_of_mail(relay: Relay) -> None:
    """Wait until all mail has its outcome; its events may still be on their way."""
    await empty(relay)


async def test_segments_without_the_key_are_not_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        for number in range(3):
            async with relaying(stage.config()) as relay:
                await send(relay, [f"u{number}@a.example"])
                await empty(relay)
    read: list[Path] = []
    original = segment_reading.frames_of

    def frames_of(path: Path, problems: list[str]) -> Iterator[bytes]:
        read.append(path)
        return original(path, problems)

    monkeypatch.setattr(history_module, "frames_of", frames_of)
    assert named(events_of(directory / "events", "u1@a.example", 0, 9)) == ["accepted", "delivered"]
    assert len(set(read)) == 1


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ("019A1b2c3d4e000001abcdef", [("message", "019a1b2c3d4e000001abcdef")]),
        ("ann@Example.ORG", [
            ("recipient", "ann@example.org"), ("message_id", "<ann@example.org>"),
            ("message_id", "ann@example.org"),
        ]),
        ("<1@news.example>", [("message_id", "<1@news.example>"), ("message_id", "1@news.example")]),
        ("nothing special", [("message_id", "<nothing special>"), ("message_id", "nothing special")]),
    ],
)  # fmt: skip
def test_what_is_asked_for(text: str, queries: list[tuple[str, str]]) -> None:
    assert [(query.field, query.value) for query in make_queries(text, 0)] == queries


@pytest.mark.parametrize("text", ["", " ", "a\0b"])
def test_what_cannot_be_asked_for(text: str) -> None:
    with pytest.raises(LocalError, match="expected a queue id"):
        make_queries(text, 0)


@given(st.binary(max_size=60), st.text(max_size=5))
def test_a_search_ends(lines: bytes, key: str) -> None:
    """Whatever is in the lines, and whatever is looked for."""
    try:
        query = make_queries(key, 0)[0]
    except LocalError:
        return
    try:
        assert list(in_lines(lines, query)) == []
    except ValueError:
        assert query.key in lines, "a line that is no JSON"


async def test_tail_shows_events_as_they_happen(directory: Path) -> None:
    """Those that were asked for; a slow watcher learns how many it missed."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        async with relaying(stage.config()) as relay:
            assert relay.admin is not None
            operations = relay.admin._operations
            rows = run_operation(operations, TailRequest(event="delivered", domain="a.example"))
            first = asyncio.ensure_future(anext(aiter(rows)))
            await asyncio.sleep(0)
            await send(relay, ["u@a.example"])
            assert (await first)["recipient"] == "u@a.example"


async def test_a_slow_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not taken is bounded; the end of the relay ends its watch."""
    monkeypatch.setattr(observers, "BACKLOG_BYTES", 20)
    stream = EventStream()
    watching = stream.watch()
    first = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    stream.publish(b'{"n":1}\n{"n":2}\n')
    stream.publish(b'{"n":3}\n{"n":4}\n')
    assert [await first, await anext(watching), await anext(watching)] == [
        {"n": 1}, {"n": 2}, {"missed": 2}
    ]  # fmt: skip
    last = asyncio.ensure_future(anext(watching, None))
    await asyncio.sleep(0)
    stream.close()
    assert await last is None
    assert stream._watchers == set()
    stream.publish(b"{}\n")


async def test_watchers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "WATCHERS_MAX", 1)
    stream = EventStream()
    first = asyncio.ensure_future(anext(stream.watch()))
    await asyncio.sleep(0)
    with pytest.raises(LocalError, match="1 clients watch the events already"):
        await anext(stream.watch())
    first.cancel()


async def test_events_of_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """Ids do not go back with the clock: an event may be older than its message."""
    message = "019a1b2c3d4e000001abcdef"
    segment = Segment(tmp_path, "abcdef", 1)
    line = {"node": "abcdef", "seq": 1, "position": 0, "event": "delivered", "message": message}
    segment.append(to_json({**line, "time_ms": int(message[:12], 16) - 7_200_000}) + b"\n", 1)
    segment.seal(int(message[:12], 16) - 7_200_000)
    assert len(events_of(tmp_path, message, 0, 10)) == 1
