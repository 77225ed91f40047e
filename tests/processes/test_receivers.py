"""Receiver processes: the same answers, exact submission keys, and nothing left of one that is killed."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.kit.deadlines import eventually, time_limit, until
from tests.kit.listener import certificate, users_file
from tests.kit.relay import empty, ledger, logged_events, received, relaying, send, sound, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.config.endpoints import HostPort
from zonemta_py.core.errors import ConfigError, LocalError, QueueUnavailable
from zonemta_py.intake.listener import listening_sockets
from zonemta_py.processes import receiver_protocol as protocol
from zonemta_py.processes.receivers import ReceiverChild
from zonemta_py.queue.format import keys
from zonemta_py.queue.submitters.limits import FAILURES_MAX
from zonemta_py.relay.relay import Relay

TWO = {"receivers": 2}
LARGE = b"Subject: large\r\n\r\n" + (b"." + b"y" * 75 + b"\r\n") * 20_000


def pids(relay: Relay) -> list[int]:
    assert relay._intake.receivers is not None
    return relay._intake.receivers.pids


async def client_of(relay: Relay) -> RawClient:
    client = await RawClient.connect(relay.addresses[0].port)
    await client.ehlo()
    return client


async def test_mail_through_both(directory: Path) -> None:
    """Small and large, by many clients: ids are unique, every byte arrives, the event log agrees."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes=TWO)) as relay:
            assert len(pids(relay)) == 2
            await asyncio.gather(*(send(relay, [f"{n}@a.example"]) for n in range(40)))
            await send(relay, ["large@a.example"], LARGE)
            await received(sink, 41)
            await empty(relay)
        large = next(m for m in sink.messages if m.recipients == ["large@a.example"])
        assert large.data.partition(b"\r\n\r\n")[2] == LARGE.partition(b"\r\n\r\n")[2].replace(
            b"\r\n..", b"\r\n."
        )
        accepted = logged_events(directory, "accepted")
        assert len({event["message"] for event in accepted}) == 41
        workers = {int(event["message"][12:18], 16) >> 17 for event in accepted}
        assert workers == {1, 2}, "both issued some"
        account = ledger(directory)
        assert account.total("delivered") == account.total("accepted") == 41


async def test_a_submission_key_is_one_for_all(directory: Path) -> None:
    """Of many sessions at once with one key, in both processes, one is new."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes=TWO)) as relay:
            clients = [await client_of(relay) for _ in range(12)]
            data = b"X-Submission-Key: k\r\n\r\nhello\r\n.\r\n"
            replies = await asyncio.gather(*(c.message(data, "x@a.example") for c in clients))
            new = [r for r in replies if r.startswith("250") and "duplicate" not in r]
            assert len(new) == 1
            assert all(r.startswith("450") or "duplicate" in r or r in new for r in replies)
            message = new[0].rpartition(" ")[2]
            for client in clients:
                again = await client.command("MAIL FROM:<s@sender.example> ENVID=k")
                assert again.startswith("250")
                assert (await client.command("RSET")).startswith("250")
                reply = await client.message(data, "x@a.example")
                assert reply.startswith(f"250 2.0.0 Ok: queued as {message} duplicate, accepted ")
                client.close()
            await received(sink, 1)
            await empty_but_keys(relay)
        assert len(sink.messages) == 1


async def empty_but_keys(relay: Relay) -> None:
    spaces = (keys.WAITING, keys.DEFERRED, keys.MESSAGE, keys.OPEN, keys.CLEANUP, keys.INFLIGHT)
    store = relay.queue.store
    await until(
        lambda: not any(next(store.keys(space, keys.end_of(space)), None) for space in spaces),
        "an empty queue",
    )


async def test_envid_keys(directory: Path) -> None:
    """A key named at MAIL is known there, and busy while another session writes under it."""
    listener = {"address": "127.0.0.1:0", "submission_key": {"envid_prefix": "key:"}}
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(listeners=[listener], processes=TWO)) as relay:
            one, other = await client_of(relay), await client_of(relay)
            mail = "MAIL FROM:<s@sender.example> ENVID=key:7"
            for line in (mail, "RCPT TO:<x@a.example>", "DATA"):
                assert (await one.command(line))[0] in "23"
            assert (await other.command(mail)).startswith("450")
            one.reset()  # its claim goes with it

            async def free() -> bool:
                return (await other.command(mail)).startswith("250")

            await eventually(free, "the key to be free")
            assert (await other.command("RCPT TO:<x@a.example>")).startswith("250")
            assert (await other.command("DATA")).startswith("354")
            await other.send(b"\r\nhello\r\n.\r\n")
            assert (await other.reply()).startswith("250")
            assert await other.command(mail) == "250 2.1.0 Ok"
            other.close()
            await received(sink, 1)


async def test_a_killed_receiver(directory: Path) -> None:
    """Its sessions end and their bodies are removed; other sessions continue; another receiver starts."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes=TWO)) as relay:
            clients = [await client_of(relay) for _ in range(30)]
            for client in clients:
                assert (await client.envelope("x@a.example")).startswith("354")
                await client.send(LARGE[:200_000])
            await until(lambda: len(open_bodies(relay)) == 30, "every body to be begun")
            first, second = pids(relay)
            os.kill(first, signal.SIGKILL)
            await until(lambda: first not in pids(relay), "its end")
            ended = 0
            for client in clients:
                await client.send(b"\r\n.\r\n")
                ended += not (await client.reply()).startswith("250")
                client.close()
            assert 0 < ended < 30
            await until(lambda: len(pids(relay)) == 2, "another receiver")
            assert second in pids(relay)
            for n in range(12):
                await send(relay, [f"{n}@a.example"])
            await received(sink, 12 + 30 - ended)
            await empty(relay)
            assert sound(relay)


def open_bodies(relay: Relay) -> list[bytes]:
    return list(relay.queue.store.keys(keys.OPEN, keys.end_of(keys.OPEN)))


async def test_stopping_in_order(directory: Path) -> None:
    """A running transaction may finish; idle sessions get 421; no process is left."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        relay = Relay(stage.config(processes=TWO, shutdown_grace=time_limit(20)))
        await relay.start()
        busy, idle = await client_of(relay), await client_of(relay)
        assert (await busy.envelope("x@a.example")).startswith("354")
        children = pids(relay)
        stop = asyncio.ensure_future(relay.stop())
        assert (await idle.reply()).startswith("421")
        await busy.send(b"\r\nhello\r\n.\r\n")
        assert (await busy.reply()).startswith("250")
        await stop
        busy.close()
        idle.close()
        for pid in children:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        async with relaying(stage.config()) as relay:
            await received(sink, 1)


async def test_a_reload_and_max_sessions(directory: Path) -> None:
    """Each has its part of ``max_sessions``; a reload reaches both, a bad one neither."""

    def config(most: int) -> dict[str, object]:
        return {"listeners": [{"address": "127.0.0.1:0", "max_sessions": most}], "processes": TWO}

    async with staged(directory) as stage, relaying(stage.config(**config(3))) as relay:
        held, refused = await sessions(relay, 30)
        assert 2 <= held <= 3, "one has two places, the other one"
        assert refused == 30 - held
        await relay.reload(stage.config(**config(8)))
        await until_sessions(relay, 7, 8)
        with pytest.raises(ConfigError):
            await relay.reload(stage.config(**config(9), queue={"directory": "elsewhere"}))
        await until_sessions(relay, 7, 8)


async def sessions(relay: Relay, tries: int) -> tuple[int, int]:
    """How many of several simultaneous connections are greeted, and how many refused."""
    clients = [await RawClient.connect(relay.addresses[0].port, greeting=False) for _ in range(tries)]
    replies = [await client.reply() for client in clients]
    for client in clients:
        client.reset()
    return sum(r.startswith("220") for r in replies), sum(r.startswith("421") for r in replies)


async def until_sessions(relay: Relay, least: int, most: int) -> None:
    async def so_many() -> bool:
        return least <= (await sessions(relay, 40))[0] <= most

    await eventually(so_many, f"{least} to {most} sessions")


async def test_a_failed_write_is_reported_and_final(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be written is refused at the dot; from then on at MAIL."""
    async with staged(directory) as stage, relaying(stage.config(processes={"receivers": 1})) as relay:
        client = await client_of(relay)

        def failing(batch: object) -> None:
            raise QueueUnavailable("disk")

        monkeypatch.setattr(relay.queue.commits._store, "write", failing)
        assert (await client.message(b"\r\nx\r\n.\r\n")).startswith("451 4.3.0")
        assert (await client.command("MAIL FROM:<s@sender.example>")).startswith("451 4.3.0")
        client.close()


async def test_a_receiver_that_cannot_use_its_configuration(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends with one line in the log, clients come to the other one, and it is back once the file is."""
    cert, key, _ = certificate(directory)
    tls = {"mode": "starttls", "certificate_file": str(cert), "key_file": str(key)}
    config = {"listeners": [{"address": "127.0.0.1:0", "tls": tls}], "processes": TWO}
    async with staged(directory) as stage, relaying(stage.config(**config)) as relay:
        assert relay._intake.receivers is not None
        key.rename(directory / "moved")
        os.kill(pids(relay)[0], signal.SIGKILL)
        await until(lambda: "did not become ready" in caplog.text, "a start that failed")
        assert relay._intake.receivers.missing() in ("receiver 0", "receiver 1")
        for _ in range(20):
            (await RawClient.connect(relay.addresses[0].port)).close()
        (directory / "moved").rename(key)
        await until(lambda: len(pids(relay)) == 2, "the receiver to be back")
        assert sum(await sessions(relay, 30)) == 30


async def test_one_that_restarts_during_a_stop(directory: Path) -> None:
    """It is ended, and takes no client."""
    async with staged(directory) as stage:
        relay = Relay(stage.config(processes=TWO, shutdown_grace=time_limit(20)))
        await relay.start()
        port = relay.addresses[0].port
        one = await client_of(relay)
        assert (await one.envelope("x@a.example")).startswith("354")
        receivers = relay._intake.receivers
        assert receivers is not None
        await until(lambda: receivers.sessions == 1, "its number of sessions")
        busy = next(child for child in receivers._supervisor.children if child.sessions)
        [other] = set(pids(relay)) - {busy.pid}
        os.kill(other, signal.SIGKILL)
        await until(lambda: other not in pids(relay), "its end")
        stop = asyncio.ensure_future(relay.stop())
        await until(lambda: receivers._sockets[0][0][0].fileno() < 0, "closed sockets")
        with pytest.raises(ConfigError, match="the relay is stopping"):
            await relay.reload()
        with pytest.raises(ConnectionRefusedError):
            while True:  # the busy one closes its own a moment later
                (await RawClient.connect(port, greeting=False)).reset()
        await one.send(b"\r\nhello\r\n.\r\n")
        assert (await one.reply()).startswith("250")
        await stop
        one.close()
        assert pids(relay) == []


async def test_wrong_passwords_are_counted_over_all(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With two receivers a client has as many guesses as with one."""
    auth = {"users_file": str(users_file(directory)), "require_tls": False}
    listener = {"address": "127.0.0.1:0", "senders": "any", "auth": auth}
    async with staged(directory) as stage:
        async with relaying(stage.config(listeners=[listener], processes=TWO)) as relay:
            assert relay._intake.receivers is not None
            children, wrong = relay._intake.receivers._supervisor.children, relay.queue.wrong_passwords
            for _ in range(FAILURES_MAX - 1):
                for child in children:
                    child.send(protocol.WrongPassword("127.0.0.1"))
                wrong.learn("127.0.0.1")
            client = await client_of(relay)
            assert (await client.command("AUTH PLAIN AG5ld3MAd3Jvbmc=")).startswith("535")
            client.close()
            await until(lambda: wrong.count("127.0.0.1") == FAILURES_MAX, "the last one")

            async def refused() -> bool:
                """The right password, in enough sessions for both processes to have some."""
                again = [await client_of(relay) for _ in range(8)]
                replies = [await client.command("AUTH PLAIN AG5ld3MAc2VjcmV0") for client in again]
                for client in again:
                    client.close()
                return all(reply.startswith("421") for reply in replies)

            await eventually(refused, "both to refuse the client")
        assert caplog.text.count("too many wrong passwords") == 1


async def test_another_relay_on_the_same_address(directory: Path) -> None:
    """SO_REUSEPORT would let both have it, and half of the mail go to the wrong queue."""
    [first], [second] = await listening_sockets(HostPort("127.0.0.1", 0), 2)
    address = HostPort("127.0.0.1", first.getsockname()[1])
    assert second.getsockname() == first.getsockname()
    try:
        for copies in (1, 2):
            with pytest.raises(ConfigError, match="cannot listen on"):
                await listening_sockets(address, copies)
    finally:
        first.close()
        second.close()


async def test_a_receiver_that_cannot_start(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay reports it and stops in order; no process is left."""
    monkeypatch.setattr(ReceiverChild, "module", "zonemta_py.nothing_here")
    async with staged(directory) as stage:
        relay = Relay(stage.config(processes={"receivers": 1}))
        with pytest.raises(LocalError, match="a receiver process cannot be started"):
            await relay.start()
