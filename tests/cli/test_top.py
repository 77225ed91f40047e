"""`zonemta top`: what keys do, what the screen shows, and all of it in a real terminal."""

import asyncio
import io
import os
import pty
import select
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.kit.deadlines import scaled
from tests.kit.relay import empty, relaying, send, staged
from zonemta_py.cli.top import COLUMNS, Screen, keys_in, merged, render
from zonemta_py.core.model import STATES

ROWS: list[dict[str, Any]] = [
    {"name": name, **dict.fromkeys(COLUMNS, 0), "attempts": attempts, "bounced": bounced}
    for name, attempts, bounced in (("a.example", 5, 0), ("b.example", 9, 1), ("c.test", 1, 7))
]
STATUS: dict[str, Any] = {
    "version": "1", "hostname": "relay.example", "since_ms": 1, "not_ready": [], "queue": dict.fromkeys(STATES, 0),
    "sessions_in": 1, "sessions_out": 2, "unreachable": 1, "suspended_sending": ["zone:bulk"],
    "unreachable_destinations": [{"zone": "bulk", "destination": "b.example", "why": {
        "name": "unreachable", "reason": "no\x1b[2J route", "since_ms": 0, "until_ms": 0, "key": "",
    }}],
}  # fmt: skip


def names(screen: Screen) -> list[str]:
    return [row["name"] for row in screen.visible(ROWS)]


def press(screen: Screen, *keys: str) -> Screen:
    for key in keys:
        screen.press(key, names(screen))
    return screen


def test_keys() -> None:
    assert names(Screen()) == ["b.example", "a.example", "c.test"]
    assert names(press(Screen(), "o", "o", "o")) == ["c.test", "b.example", "a.example"]
    assert names(press(Screen(), "/", *"EXA")) == ["b.example", "a.example"]
    assert names(press(Screen(), "/", "x", "backspace", "t", "e", "s", "enter")) == ["c.test"]
    assert names(press(Screen(), "/", "c", "escape")) == ["b.example", "a.example", "c.test"]
    assert names(press(Screen(), "down", "enter")) == ["a.example"]
    assert len(names(press(Screen(), "down", "enter", "enter"))) == 3
    assert len(names(press(Screen(), "enter", "escape"))) == 3
    assert press(Screen(), "down", "down", "down", "down", "up").selected == 1
    screen = press(Screen(), "d", "6", "q")
    assert (screen.view, screen.minutes, screen.done) == ("destination", 60, True)
    assert press(Screen(), "enter").opened == "b.example"


def test_the_screen() -> None:
    """What a stranger's server replied does not command the terminal."""
    console = Console(file=(file := io.StringIO()), width=120, height=20)
    console.print(render(Screen(), STATUS, ROWS, 20))
    text = file.getvalue()
    assert "b.example" in text
    assert "bulk/b.example: unreachable: no [2J route" in text
    assert "\x1b[2J" not in text


def test_what_waits_without_an_attempt_is_shown() -> None:
    """Also in a terminal of 80 columns, with names of any length."""
    attempted = [{"name": "a" * 70, **dict.fromkeys(COLUMNS, 987_654), "attempts": 1}]
    del attempted[0]["queued"], attempted[0]["suspended"]
    rows = Screen().visible(merged(attempted, {"bulk": (200, 150), "a" * 70: (7, 0)}))
    assert [(row["name"][:4], row["attempts"], row["queued"], row["suspended"]) for row in rows] == [
        ("aaaa", 1, 7, 0), ("bulk", 0, 200, 150)
    ]  # fmt: skip
    console = Console(file=(file := io.StringIO()), width=80, height=20)
    console.print(
        render(Screen(), STATUS, Screen().visible(merged([], {"bulk": (200_000, 150_000)})), 20)
    )
    text = file.getvalue()
    assert "suspended by an operator: zone bulk" in text
    [title] = [line for line in text.splitlines() if "zone (1 min)" in line]
    assert title.split()[3:] == ["tried▼", *list(COLUMNS.values())[1:]]
    [line] = [line for line in text.splitlines() if line.startswith("bulk ")]
    assert line.split()[-2:] == ["200,000", "150,000"]


async def test_in_a_terminal(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        async with relaying(stage.config()) as relay:
            await send(relay, ["u@a.example"])
            await empty(relay)
            command = [sys.executable, "-m", "zonemta_py", "top", "-c", str(directory / "zonemta.yaml")]
            text = await asyncio.to_thread(_in_terminal, command)
    assert "relay.example" in text
    assert "a.example" in text


def _in_terminal(command: list[str]) -> str:
    """What ``command`` writes to a terminal until it shows the destination, then it gets a q."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 120))
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(theirs)
        text, end_s = "", time.monotonic() + scaled(30)
        while "a.example" not in text and time.monotonic() < end_s:
            if select.select([ours], [], [], 1.0)[0]:
                text += os.read(ours, 65_536).decode("utf-8", "replace")
            if "relay.example" in text:
                os.write(ours, b"d")  # what is typed before the first screen is lost
        os.write(ours, b"q")
        with suppress(OSError):  # the end of a terminal
            while os.read(ours, 65_536):
                pass
        assert process.wait(scaled(30)) == 0
    os.close(ours)
    return text


def test_keys_that_came_together() -> None:
    assert keys_in("dq\x1b[A\x1b[B\x1b\r\x7f\x1b[5~é") == [
        "d", "q", "up", "down", "escape", "enter", "backspace", "\x1b[5~", "é"
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["", "x", "é"])
def test_other_keys_change_nothing(key: str) -> None:
    assert press(Screen(), key) == Screen()
