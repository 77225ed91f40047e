"""A message that kills the process each time: held after poison_after starts, other mail is delivered."""

from pathlib import Path

import pytest

from tests.crash.poison import VARIABLE
from tests.kit.deadlines import scaled, until
from tests.kit.relay import logged_events, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import ListRequest
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.core.errors import LocalError

DATA = b"Subject: s\r\n\r\nb\r\n.\r\n"


class Case:
    """A relay with the defect, started again whenever it has died."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.accepted: set[str] = set()
        self.deaths = -1
        self.relay = self.start()

    def start(self) -> CommandProcess:
        self.deaths += 1
        arguments = ["serve", "-c", str(self.directory / "zonemta.yaml"), "--log-level", "warning"]
        relay = CommandProcess(
            arguments, self.directory / "log", "tests.crash.poison", {VARIABLE: "poison@"}
        )
        relay.wait_ready()
        return relay

    def dead(self) -> bool:
        return self.relay.process.poll() is not None

    async def submit(self, address: str) -> None:
        """Submit, unless the relay is killed meanwhile."""
        try:
            async with await RawClient.connect(self.port) as client:
                await client.ehlo()
                if (await client.message(DATA, address)).startswith("250"):
                    self.accepted.add(address)
        except (AssertionError, ConnectionError):
            assert self.dead() or self.relay.process.wait(scaled(5))

    def held(self) -> list[str]:
        try:
            return [row["recipient"] for row in ask(self.directory / "queue", ListRequest(state="held"))]
        except (OSError, ValueError, LocalError):
            return []


@pytest.mark.crash
async def test_a_message_that_kills_the_relay(directory: Path) -> None:
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        port = free_port()
        stage.config(listeners=[{"address": f"127.0.0.1:{port}"}])
        case = Case(directory, port)
        try:
            await case.submit("poison@a.example")
            for number in range(30):
                if case.held():
                    break
                await case.submit(f"{number}@a.example")
                await until(lambda: case.dead() or case.held(), "a death or a hold")
                if case.dead():
                    case.relay.kill()
                    case.relay = case.start()
            assert case.held() == ["poison@a.example"]
            await case.submit("last@a.example")
            wanted = case.accepted - {"poison@a.example"}
            await until(lambda: wanted <= set(sink.tally.by_recipient), "all other recipients")
            assert case.relay.stop() == 0
        finally:
            case.relay.kill()
    assert case.deaths == 3
    assert [f["recipient"] for f in logged_events(directory, "held")] == ["poison@a.example"]
    assert "is held: the relay stopped 3 times" in (directory / "log").read_text()
