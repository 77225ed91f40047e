"""``zonemta tail`` and ``trace``: a program that follows them learns that the relay has stopped."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.kit.relay import relaying, staged
from zonemta_py.cli.ask import following
from zonemta_py.cli.main import main
from zonemta_py.transports.tracing import TRACER


@pytest.mark.parametrize("command", [("tail",), ("trace", "a.example")])
async def test_the_end_of_the_relay_is_an_error(directory: Path, command: tuple[str, ...]) -> None:
    async with staged(directory) as stage:
        config = stage.config(processes={"receivers": 0, "senders": 0})
        async with relaying(config) as relay:
            assert relay.admin is not None
            stream = relay.admin._sources.stream
            arguments = [*command, "-c", str(config.path)]
            follower = asyncio.create_task(asyncio.to_thread(CliRunner().invoke, main, arguments))
            await until(lambda: bool(stream._watchers or TRACER.targets), "the watch")
        found = await follower
        assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
        assert found.stderr.startswith("error: the relay ")


def test_an_interrupt_by_the_user_is_none() -> None:
    with pytest.raises(SystemExit) as found, following():
        raise KeyboardInterrupt
    assert found.value.code == 0


def test_an_unknown_event_is_wrong_usage(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["tail", "-c", str(tmp_path / "z.yaml"), "--event", "bouncd"])
    assert (found.exit_code, "'bounced'" in found.stderr) == (2, True)
