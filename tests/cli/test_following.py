"""``zonemta tail`` and ``trace``: a program that follows them learns that the relay has stopped."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.kit.relay import relaying, staged
from zonemta_py.cli.main import main
from zonemta_py.cli.queue.access import following
from zonemta_py.transports.tracing import TRACER


async def test_the_end_of_the_relay_is_an_error(directory: Path) -> None:
    async with staged(directory) as stage:
        config = stage.config(processes={"receivers": 0, "senders": 0})
        async with relaying(config) as relay:
            assert relay.admin is not None
            stream = relay.admin._sources.stream
            followers = [
                asyncio.create_task(asyncio.to_thread(CliRunner().invoke, main, [*each, "-c", str(config.path)]))
                for each in (["tail"], ["trace", "a.example"])
            ]  # fmt: skip
            await until(lambda: bool(stream._watchers and TRACER.targets), "both")
        for found in await asyncio.gather(*followers):
            assert found.exit_code == 1
            assert found.stderr.startswith("error: the relay ")
            assert found.stderr.count("\n") == 1


def test_an_interrupt_by_the_user_is_none() -> None:
    with pytest.raises(SystemExit) as found, following():
        raise KeyboardInterrupt
    assert found.value.code == 0
