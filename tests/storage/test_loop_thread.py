"""The event loop behind blocking calls: its results, its errors and its end."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from tests.kit.deadlines import scaled, until, until_blocking
from zonemta_py.core.errors import LocalError
from zonemta_py.storage.remote import LoopThread


async def failing(error: Exception) -> None:
    raise error


def test_errors_of_the_client() -> None:
    """Become LocalError with the label; others are raised as they are."""
    thread = LoopThread("test", "Redis", (OSError,))
    with pytest.raises(LocalError, match=r"^Redis: no route$"):
        thread.run(failing(OSError("no route")))
    with pytest.raises(KeyError):
        thread.run(failing(KeyError("x")))
    thread.close()


def test_callers_of_a_closed_thread() -> None:
    """A caller that waits gets an error, and so does one that comes later."""
    thread = LoopThread("test", "Redis")
    problems: list[Exception] = []

    def ask() -> None:
        try:
            thread.run(asyncio.Event().wait())
        except LocalError as exc:
            problems.append(exc)

    waiting = threading.Thread(target=ask)
    waiting.start()
    until_blocking(lambda: asyncio.all_tasks(thread._loop), "the call")
    thread.close()
    waiting.join()
    ask()
    assert [str(exc) for exc in problems] == ["Redis: the store is closed"] * 2
    thread.close()


async def test_waiters_of_a_closed_thread() -> None:
    """An awaiting task gets the error too, and is not cancelled."""
    thread = LoopThread("test", "Redis")
    task = asyncio.create_task(thread.wait(asyncio.Event().wait()))
    await until(lambda: asyncio.all_tasks(thread._loop), "the call")
    await asyncio.to_thread(thread.close)
    with pytest.raises(LocalError, match="the store is closed"):
        await task
    with pytest.raises(LocalError, match="the store is closed"):
        await thread.wait(asyncio.sleep(0))


async def test_a_waiter_that_is_cancelled() -> None:
    """Its work is cancelled in the thread; the thread goes on."""
    thread = LoopThread("test", "Redis")
    task = asyncio.create_task(thread.wait(asyncio.Event().wait()))
    await until(lambda: asyncio.all_tasks(thread._loop), "the call")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not asyncio.all_tasks(thread._loop), "the work to end")
    assert await thread.wait(asyncio.sleep(0, "answer")) == "answer"
    thread.close()


def test_calls_while_it_is_closed() -> None:
    """Every call returns, whatever the order of calls and close."""
    for _ in range(20):
        thread = LoopThread("test", "Redis")
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(thread.run, asyncio.sleep(0.001)) for _ in range(50)]
            thread.close()
            assert {type(call.exception(30)) for call in calls} <= {LocalError, type(None)}


def test_a_cancellation_that_is_lost() -> None:
    """A client swallows the first one, as it may when the answer comes at the same time; the thread ends."""
    thread, started = LoopThread("redis", "redis"), threading.Event()

    async def stubborn() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    thread.start(stubborn())
    assert started.wait(scaled(30))
    closing = threading.Thread(target=thread.close, daemon=True)
    closing.start()
    until_blocking(lambda: not closing.is_alive(), "the end of the thread")


@pytest.mark.parametrize("failure", [None, OSError("gone")])
def test_the_client_is_disconnected_last(failure: OSError | None) -> None:
    """A request that is cancelled while it connects leaves its connection to ``disconnect``; an error is reported."""
    thread, started, steps = LoopThread("redis", "redis", (OSError,)), threading.Event(), list[str]()

    async def connect() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            steps.append("connected")

    async def disconnect() -> None:
        steps.append("disconnected")
        if failure is not None:
            raise failure

    thread.start(connect())
    assert started.wait(scaled(30))
    with pytest.raises(LocalError, match="redis: gone") if failure else nullcontext():
        thread.close(disconnect)
    assert steps == ["connected", "disconnected"]
    with pytest.raises(LocalError, match="the store is closed"):
        thread.run(asyncio.sleep(0))
