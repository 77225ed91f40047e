"""kill -9 of a relay: the warm-up of an address, its pace, and the pool of a rule are as they were."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.test_providers import PROCESSES
from tests.kit.deadlines import scaled, until
from tests.kit.relay import Stage, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import ListRequest, Request, ShapingRequest, WarmupRequest
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.core import clock

NEW, LAST = "127.0.0.31", "127.0.0.33"
TEXT = b"Subject: hi\r\n\r\nbody\r\n.\r\n"
BLOCKED = "451 4.7.1 your IP is blocked for its bad reputation"
DAY_MS, TEST_MS = 86_400_000, 10 * 60_000

pytestmark = [pytest.mark.crash, pytest.mark.timeout(scaled(120))]


class Killed:
    """A relay that is a process of its own, with the provider ``big``."""

    def __init__(self, stage: Stage, processes: tuple[int, int], **changes: Any) -> None:
        directory, self.port = stage.directory, free_port()
        table = {"providers": {"big": {"mx": ["*.big.example"], "limits": {"sessions": 10}}}}
        (directory / "providers.yaml").write_text(yaml.safe_dump(table))
        config = stage.config(
            listeners=[{"address": f"127.0.0.1:{self.port}"}],
            providers={"file": "providers.yaml", "shipped": False},
            processes={"receivers": processes[0], "senders": processes[1]},
            **changes,
        )
        self._queue, self._path = config.queue.directory, directory / "killed.yaml"
        self._path.write_text(config.text)
        self._process: CommandProcess | None = None

    async def start(self) -> None:
        log = self._path.with_suffix(".log")
        self._process = CommandProcess(["serve", "-c", str(self._path)], log)
        await asyncio.to_thread(self._process.wait_ready)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def submit(self, *recipients: str) -> None:
        async with await RawClient.connect(self.port) as client:
            await client.ehlo()
            for recipient in recipients:
                assert (await client.message(TEXT, recipient)).startswith("250")

    def rows(self, request: Request) -> list[dict[str, Any]]:
        return list(ask(self._queue, request))


@asynccontextmanager
async def killed(stage: Stage, processes: tuple[int, int], **changes: Any) -> AsyncIterator[Killed]:
    relay = Killed(stage, processes, **changes)
    try:
        await relay.start()
        yield relay
    finally:
        relay.kill()


@pytest.mark.parametrize("processes", PROCESSES)
async def test_the_number_of_the_day(directory: Path, processes: tuple[int, int]) -> None:
    """What the dead relay had sent counts; the rest still waits for tomorrow."""
    if DAY_MS - clock.now_ms() % DAY_MS < TEST_MS:
        pytest.skip("the day (UTC) ends during the test")
    entry = {"address": NEW, "begins": clock.utc(clock.now_ms()).date(), "daily": [5, 10]}
    (directory / "warmup.yaml").write_text(yaml.safe_dump([entry]))
    pools = {"default": [{"address": NEW}]}
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"])
        async with killed(stage, processes, warmup={"file": "warmup.yaml"}, pools=pools) as relay:
            await relay.submit(*(f"u{n}@d.example" for n in range(8)))
            await until(lambda: len(big.accepted) == 5, "the number of the day")
            await until(lambda: len(relay.rows(ListRequest())) == 3, "the settles of what was sent")
            relay.kill()
            await relay.start()
            await relay.submit("late@d.example")

            def reasons() -> set[str]:
                return {(row["why"] or {}).get("name", "") for row in relay.rows(ListRequest())}

            await until(lambda: reasons() == {"warmup"}, "all that is left waits for tomorrow")
            [row] = relay.rows(WarmupRequest())
            assert (row["sent"], row["left"], len(big.accepted)) == (5, 0, 5)


async def test_paces_and_pools(directory: Path) -> None:
    """An address that was paused stays so until the same moment, and mail leaves from the pool of the rule."""
    rules = [
        {"name": "pause", "class": "blocked", "action": "suspend", "for": "1h"},
        {"name": "away", "class": "blocked", "action": "pool", "pool": "last", "for": "1h"},
    ]
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": rules}))
    changes = {
        "shaping": {"file": "shaping.yaml", "shipped": False},
        "pools": {"default": [{"address": NEW}], "last": [{"address": LAST}]},
        "zones": {"default": {"retry": {"delays": ["200ms"]}}},
    }
    async with staged(directory) as stage:
        big = await stage.provider("big", ["d.example"], block={"at": "mail"})
        big.block(NEW, BLOCKED)
        async with killed(stage, (0, 0), **changes) as relay:
            await relay.submit("one@d.example")
            await until(lambda: not relay.rows(ListRequest()), "it leaves from the other pool")

            def way() -> dict[str, Any]:
                [row] = [row for row in relay.rows(ShapingRequest()) if row["address"] == NEW]
                names = ("paused_until_ms", "pace_sessions", "pace_per_min", "reroutes", "cause")
                return {name: row[name] for name in names}

            before = way()
            assert before["paused_until_ms"] > clock.now_ms() + 3_000_000
            assert [each["to"] for each in before["reroutes"]] == ["last"]
            refused = big.account(NEW).refused.total()
            relay.kill()
            big.unblock(NEW)
            await relay.start()
            await relay.submit("two@d.example")
            await until(lambda: len(big.accepted) == 2, "the next mail")
            assert json.dumps(way()) == json.dumps(before)
            assert big.account(LAST).messages == 2
            assert big.account(NEW).refused.total() == refused
