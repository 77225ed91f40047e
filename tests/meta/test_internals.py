"""docs/internals.md draws the way of a message: a real message takes it, and the drawing must agree."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import zonemta_py
from tests.kit.relay import empty, relaying, send, staged

PACKAGE = Path(zonemta_py.__file__).parent
DOCS = PACKAGE.parent / "docs" / "internals.md"
FILES_MAX = 8

Step = tuple[str, str]  # file below the package, function


def _drawing(title: str) -> list[Step]:
    text = DOCS.read_text()
    section = text[text.index(f"### {title}") :]
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (.+) \|$", re.split(r"\n#|\n```", section[1:])[0], re.M)
    return [(file, name) for file, names in rows for name in re.findall(r"`(\w+)`", names)]


@contextmanager
def _calls() -> Iterator[list[Step]]:
    """The calls of the package's functions on this thread, in order."""
    calls: list[Step] = []
    prefix = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            calls.append((frame.f_code.co_filename[len(prefix) :], frame.f_code.co_name))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("title", ["Accept", "Deliver", "Settle"])
def test_a_step_is_short_and_its_functions_exist(title: str) -> None:
    steps = _drawing(title)
    assert len({file for file, _ in steps}) <= FILES_MAX
    assert steps
    for file, name in steps:
        source = (PACKAGE / file).read_text()
        assert re.search(rf"^ *(async )?def {name}\b", source, re.M), f"{file}: no function {name}"


async def test_a_message_takes_the_drawn_way(directory: Path) -> None:
    """Each listed function is called, the first time after the one before it."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        config = stage.config(processes={"receivers": 0, "senders": 0})
        async with relaying(config) as relay:
            with _calls() as calls:
                await send(relay, ["x@a.example"])
                await empty(relay)
    at = 0
    for title in ("Accept", "Deliver", "Settle"):
        if title != "Accept":
            at = calls.index(_drawing(title)[0], at)
        for step in _drawing(title):
            assert step in calls[at:], f"{title}: {step} is not called after the steps before it"
            at = calls.index(step, at)
