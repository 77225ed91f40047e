"""How many processes there are, and that one which ends is replaced: on real processes."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled, until
from tests.processes.test_child import EchoChild
from zonemta_py.config.hooks import Hooks
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.processes.supervisor import ProcessSupervisor, cores, process_counts

AUTO = "processes: {receivers: auto, senders: auto}"


@pytest.mark.parametrize(
    ("cores_here", "expected"),
    [(1, (0, 0)), (2, (1, 0)), (3, (1, 0)), (4, (1, 1)), (8, (2, 2)), (16, (4, 4)), (128, (4, 4))],
)
def test_auto_depends_on_cores(cores_here: int, expected: tuple[int, int]) -> None:
    assert process_counts(parse_config(AUTO, Path("z.yaml")), cores_here) == expected


def test_a_number_is_used_as_it_is() -> None:
    config = parse_config("processes: {receivers: 3, senders: auto}", Path("z.yaml"))
    assert process_counts(config, 8) == (3, 2)
    assert process_counts(parse_config("{}", Path("z.yaml")), 8) == (2, 2)


def test_one_process_for_policies() -> None:
    """Their functions may keep a state, and those of a program are nowhere else."""
    config = parse_config("policies: [a.b]", Path("z.yaml"))
    assert process_counts(config, 8) == (0, 2)
    assert process_counts(parse_config("{}", Path("z.yaml")), 8, Hooks(policies=[len])) == (0, 2)


def test_one_process_for_a_configuration_that_is_not_its_text() -> None:
    """The others read the text, and would use another configuration."""
    config = replace(parse_config("{}", Path("z.yaml")), hostname="other.example")
    assert process_counts(config, 8) == (0, 0)
    assert process_counts(Config(), 8) == (2, 2)
    asked = replace(parse_config("processes: {senders: 1}", Path("z.yaml")), hostname="other.example")
    with pytest.raises(ConfigError, match="was changed by the program"):
        process_counts(asked, 8)


def test_without_listeners() -> None:
    assert process_counts(parse_config("listeners: []", Path("z.yaml")), 8) == (0, 2)


def test_every_receiver_has_room_for_a_session() -> None:
    few = "listeners: [{address: 127.0.0.1:2525, max_sessions: 2}]\n"
    assert process_counts(parse_config(few + AUTO, Path("z.yaml")), 64) == (2, 4)
    with pytest.raises(ConfigError, match=r"z.yaml:2: processes.receivers: found 3, more than"):
        parse_config(few + "processes: {receivers: 3}", Path("z.yaml"))


def test_neither_a_number_nor_auto() -> None:
    for wrong in ("many", "65", "-1", "1.5", "true"):
        with pytest.raises(ConfigError, match="a number from 0 to 64, or auto"):
            parse_config(f"processes: {{senders: {wrong}}}", Path("z.yaml"))


def test_cores() -> None:
    assert cores() >= 1


class EchoPool:
    """Echo processes; the next ``failures`` starts fail."""

    def __init__(self, size: int) -> None:
        self.supervisor = ProcessSupervisor("test", size, self._launch)
        self.failures = 0
        self.error: Exception = OSError("no more processes")
        self.starts: list[int] = []
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def _launch(self, slot: int) -> EchoChild:
        self.starts.append(slot)
        await self.may_start.wait()
        if self.failures:
            self.failures -= 1
            raise self.error
        child = EchoChild(slot, self.supervisor.on_lost)
        await child.start("warning")
        return child

    def kill(self, slot: int) -> int:
        [child] = [child for child in self.supervisor.children if child.slot == slot]
        os.kill(child.pid, signal.SIGKILL)
        return child.pid

    def pids(self) -> set[int]:
        return {child.pid for child in self.supervisor.children}


async def test_a_killed_process_is_replaced_in_its_slot() -> None:
    pool = EchoPool(2)
    await pool.supervisor.start()
    try:
        assert sorted(pool.starts) == [0, 1]
        killed = pool.kill(1)
        await until(lambda: killed not in pool.pids() and len(pool.pids()) == 2, "another process")
        assert pool.starts[2:] == [1]
        assert sorted(child.slot for child in pool.supervisor.children) == [0, 1]
    finally:
        await pool.supervisor.close()
    assert pool.pids() == set()


async def test_available_while_there_is_a_child() -> None:
    pool = EchoPool(1)
    assert not pool.supervisor.available.is_set()
    await pool.supervisor.start()
    try:
        assert pool.supervisor.available.is_set()
        pool.kill(0)
        await until(lambda: not pool.supervisor.available.is_set(), "the loss of the only child")
        async with asyncio.timeout(scaled(30)):
            await pool.supervisor.available.wait()
    finally:
        await pool.supervisor.close()


async def test_a_start_that_fails_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    pool = EchoPool(2)
    await pool.supervisor.start()
    try:
        assert pool.supervisor.missing() == ""
        pool.failures, pool.error = 2, ValueError("no more processes")
        pool.kill(0)
        await until(lambda: pool.failures == 1, "a failed start")
        assert pool.supervisor.missing() == "test 0"
        await until(lambda: pool.failures == 0 and len(pool.pids()) == 2, "the third start")
        assert pool.starts[2:] == [0, 0, 0]
        assert caplog.text.count("test 0 cannot be started: no more processes") == 2
    finally:
        await pool.supervisor.close()


async def test_the_first_start_must_succeed() -> None:
    pool = EchoPool(1)
    pool.failures = 1
    with pytest.raises(LocalError, match="a test process cannot be started: no more processes"):
        await pool.supervisor.start()
    await pool.supervisor.close()


async def test_stopped_it_replaces_no_process() -> None:
    pool = EchoPool(1)
    await pool.supervisor.start()
    pool.supervisor.stop_restarting()
    pool.kill(0)
    await until(lambda: not pool.pids(), "its end")
    await pool.supervisor.close()
    assert pool.starts == [0]


async def test_stopped_while_one_is_being_started() -> None:
    """Its start is given up: what ends the others, such as the sockets that they listen on, is gone by then."""
    pool = EchoPool(1)
    await pool.supervisor.start()
    pool.may_start.clear()
    pool.kill(0)
    await until(lambda: pool.starts == [0, 0], "the second start")
    pool.supervisor.stop_restarting()
    pool.may_start.set()
    await pool.supervisor.close()
    assert pool.pids() == set()
