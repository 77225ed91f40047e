"""One list of parts: started in its order, reconfigured along it, stopped in reverse."""

from pathlib import Path

import pytest

from zonemta_py.config.hooks import NO_HOOKS
from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError
from zonemta_py.relay.parts import NewConfig, Part, Parts, Prepared

CONFIG = parse_config("hostname: relay.example\n", Path("z.yaml"))


class Recorder:
    """Parts that note what is done with them; ``fails``: the steps that do not work."""

    def __init__(self, *fails: str) -> None:
        self.done: list[str] = []
        self._fails = fails

    def note(self, step: str) -> None:
        self.done.append(step)
        if step in self._fails:
            raise ConfigError(step)

    def part(self, name: str) -> Part:
        async def start() -> None:
            self.note(f"start {name}")

        async def drain(grace_s: float) -> None:
            self.note(f"drain {name}")

        async def close() -> None:
            self.note(f"close {name}")

        def prepare(new: NewConfig) -> Prepared:
            self.note(f"prepare {name}")
            return Prepared(lambda: self.note(f"apply {name}"), [f"{name}.file"])

        async def follow(new: NewConfig) -> None:
            self.note(f"follow {name}")

        def check(new: NewConfig) -> None:
            self.note(f"check {name}")

        return Part(name, start, drain, close, prepare, check, follow)

    def parts(self) -> Parts:
        return Parts([self.part("a"), self.part("b")])


async def test_start_and_stop() -> None:
    recorder = Recorder()
    parts = recorder.parts()
    await parts.start()
    await parts.stop(1.0)
    steps = ["start a", "start b", "drain b", "drain a", "close b", "close a"]
    assert recorder.done == steps


async def test_only_what_was_begun_is_stopped() -> None:
    """The part that did not start is closed, too; those behind it are not."""
    recorder = Recorder("start a")
    parts = recorder.parts()
    with pytest.raises(ConfigError):
        await parts.start()
    await parts.stop(1.0)
    assert recorder.done == ["start a", "drain a", "close a"]


async def test_a_new_configuration() -> None:
    """Each step goes through all parts before the next one begins."""
    recorder = Recorder()
    parts = recorder.parts()
    new, prepared = parts.prepare(CONFIG, NO_HOOKS)
    parts.apply(new, prepared)
    await parts.follow(new)
    steps = ("prepare", "check", "apply", "follow")
    assert recorder.done == [f"{step} {name}" for step in steps for name in "ab"]
    assert [key for each in prepared for key in each.changed] == ["a.file", "b.file"]
    assert new.config.hostname == new.hostname == "relay.example"


@pytest.mark.parametrize("step", ["prepare b", "check b"])
async def test_a_configuration_that_cannot_be_used(step: str) -> None:
    """Nothing of it is applied."""
    recorder = Recorder(step)
    parts = recorder.parts()
    with pytest.raises(ConfigError):
        parts.apply(*parts.prepare(CONFIG, NO_HOOKS))
    assert not any(done.startswith("apply") for done in recorder.done)
