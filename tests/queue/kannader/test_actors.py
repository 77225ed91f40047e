"""Four actors on one storage at once, on every store, with restarts in the middle of their calls."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.kit.deadlines import scaled
from tests.kit.queue import Clock, make_queue, problems
from tests.queue.kannader.test_storage import LATER, listed, put
from zonemta_py.queue.kannader.storage import PendingCleanupMail, QueuedMail, Storage
from zonemta_py.queue.queue import Queue


class Actors(RuleBasedStateMachine):
    """Four actors whose calls overlap in any way, and a restart in the middle of them.

    Every committed destination is in exactly one place: queued, in flight, or done.
    """

    store = "leveldb"

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="zonemta-kannader-"))
        self.committed: set[str] = set()
        self.done: set[str] = set()
        self.tasks: list[asyncio.Task[Any]] = []
        self._open()

    def _open(self) -> None:
        async def start() -> tuple[Queue, Storage]:
            queue = make_queue(self.directory, Clock(), store=self.store)
            queue.commits.start()
            return queue, Storage(queue)

        self.queue, self.storage = self.runner.run(start())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def spawn() -> None:
            self.tasks.append(asyncio.ensure_future(work))

        self.runner.run(spawn())

    @precondition(lambda self: len(self.tasks) < 4)
    @rule(count=st.integers(1, 3), size=st.sampled_from([0, 100, 70_000]))
    def enqueue(self, count: int, size: int) -> None:
        async def work() -> None:
            content = b"A: 1\r\n\r\n" + b"x" * size + b"\r\n.\r\n"
            mails = await put(self.storage, *(f"{i}@x.example" for i in range(count)), content=content)
            self.committed |= {mail.id for mail in mails}

        self._spawn(work())

    @precondition(lambda self: len(self.tasks) < 4)
    @rule(
        which=st.integers(0, 5),
        what=st.sampled_from(["done", "cancel", "drop", "reschedule", "leave"]),
    )
    def act(self, which: int, what: str) -> None:
        """Take a mail, or the lease of another actor, and act on it; others may do so at the same time."""

        async def work() -> None:
            storage = self.storage
            queued = [m async for m in storage.list_queue() if isinstance(m, QueuedMail)]
            flying = [m async for m in storage.find_inflight()]
            if what in ("drop", "reschedule", "leave") and queued:
                mail = queued[which % len(queued)]
                if what == "drop":
                    await self._finish(mail.id, await storage.drop(mail))
                elif what == "reschedule":
                    await storage.reschedule(mail, LATER)
                else:
                    await storage.send_start(mail)
            elif flying:
                lease = flying[which % len(flying)]
                if what == "done":
                    await self._finish(lease.id, await storage.send_done(lease))
                else:
                    await storage.send_cancel(lease)

        self._spawn(work())

    async def _finish(self, mail: str, pending: PendingCleanupMail | None) -> None:
        if pending is not None:
            assert mail not in self.done, "done twice"
            self.done.add(mail)
            await self.storage.cleanup(pending)

    @rule(ticks=st.integers(1, 6))
    def let_them_run(self, ticks: int) -> None:
        async def tick() -> None:
            for _ in range(ticks):
                await asyncio.sleep(0)

        self.runner.run(tick())

    @rule()
    def all_finish(self) -> None:
        async def wait() -> None:
            await asyncio.gather(*self.tasks)

        self.runner.run(wait())
        self.tasks.clear()

    @rule()
    def restart(self) -> None:
        """The process ends: no one learns the results of the calls under way."""

        async def die() -> None:
            await self.queue.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        self.runner.run(die())
        self.tasks.clear()
        self._open()
        where = self._where()
        self.done |= self.committed - set(where)  # settled, with the result unread
        self.committed |= set(where)

    def _where(self) -> list[str]:
        async def look() -> list[str]:
            found = await listed(self.storage)
            return found + [mail.id async for mail in self.storage.find_inflight()]

        return self.runner.run(look())

    @invariant()
    def every_one_in_one_place(self) -> None:
        if not hasattr(self, "storage") or any(not task.done() for task in self.tasks):
            return
        for task in self.tasks:
            task.result()  # raises what the actor did
        where = self._where()
        assert len(where) == len(set(where))
        assert set(where) == self.committed - self.done
        assert problems(self.queue.store) == []

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.runner.run(
                asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), scaled(20))
            )
            self.runner.run(self.queue.close())
            self.runner.close()
            shutil.rmtree(self.directory)


class MemoryActors(Actors):
    store = "memory"


class FilesActors(Actors):
    store = "filesystem"


TestActors = Actors.TestCase
TestActors.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestMemoryActors = MemoryActors.TestCase
TestMemoryActors.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestFilesActors = FilesActors.TestCase
TestFilesActors.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
