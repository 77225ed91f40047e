"""Sender processes: the same mail, exact limits, and nothing lost when one is killed."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.dkim import verified, write_key
from tests.kit.relay import empty, ledger, logged_events, received, relaying, send, sound, staged
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import ConfigError, QueueUnavailable
from zonemta_py.core.faults import VARIABLE
from zonemta_py.delivery.dkim import Key
from zonemta_py.processes import sender_protocol as protocol
from zonemta_py.processes.sender_process import LinkContext, SenderProcess
from zonemta_py.processes.senders import SenderChild
from zonemta_py.processes.supervisor import ChildProcess
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.format import keys
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step

TWO = {"senders": 2}


def pids(relay: Relay) -> list[int]:
    assert relay._delivery.senders is not None
    return relay._delivery.senders.pids


async def test_small_and_large_mail(directory: Path) -> None:
    """Bodies sent with the request, and bodies fetched in chunks, byte for byte; signed there."""
    key = write_key(directory / "k.pem", "ed25519")
    dkim = {"keys": [{"domain": "sender.example", "selector": "s", "key_file": str(key)}]}
    bodies = [b"", b".\r\n..\r\nsmall\r\n", b"x" * 76 + b"\r\n", (b"." + b"y" * 75 + b"\r\n") * 40_000]
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes=TWO, dkim=dkim)) as relay:
            assert len(pids(relay)) == 2
            for number, body in enumerate(bodies):
                header = b"From: s@sender.example\r\nSubject: %d\r\n\r\n" % number
                await send(relay, [f"{number}@a.example"], header + body)
            await received(sink, len(bodies))
            await empty(relay)
        got = {m.recipients[0].partition("@")[0]: m.data for m in sink.messages}
        for number, body in enumerate(bodies):
            data = got[str(number)]
            assert data.partition(b"\r\n\r\n")[2] == body
            assert verified(data, Key("sender.example", "s", key)) == [True]
    assert ledger(directory).total("delivered") == len(bodies)


async def test_a_killed_sender(directory: Path) -> None:
    """Its leases are released at once, another sender takes them and a new one starts; every repeat is recorded."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.DOT, stall_s=0.05))
        config = stage.config(processes=TWO, zones={"default": {"connections_per_domain": 10}})
        async with relaying(config) as relay:
            for n in range(60):
                await send(relay, [f"{n}@a.example"])
                if n in (20, 40):
                    os.kill(pids(relay)[0], signal.SIGKILL)
            await until(lambda: len(set(sink.tally.by_recipient)) == 60, "every recipient to have it")
            await empty(relay)
            await until(lambda: len(pids(relay)) == 2, "both senders to be there again")
            assert sound(relay)
        repeated = {r for r, times in sink.tally.by_recipient.items() if times > 1}
        uncertain = {event["recipient"] for event in logged_events(directory, "uncertain")}
        assert repeated <= uncertain
        account = ledger(directory)
        assert account.total("delivered") == account.total("accepted") == 60


async def test_all_senders_killed_at_once(directory: Path) -> None:
    """Mail waits for the next sender, and is not deferred."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes=TWO)) as relay:
            await send(relay, ["a@a.example"])
            await received(sink, 1)
            for pid in pids(relay):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not pids(relay), "the end of both")
            await send(relay, ["b@a.example"])
            await received(sink, 2)
            await empty(relay)
        assert logged_events(directory, "deferred") == []


async def test_connections_are_counted_over_all_processes(directory: Path) -> None:
    """Never more sessions with a destination than allowed, idle ones in any process included."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.DOT, stall_s=0.01))
        most = 0
        config = stage.config(
            processes={"senders": 3},
            zones={"default": {"connections_per_domain": 3, "messages_per_connection": 7}},
        )
        async with relaying(config) as relay:

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, len(sink.connections))
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            for n in range(60):
                await send(relay, [f"{n}@a.example"])
            await until(lambda: len(sink.messages) == 60, "all of it")
            watching.cancel()
            await empty(relay)
        assert 2 <= most <= 3


@pytest.mark.parametrize("poison_after", [2])
async def test_a_message_that_kills_its_sender(
    directory: Path, monkeypatch: pytest.MonkeyPatch, poison_after: int
) -> None:
    """It is detected and held, like one that kills the relay; the next message is delivered."""
    monkeypatch.setenv(VARIABLE, "dot.answered")
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        queue = {"directory": "queue", "min_free_disk": "1MiB", "poison_after": poison_after}
        async with relaying(stage.config(processes={"senders": 1}, queue=queue)) as relay:
            await send(relay, ["a@a.example"])
            await until(lambda: facts_in(relay, keys.DEFERRED), "the message to be held")
            monkeypatch.delenv(VARIABLE)
            os.kill(pids(relay)[0], signal.SIGKILL) if pids(relay) else None
            await send(relay, ["b@a.example"])
            await until(lambda: "b@a.example" in sink.tally.by_recipient, "the other message")
            await until(lambda: not facts_in(relay, keys.WAITING), "its end")
        assert [event["recipient"] for event in logged_events(directory, "held")] == ["a@a.example"]
        assert len(logged_events(directory, "uncertain")) == poison_after


class CancelledAgent:
    """An ``SmtpAgent`` whose queue can no longer be written."""

    async def deliver(self, request: object, context: object) -> None:
        raise QueueUnavailable("the queue cannot be written")


async def test_a_request_that_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """It is no defect of the program: the answer says why, and the log has no traceback."""
    process = SenderProcess()
    agents: Any = process._agents
    agents["default"] = CancelledAgent()
    frame: Any = SimpleNamespace(zone="default", number=3, request=None)
    context = process._requests[3] = LinkContext(process.link, 3, b"")
    await process._deliver(frame, context)
    process.close()
    assert not process._requests and not caplog.records
    assert protocol.decode(process.link._out[-1]) == protocol.Done(
        3, None, "QueueUnavailable('the queue cannot be written')", 0, 0
    )


async def test_a_request_whose_start_could_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is no internal error: the worker gets the failure of the queue."""
    ignore: Any = lambda *_: None  # noqa: E731 - of three types
    child = SenderChild(0, ignore, ignore, ignore)
    request: Any = SimpleNamespace(order=None, destination="x")
    sent: list[object] = []
    monkeypatch.setattr(child, "send", sent.append)
    context: Any = SimpleNamespace(body=lambda: b"", session_opened=ignore, started=CommitFuture())
    delivering = asyncio.create_task(child.deliver(3, "default", request, context))
    await asyncio.sleep(0)
    child._session_opened(protocol.SessionOpened(3, 1))
    context.started.finish(QueueUnavailable("full"))
    child._done(protocol.Done(3, None, "QueueUnavailable('the queue cannot be written')", 0, 0))
    with pytest.raises(QueueUnavailable, match="full"):
        await delivering
    assert sent[-1] == protocol.Cancel(3)


def facts_in(relay: Relay, space: bytes) -> bool:
    return next(relay.queue.store.keys(space, keys.end_of(space)), None) is not None


async def test_reload_and_unreachable_hosts_reach_every_process(directory: Path) -> None:
    """An unreachable address found by one sender is known to all and cleared in all; a reload reaches all."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        async with relaying(stage.config(processes=TWO)) as relay:
            assert relay._delivery.senders is not None
            status = protocol.HostStatus("", "127.0.9.9", 25, "a.example", 60.0)
            relay._delivery.senders.share_status(status)
            assert [row["ip"] for row in relay._delivery.unreachable.rows(monotonic_s())] == [
                "127.0.9.9"
            ]
            assert relay._delivery.unreachable.clear() == 1
            sink = await stage.receiver("b.example")
            await relay.reload(stage.config(processes=TWO, zones={"default": {"tls": "off"}}))
            await send(relay, ["x@b.example"])
            await received(sink, 1)
            with pytest.raises(ConfigError, match=r"processes\.senders: a change needs a restart"):
                await relay.reload(stage.config(processes={"senders": 3}))
            assert len(pids(relay)) == 2, "the number takes a restart"


async def test_a_sender_ends_with_the_relay(directory: Path) -> None:
    async with staged(directory) as stage:
        async with relaying(stage.config(processes=TWO)) as relay:
            children = pids(relay)
        for pid in children:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def test_a_sender_that_cannot_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its start is repeated, after growing pauses; the other sender delivers."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes=TWO)) as relay:
            with monkeypatch.context() as patch:
                patch.setattr(sys, "executable", "/nonexistent/python")
                os.kill(pids(relay)[0], signal.SIGKILL)
                await send(relay, ["x@a.example"])
                await received(sink, 1)
                await until(lambda: caplog.text.count("cannot be started") >= 2, "two attempts")
            await until(lambda: len(pids(relay)) == 2, "the second sender")


async def test_a_sender_that_cannot_use_its_configuration(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets no mail: that waits for one that can."""
    key = write_key(directory / "k.pem", "ed25519")
    dkim = {"keys": [{"domain": "sender.example", "selector": "s", "key_file": str(key)}]}
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes={"senders": 1}, dkim=dkim)) as relay:
            key.rename(directory / "moved")
            os.kill(pids(relay)[0], signal.SIGKILL)
            await until(lambda: "did not become ready" in caplog.text, "a start that failed")
            assert relay._delivery.senders is not None
            assert relay._delivery.senders.missing() == "sender 0"
            await send(relay, ["x@a.example"])
            (directory / "moved").rename(key)
            await received(sink, 1)
            await empty(relay)
        assert logged_events(directory, "deferred") == []


async def test_a_large_body_is_sent_again_from_its_beginning(directory: Path) -> None:
    """An idle session that fails in the middle of a body: what was fetched ahead for it is dropped."""
    body = b"".join(b"%07d %s\r\n" % (n, b"z" * 60) for n in range(60_000))
    got: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"220 hi\r\n")
        taken = 0
        while line := await reader.readline():
            verb = line[:4].upper()
            if verb == b"EHLO":
                writer.write(b"250-x\r\n250 PIPELINING\r\n")
            elif verb == b"DATA":
                writer.write(b"354 go\r\n")
                if connections == 1 and taken:
                    await reader.readexactly(1_000_000)
                    writer.transport.abort()
                    return
                got.append(await reader.readuntil(b"\r\n.\r\n"))
                taken += 1
                writer.write(b"250 ok\r\n")
            else:
                writer.write(b"250 ok\r\n")
        writer.close()
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=16 << 20)
    port = server.sockets[0].getsockname()[1]
    async with staged(directory) as stage:
        zone = {"smarthost": f"127.0.0.1:{port}"}
        config = stage.config(processes={"senders": 1}, zones={"default": zone})
        async with relaying(config) as relay:
            await send(relay, ["a@a.example"])
            await until(lambda: len(got) == 1, "the first message")
            await send(relay, ["b@a.example"], b"Subject: large\r\n\r\n" + body)
            await until(lambda: len(got) == 2, "the large message")
            await empty(relay)
        async with asyncio.timeout(scaled(10)):
            await left.wait()
    server.close()
    assert connections == 2
    assert got[1].partition(b"\r\n\r\n")[2] == body + b".\r\n"


async def test_a_hung_sender_is_killed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs and sends nothing: its requests go to another. One that works stays."""
    monkeypatch.setattr(ChildProcess, "beat_s", 0.05)
    monkeypatch.setattr(ChildProcess, "silent_s", scaled(1.0))
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes=TWO)) as relay:
            hung, well = pids(relay)
            os.kill(hung, signal.SIGSTOP)
            for n in range(6):
                await send(relay, [f"{n}@a.example"])
            await received(sink, 6)
            await until(lambda: hung not in pids(relay) and len(pids(relay)) == 2, "another sender")
            assert well in pids(relay)
            await empty(relay)
        assert ledger(directory).total("delivered") == 6
