"""16. What a tenant lists, or changes, costs by its own mail: the recipients of others are passed over."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.kit.queue import accept, opened
from zonemta_py.admin import mail
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.requests import DeleteRequest, HoldRequest, ListRequest, Request
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep import inspect
from zonemta_py.queue.upkeep.inspect import recipient_rows
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.storage.interface import Store


async def rows(queue: Queue, request: Request) -> list[dict[str, Any]]:
    return [row async for row in run_operation(Operations(queue), request)]


class Reads:
    """How many values are read of a store."""

    def __init__(self, store: Store) -> None:
        self.count = 0
        self._scan, self._get = store.scan, store.get

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for pair in self._scan(start, stop):
            self.count += 1
            yield pair

    def get(self, key: bytes) -> bytes | None:
        self.count += key.startswith(b"message/")  # the scan of this store gets its own
        return self._get(key)


@pytest.mark.parametrize("request_", [ListRequest(tenant="acme"), HoldRequest(tenant="acme")])
async def test_reads(directory: Path, monkeypatch: pytest.MonkeyPatch, request_: Request) -> None:
    """A few for each message of another tenant, however many recipients it has, and none of its envelope."""
    async with opened(directory, store="memory") as queue:
        for number in range(10):
            await accept(queue, *(f"u{n}@d{number}.example" for n in range(300)), tenant="other")
        for number in range(100):
            await accept(queue, f"u{number}@e.example", tenant="other")
        own = await accept(queue, "x@a.example", "y@b.example|bulk", tenant="acme")
        reads = Reads(queue.store)
        monkeypatch.setattr(queue.store, "scan", reads.scan)
        monkeypatch.setattr(queue.store, "get", reads.get)
        found = await rows(queue, request_)
        if isinstance(request_, ListRequest):
            assert sorted(row["recipient"] for row in found) == ["x@a.example", "y@b.example"]
            assert {row["message"] for row in found} == {own}
        else:
            assert sum(row["held"] for row in found) == 2
        assert reads.count < 10 * inspect.READ_ON + 100 + 100


async def test_turns(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what is passed over, other tasks run; a page of an operation ends there."""
    monkeypatch.setattr(inspect, "PASSED", 5)
    async with opened(directory, store="memory") as queue:
        for number in range(20):
            await accept(queue, f"u{number}@e.example", tenant="other")
        await accept(queue, "x@a.example", tenant="acme")
        found = list(recipient_rows(queue.store, wants=lambda message, record: "acme" in record.flow))
        assert ["message" in row for row in found] == [False] * 4 + [True]
        assert await rows(queue, DeleteRequest(tenant="acme")) == [{"deleted": 1, "in_flight": 0}]
        assert await rows(queue, DeleteRequest(tenant="acme")) == [{"deleted": 0, "in_flight": 0}]


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_missed(directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Pages and searches of any size: what is listed is what has these labels."""
    random = Random(seed)
    monkeypatch.setattr(inspect, "PASSED", random.randint(1, 7))
    monkeypatch.setattr(inspect, "READ_ON", random.randint(1, 4))
    monkeypatch.setattr(mail, "PAGE", random.randint(1, 9))
    expected: dict[str, set[tuple[str, str]]] = {"acme": set(), "other": set(), "": set()}
    async with opened(directory, store="memory") as queue:
        for _ in range(30):
            tenant = random.choice(list(expected))
            to = [
                f"u{n}@d{n % 3}.example|{random.choice(['default', 'bulk'])}"
                for n in range(random.randint(1, 9))
            ]
            message = await accept(queue, *to, tenant=tenant)
            expected[tenant] |= {(message, each.partition("|")[0]) for each in to}
            if random.random() < 0.3:
                await Operator(queue).hold(message)
        for tenant, wanted in expected.items():
            found = await rows(queue, ListRequest(tenant=tenant))
            assert {(row["message"], row["recipient"]) for row in found} == wanted
            assert len(found) == len(wanted)
            paged, after = set(), ""
            while page := await rows(queue, ListRequest(tenant=tenant, limit=3, after=after)):
                paged |= {(row["message"], row["recipient"]) for row in page}
                after = page[-1]["cursor"]
            assert paged == wanted
        counted = await rows(queue, DeleteRequest(tenant="acme", domain="d1.example", dry_run=True))
        own = {(message, to) for message, to in expected["acme"] if to.endswith("d1.example")}
        assert sum(row["matched"] for row in counted) == len(own)
        await rows(queue, DeleteRequest(tenant="acme"))
        assert await rows(queue, ListRequest(tenant="acme")) == []
        assert len(await rows(queue, ListRequest())) == len(expected["other"] | expected[""])
