"""TERM, HUP and ALRM, and a stop in the middle of large mail: nothing is lost."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.deadlines import scaled, time_limit, until
from tests.kit.relay import Stage, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import ListRequest
from zonemta_py.bench.process import CommandProcess, free_port, process_tree
from zonemta_py.cli.main import main
from zonemta_py.sink.script import Rule, Step

LARGE = b"x" * 70 + b"\r\n"


class Served:
    """``zonemta serve`` on a stage."""

    def __init__(self, directory: Path, stage: Stage, **changes: object) -> None:
        self.directory = directory
        self.port = free_port()
        stage.config(listeners=[{"address": f"127.0.0.1:{self.port}"}], **changes)
        self.relay = self.start()

    def start(self) -> CommandProcess:
        relay = CommandProcess(
            ["serve", "-c", str(self.directory / "zonemta.yaml")], self.directory / "log"
        )
        relay.wait_ready()
        return relay

    def signal(self, number: int) -> None:
        os.kill(self.relay.pid, number)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    async def send(self, recipient: str, data: bytes = b"Subject: s\r\n\r\nb\r\n.\r\n") -> None:
        async with await RawClient.connect(self.port) as client:
            await client.ehlo()
            assert (await client.message(data, recipient)).startswith("250")

    def rows(self) -> list[dict[str, object]]:
        return list(ask(self.directory / "queue", ListRequest()))


async def test_alarm_makes_everything_due(directory: Path) -> None:
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.7.1 later", times=1))
        served = Served(directory, stage, zones={"default": {"retry": {"delays": ["1h"]}}})
        try:
            await served.send("x@a.example")
            await until(lambda: [r["state"] for r in served.rows()] == ["deferred"], "a deferral")
            served.signal(signal.SIGALRM)
            await until(lambda: sink.messages, "the delivery")
            await until(  # the delivery may be earlier
                lambda: "flushed: 1 recipients are ready" in served.log(), "the line of the log"
            )
            assert served.relay.stop() == 0
        finally:
            served.relay.kill()


async def test_hangup_with_an_unreadable_configuration(directory: Path) -> None:
    """Nothing changes, the log says why, and mail is delivered."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        served = Served(directory, stage)
        try:
            path = directory / "zonemta.yaml"
            good = path.read_text()
            for number, bad in enumerate(("zones: [", "hostnam: x", None)):
                if bad is None:
                    path.unlink()
                else:
                    path.write_text(bad)
                served.signal(signal.SIGHUP)
                await until(
                    lambda n=number: served.log().count("was not reloaded") == n + 1, "the error"
                )
                await served.send(f"{number}@a.example")
            path.write_text(good)
            served.signal(signal.SIGHUP)
            await until(lambda: "configuration reloaded" in served.log(), "the reload")
            await until(lambda: len(sink.messages) == 3, "the mail")
            assert served.relay.stop() == 0
        finally:
            served.relay.kill()


@pytest.mark.parametrize("grace_s", [20.0, 0.1])
async def test_stop_in_the_middle_of_large_mail(directory: Path, grace_s: float) -> None:
    """20 MB being received and 20 MB being sent: finished within the grace period, or complete after the next start."""
    body = LARGE * (20_000_000 // len(LARGE))
    slow = Rule(Step.DOT, recipient="out@*", stall_s=1.5, times=1)
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", slow)
        served = Served(directory, stage, shutdown_grace=time_limit(grace_s))
        try:
            await served.send("out@a.example", b"Subject: s\r\n\r\n" + body + b".\r\n")
            await until(lambda: any(c for c in sink.connections), "the delivery to begin")
            client = await RawClient.connect(served.port)
            await client.ehlo()
            assert (await client.envelope("in@a.example")).startswith("354")
            await client.send(b"Subject: s\r\n\r\n" + body[: len(body) // 2])
            served.signal(signal.SIGTERM)
            await client.send(body[len(body) // 2 :] + b".\r\n")
            reply = await client.reply()
            client.close()
            assert reply[:3] in (["250"] if grace_s > 1 else ["250", "", "421"])
            assert await asyncio.to_thread(served.relay.process.wait, scaled(40)) == 0
            served.relay.kill()
            expected = {"out@a.example"} | ({"in@a.example"} if reply.startswith("250") else set())
            possible = expected | ({"in@a.example"} if not reply else set())  # it may have been on disk
            served.relay = served.start()
            await until(lambda: expected <= set(sink.tally.by_recipient), "everything acknowledged")
            await until(lambda: not served.rows(), "an empty queue")
            assert served.relay.stop() == 0
        finally:
            served.relay.kill()
        assert expected <= set(sink.tally.by_recipient) <= possible
        wanted = hashlib.sha256(body).digest()
        for message in sink.messages:
            assert hashlib.sha256(message.data.partition(b"\r\n\r\n")[2]).digest() == wanted


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_a_running_relay_is_left_alone(directory: Path, store: str) -> None:
    """LevelDB's own repair takes no lock: it would move the files that the relay writes to."""
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        queue = {"directory": "queue", "min_free_disk": "1MiB", "store": store}
        served = Served(directory, stage, queue=queue, zones={"default": {"retry": {"delays": ["1h"]}}})
        try:
            await served.send("x@a.example")
            await until(lambda: [r["state"] for r in served.rows()] == ["deferred"], "a deferral")
            command = [sys.executable, "-m", "zonemta_py", "queue", "repair", "-c"]
            found = await asyncio.to_thread(
                subprocess.run,
                [*command, str(directory / "zonemta.yaml")],
                capture_output=True,
                text=True,
            )
            assert found.returncode == 111
            assert found.stderr.endswith(f"in use by process {served.relay.pid}\n")
            assert "copy" not in found.stderr
            names = {path.name for path in (directory / "queue").rglob("*")}
            assert not [name for name in names if name == "lost" or "before-repair" in name]
            assert served.relay.stop() == 0
            served.relay = served.start()
            assert [row["state"] for row in served.rows()] == ["deferred"]
        finally:
            served.relay.kill()


async def test_a_mistake_in_the_file_is_no_obstacle(directory: Path) -> None:
    """Commands ask the running relay; without one the mistake is the answer."""
    file = directory / "zonemta.yaml"
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        served = Served(directory, stage, zones={"default": {"retry": {"delays": ["1h"]}}})
        try:
            file.write_text(f"{file.read_text()}zoness: {{}}\n")
            for command, shown in (
                (["status"], "ready      yes"),
                (["suspend", "--zone", "default"], "suspended zone default"),
                (["suspend", "--list"], "default"),
            ):
                found = await asyncio.to_thread(CliRunner().invoke, main, [*command, "-c", str(file)])
                assert found.exit_code == 0, found.output
                assert "zonemta.yaml:" in found.stderr
                assert "zoness: unknown key" in found.stderr
                assert "the running relay has an earlier configuration" in found.stderr
                assert shown in found.stdout
            assert served.relay.stop() == 0
        finally:
            served.relay.kill()
        found = await asyncio.to_thread(CliRunner().invoke, main, ["status", "-c", str(file)])
        assert found.exit_code == 2
        assert found.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_of_the_process_group_during_the_start(directory: Path, number: int) -> None:
    """Ctrl-C and systemd signal every process, also one that is being started: the relay stops in order."""
    async with staged(directory) as stage:
        stage.config(processes={"receivers": 1, "senders": 1})
        command, log = ["serve", "-c", str(directory / "zonemta.yaml")], directory / "log"
        relay = CommandProcess(command, log)
        try:
            await until(lambda: len(process_tree(relay.pid)) > 1, "the first child process")
            for pid in process_tree(relay.pid):
                os.kill(pid, number)
            assert await asyncio.to_thread(relay.process.wait, scaled(40)) == 0
        finally:
            relay.kill()
        assert "Traceback" not in log.read_text()
        assert "stopped in" in log.read_text()
