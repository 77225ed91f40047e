"""Transports without sessions: maildirs, programs, Python functions, the black hole."""

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import scaled, until
from tests.kit.local_transport import STORED, delivered, local_message
from tests.simulation.disk import Disk, in_use
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.runtime import loop_factory
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports import local
from zonemta_py.transports.local import (
    BlackholeTransport,
    LocalMessage,
    MaildirTransport,
    PythonTransport,
    Unanswered,
    lines,
    parts,
)
from zonemta_py.transports.pipe import TEMPORARY, PipeTransport, verdict_of


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_line_ends(body: bytes, cuts: list[int]) -> None:
    """However the body is cut into chunks, CRLF becomes LF and nothing else changes."""
    places = sorted({0, len(body), *(min(cut, len(body)) for cut in cuts)})
    chunks = [body[a:b] for a, b in pairwise(places)]

    async def joined() -> bytes:
        return b"".join([piece async for piece in lines(local_message(*chunks))])

    assert asyncio.run(joined()) == STORED + body.replace(b"\r\n", b"\n")


def test_parts() -> None:
    assert parts("joe+news@b.example") == {
        "recipient": "joe+news@b.example", "user": "joe", "domain": "b.example", "extension": "news",
    }  # fmt: skip
    assert parts("+x@b.example")["user"] == "+x"


# ---- maildir


async def test_a_maildir(tmp_path: Path) -> None:
    """In ``new``, whole, with the fields of final delivery; a second delivery of the same replaces it."""
    transport = MaildirTransport(str(tmp_path / "{domain}" / "{user}"), create=True, hostname="relay/x")
    for _ in range(2):
        reply = await delivered(transport, b"one\r", b"\ntwo\r\n", recipient="joe@b.example")
        assert reply.code == 250
    [path] = (tmp_path / "b.example" / "joe" / "new").iterdir()
    assert path.read_bytes() == STORED + b"one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list((tmp_path / "b.example" / "joe" / "tmp").iterdir()) == []


@pytest.mark.parametrize("recipient", ["../../etc/x@b.example", "a/b@b.example", ".x@b.example", "x@../y", "\0@b.example"])  # fmt: skip
async def test_an_address_that_cannot_be_a_directory(tmp_path: Path, recipient: str) -> None:
    transport = MaildirTransport(str(tmp_path / "{domain}" / "{user}"), create=True, hostname="h")
    reply = await delivered(transport, b"x", recipient=recipient)
    assert (reply.code, reply.status) == (550, "5.1.3")
    assert list(tmp_path.iterdir()) == []


async def test_a_new_maildir_after_a_power_cut(tmp_path: Path) -> None:
    """A message that was delivered is there, with the directories that were made for it."""
    disk, place = Disk(tmp_path / "removed", Random(1)), tmp_path / "mail"
    for each in (tmp_path / "removed", place):
        each.mkdir()
    disk.settle(place)
    with in_use(disk):
        transport = MaildirTransport(str(place / "{domain}" / "{user}"), create=True, hostname="h")
        for life in range(2):  # the second time it was removed meanwhile
            assert (await delivered(transport, b"x\r\n")).code == 250
            for seed in range(10):
                image = tmp_path / f"image-{life}-{seed}"
                disk.image(place, image, Random(seed))
                assert len(list(image.glob("*/*/new/*"))) == 1
            for directory in list(place.iterdir()):
                shutil.rmtree(directory)


async def test_a_maildir_that_is_not_there(tmp_path: Path) -> None:
    """Its mail is tried again later: the disk may not be mounted."""
    reply = await delivered(MaildirTransport(str(tmp_path / "no"), create=False, hostname="h"), b"x")
    assert (reply.code, reply.status) == (451, "4.3.0")
    assert str(tmp_path) not in reply.text, "a report quotes it to the sender"


async def test_a_body_that_ends_too_soon(tmp_path: Path) -> None:
    """An exception of the queue propagates, and no file is left behind."""

    async def damaged() -> AsyncIterator[bytes]:
        yield b"half"
        raise ValueError("damaged")

    transport = MaildirTransport(str(tmp_path), create=True, hostname="h")
    with pytest.raises(ValueError, match="damaged"):
        await transport.deliver(local_message()._replace(body=damaged))
    assert list((tmp_path / "tmp").iterdir()) == list((tmp_path / "new").iterdir()) == []


# ---- programs


def program(code: str, *arguments: str, timeout_s: float = 20.0) -> PipeTransport:
    return PipeTransport((sys.executable, "-c", code, *arguments), scaled(timeout_s))


async def test_a_program(tmp_path: Path) -> None:
    """It gets the message and its arguments unchanged: no shell parses them."""
    code = "import sys; open(sys.argv[1], 'wb').write('|'.join(sys.argv[2:]).encode() + b'|' + sys.stdin.buffer.read())"
    out = tmp_path / "out"
    transport = program(code, str(out), "{sender}", "{user}", "{extension}", "{domain}", "{message}")
    recipient = "joe+$(touch${IFS}x);`id`@b.example"
    assert (await delivered(transport, b"hi\r\n", recipient=recipient)).code == 250
    head, _, rest = out.read_bytes().partition(b"|Return-Path")
    assert head == b"s@a.example|joe|$(touch${IFS}x);`id`|b.example|" + b"0" * 24
    assert rest.endswith(b"\n\nhi\n")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("import sys; sys.exit(75)", "4.3.0", 451),
        ("import sys; sys.exit(67)", "5.1.1", 550),
        ("import sys; sys.exit(1)", "4.3.0", 451),
        ("import sys; sys.exit(2)", "5.3.0", 550),
        ("import sys; sys.exit(127)", "4.3.5", 451),
        ("print('5.1.1 no such user'); raise SystemExit(1)", "5.1.1", 550),
        ("print('4.2.2 full'); raise SystemExit(1)", "4.2.2", 451),
        ("import os; os.kill(os.getpid(), 9)", "4.3.0", 451),
        ("import sys; sys.stdout.write('x' * 10_000_000); sys.exit(75)", "4.3.0", 451),
    ],
)
async def test_results_of_a_program(code: str, status: str, kind: int) -> None:
    """Exit code, output and signal; it need not read its input, and only the start of its output is kept."""
    reply = await delivered(program(code), b"x" * 1_000_000)
    assert (reply.code, reply.status) == (kind, status)
    assert len(reply.text) <= 1024


async def test_a_program_that_takes_too_long(tmp_path: Path) -> None:
    """It is killed together with its children, and the mail is tried again later."""
    waits = "import signal; signal.pause()"
    code = f"import pathlib, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {waits!r}]); pathlib.Path(sys.argv[1]).write_text(str(child.pid)); {waits}"
    reply = await delivered(program(code, str(tmp_path / "pid"), timeout_s=2.0), b"x")
    assert (reply.code, reply.status) == (451, "4.4.7")
    assert isinstance(reply, Unanswered)
    child = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    await until(lambda: not child.exists() or ") Z " in child.read_text(), "the end of its child")


@pytest.mark.parametrize("factory", [None, loop_factory()])
@pytest.mark.parametrize("holds", ["stdout", "stdin"])
def test_a_child_that_goes_on(
    tmp_path: Path, holds: str, factory: type[asyncio.AbstractEventLoop] | None
) -> None:
    """The program has ended, and its code counts: not the time limit, after which it would run again."""
    waits = "import signal; signal.pause()"
    other = (
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
        if holds == "stdin"
        else "stdin=subprocess.DEVNULL"
    )
    code = f"import pathlib, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {waits!r}], {other}); pathlib.Path(sys.argv[1]).write_text(str(child.pid)); print('5.1.1 no such user', flush=True); sys.exit(67)"
    transport = program(code, str(tmp_path / "pid"), timeout_s=60.0)
    with asyncio.Runner(loop_factory=factory) as runner:
        reply = runner.run(delivered(transport, b"x" * 1_000_000))
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (reply.code, reply.status, reply.text) == (550, "5.1.1", "no such user")


async def test_a_program_that_is_not_there() -> None:
    reply = await delivered(PipeTransport(("/nowhere/deliver",), scaled(5.0)), b"x")
    assert (reply.code, reply.status) == (451, "4.3.5")
    assert "No such file" in reply.text
    assert not isinstance(reply, Unanswered)


@given(st.integers(-64, 255), st.text(max_size=100))
def test_every_verdict_is_a_reply(code: int, said: str) -> None:
    reply = verdict_of(code, said, TEMPORARY)
    assert reply.code in (250, 451, 550)
    assert (reply.code == 250) == (code == 0)
    assert reply.status.startswith(str(reply.code)[0])
    assert reply.text.isprintable()


# ---- functions

calls: list[str] = []


def in_a_thread(found: LocalMessage) -> None:
    calls.append(found.recipient)


async def on_the_loop(found: LocalMessage) -> Reply:
    size = sum([len(chunk) async for chunk in found.body()])
    return Reply(550, "5.3.4", f"{size} are too many")


def fails(found: LocalMessage) -> None:
    raise ValueError("a defect")


def odd(found: LocalMessage) -> str:
    return "done"


def malformed(found: LocalMessage) -> Reply:
    return Reply(cast(int, "250"), "2.0.0", "done")


go_on = threading.Event()
names: list[str] = []


def hangs(found: LocalMessage) -> None:
    names.append(threading.current_thread().name)
    go_on.wait()


async def test_functions_that_hang_do_not_take_the_threads_of_others() -> None:
    """The loop's only thread is free for maildirs and the queue; the transport is closed without waiting."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    transport = PythonTransport(f"{__name__}.hangs", 60.0)
    delivery = asyncio.create_task(delivered(transport, b"x"))
    try:
        await until(lambda: names, "the function")
        assert names[0].startswith(f"{__name__}.hangs")
        async with asyncio.timeout(scaled(5.0)):
            await asyncio.to_thread(int)
        transport.close()
        assert not delivery.done()
    finally:
        go_on.set()
        await delivery


async def never(found: LocalMessage) -> None:
    await asyncio.Event().wait()


async def test_a_function_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have delivered the message, unless it was not called: the threads of others are all there are."""
    reply = await delivered(PythonTransport(f"{__name__}.never", 0.05), b"x")
    assert isinstance(reply, Unanswered)
    monkeypatch.setattr(local, "THREADS", 1)
    go_on.clear()
    transport = PythonTransport(f"{__name__}.hangs", 0.05)
    try:
        assert isinstance(await delivered(transport, b"x"), Unanswered)
        reply = await delivered(transport, b"x")
        assert (reply.code, type(reply)) == (451, Reply)
    finally:
        go_on.set()
        transport.close()


async def test_functions() -> None:
    assert (await delivered(PythonTransport(f"{__name__}.in_a_thread", 5.0), b"x")).code == 250
    assert calls == ["joe@b.example"]
    assert await delivered(PythonTransport(f"{__name__}.on_the_loop", 5.0), b"xy") == Reply(550, "5.3.4", "2 are too many")  # fmt: skip
    for name in ("fails", "odd", "malformed"):
        reply = await delivered(PythonTransport(f"{__name__}.{name}", 5.0), b"x")
        assert reply.code == 451
    with pytest.raises(ConfigError, match="no function"):
        PythonTransport("tests.nothing.here", 5.0)
    with pytest.raises(ConfigError, match="is not a function"):
        PythonTransport(f"{__name__}.calls", 5.0)


async def test_the_black_hole() -> None:
    assert (await delivered(BlackholeTransport(0.001), b"x")).code == 250
