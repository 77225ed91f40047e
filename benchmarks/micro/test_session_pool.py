"""What a new session costs beside idle ones: the same however many there are."""

import asyncio
from itertools import count
from typing import Any, cast

import pytest

from zonemta_py.delivery.endpoints import Endpoint
from zonemta_py.delivery.session_pool import SessionPool
from zonemta_py.transports.session import SmtpSession


class IdleSession:
    """A session that is never used."""

    usable = True

    def close(self) -> None:
        self.usable = False


def session() -> SmtpSession:
    return cast(SmtpSession, IdleSession())


@pytest.mark.parametrize("idle", [100, 1000, 10_000])
def test_a_new_session(benchmark: Any, idle: int) -> None:
    """Make room for it in a full zone, use it, and keep it; each of another destination."""

    async def run() -> None:
        pool, numbers = SessionPool(), count()

        def endpoint(number: int) -> Endpoint:
            return Endpoint(
                "mx.example", f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 25, None
            )

        for _ in range(idle):
            number = next(numbers)
            pool.put(endpoint(number), f"d{number}.example", session(), 60)

        def one() -> None:
            number = next(numbers)
            destination = f"d{number}.example"
            pool.take(endpoint(number))
            pool.trim(destination, idle - 1, 20)
            pool.put(endpoint(number), destination, session(), 60)

        benchmark(one)
        latest = next(numbers) - 1
        assert pool.has_idle(endpoint(latest))
        assert not pool.has_idle(endpoint(0)), "it had to make room"
        pool.trim("", 0, 0)
        assert not pool.has_idle(endpoint(latest))

    asyncio.run(run())
