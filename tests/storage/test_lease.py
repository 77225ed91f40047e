"""The lease of a partition: the same rules on Redis and on S3."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.servers import notice_queue, part_of, queue_settings
from tests.kit.stores import kill, own_server, replaced
from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError, QueueLocked, QueueUnavailable
from zonemta_py.storage.open import open_shared_storage
from zonemta_py.storage.redis import RedisClient, RedisLease
from zonemta_py.storage.s3 import S3Lease
from zonemta_py.storage.s3_client import S3Client
from zonemta_py.storage.shared import LeaseBackend, PartitionLease, _unreleased, has_ended

LONG_S = 30.0

MakeLease = Callable[..., PartitionLease]


def backend_of(settings: QueueSettings, lease_s: float, closing: ExitStack) -> LeaseBackend:
    if settings.store == "redis":
        redis = RedisClient(settings.redis, "Redis")
        closing.callback(redis.close)
        return RedisLease(redis, settings.redis.prefix, "one", lease_s)
    s3 = S3Client(settings.s3)
    closing.callback(s3.close)
    return S3Lease(s3, "one", lease_s)


@pytest.fixture
def make_lease(directory: Path, kind: str) -> Iterator[MakeLease]:
    """Leases of one partition, each with a client of its own as in a process of its own."""
    with ExitStack() as closing:

        def make(lease_s: float = LONG_S, settings: QueueSettings | None = None) -> PartitionLease:
            backend = backend_of(settings or queue_settings(directory, kind), lease_s, closing)
            lease = PartitionLease("partition 'one'", lease_s, backend)
            closing.callback(lease.stop_renewing)
            return lease

        yield make


def is_locked(lease: PartitionLease) -> bool:
    """Whether ``lease`` cannot be acquired."""
    try:
        lease.acquire()
    except QueueLocked:
        return True
    return False


async def test_one_holder(make_lease: MakeLease) -> None:
    """A second relay is refused with the process that has the lease; after a release it gets it."""
    one, two = make_lease(), make_lease()
    one.acquire()
    with pytest.raises(QueueLocked, match=r"partition 'one': in use by .+:[0-9]+$") as caught:
        two.acquire()
    assert caught.value.holder == one.token
    one.release(mail=False)
    two.acquire()
    two.check()


def test_the_token_of_an_ended_process(make_lease: MakeLease) -> None:
    """Also one with the number of this process, or of another that runs, and those of earlier versions."""
    token, host, pid = make_lease().token, socket.getfqdn(), os.getpid()
    unique = token.rpartition(":")[2]
    running, ended = 1, 2**22 + 1  # it began long before this process; more than there are
    for other, expected in {
        token: False,
        f"{host}:{pid}:00000000.17-{'0' * 16}": True,
        f"{host}:{running}:{unique}": True,
        f"{host}:{ended}:{unique}": True,
        f"other.example:{ended}:{unique}": False,
        f"{host}:{pid}:{'0' * 16}": True,
        f"{host}:{running}:{'0' * 16}": False,
        f"{host}:{ended}:{'0' * 16}": True,
        f"{host}:{ended}": True,
        "what": False,
        "": False,
    }.items():
        assert has_ended(other) == expected, other


async def test_renewed_in_the_background(make_lease: MakeLease, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease outlasts its length while its holder runs, and no longer."""
    one, two = make_lease(scaled(0.6)), make_lease()
    renewed: list[str] = []
    renew = one._backend.renew

    def counted(token: str) -> bool:
        renewed.append(token)
        return renew(token)

    monkeypatch.setattr(one._backend, "renew", counted)
    one.acquire()
    await until(lambda: len(renewed) >= 6, "renewals for twice the length")
    assert is_locked(two)
    one.check()
    one.stop_renewing()
    await until(lambda: not is_locked(two), "the lease to expire")


async def test_a_lost_lease(make_lease: MakeLease, caplog: pytest.LogCaptureFixture) -> None:
    """Found by a renewal: every check raises from then on, and the log says so once."""
    one, two = make_lease(scaled(0.6)), make_lease()
    one.acquire()
    one.stop_renewing()
    await until(lambda: not is_locked(two), "the lease to expire")
    one.check()  # not yet known
    with caplog.at_level(logging.CRITICAL):
        one.renew()
        one.renew()
        one.mark_lost()
    for _ in range(2):
        with pytest.raises(QueueUnavailable, match="partition 'one': the lease is lost"):
            one.check()
    assert [record.getMessage() for record in caplog.records] == [
        "partition 'one': the lease is lost, another relay has it"
    ]
    one.release(mail=True)
    assert is_locked(make_lease()), "the other relay still has it"
    two.renew()
    two.check()


async def test_lost_in_the_background(directory: Path, kind: str, make_lease: MakeLease) -> None:
    """The thread that renews finds the loss by itself, and ends."""
    lease = make_lease(scaled(0.6))
    lease.acquire()
    lease.check()
    with ExitStack() as closing:
        overwrite(queue_settings(directory, kind), closing)
    thread = lease._thread
    assert thread is not None
    await until(lambda: lease.lost and not thread.is_alive(), "the loss to be found")
    with pytest.raises(QueueUnavailable, match="the lease is lost"):
        lease.check()


def overwrite(settings: QueueSettings, closing: ExitStack) -> None:
    """Store the lease of another relay, as if the first had expired."""
    backend = backend_of(settings, LONG_S, closing)
    if isinstance(backend, RedisLease):
        backend._client.run(backend._client.commands.set(backend._where.lease, "x:1:y"))
    else:
        other = cast(S3Lease, backend)
        other._client.put(other._path, other._data("x:1:y"))


async def test_notifications_of_mail(directory: Path, kind: str, make_lease: MakeLease) -> None:
    """A release with mail left sends one, and a release without does not."""
    settings = queue_settings(directory, kind)
    settings = replaced(settings, s3=replaced(settings.s3, notices=notice_queue(part_of(directory))))
    storage = open_shared_storage(settings)
    assert storage is not None
    for mail, expected in ((True, "one"), (False, None)):
        lease = make_lease(LONG_S, settings)
        lease.acquire()
        lease.release(mail=mail)
        assert storage.wait_for_notification(1) == expected
    storage.close()


async def test_a_lease_that_could_not_be_released(
    make_lease: MakeLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process may have it again at once. Once another relay has it, it has to wait like any other."""

    def cannot(*_: object, **__: object) -> None:
        raise LocalError("no answer")

    def left() -> None:
        lease = make_lease()
        lease.acquire()
        with monkeypatch.context() as patch:
            patch.setattr(lease._backend, "release", cannot)
            lease.release(mail=True)

    left()
    again = make_lease()
    again.acquire()
    assert is_locked(make_lease())
    again.release(mail=False)
    left()
    monkeypatch.setattr("zonemta_py.storage.shared._unreleased", left_over := dict(_unreleased))
    left_over.clear()
    assert is_locked(make_lease()), "as in another process"


async def test_a_lease_that_another_relay_has_by_now(
    directory: Path, kind: str, make_lease: MakeLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release that failed is not repeated on it: it stays with that relay, also on a server of versions."""
    one = make_lease()
    one.acquire()
    one.stop_renewing()
    monkeypatch.setitem(_unreleased, "partition 'one'", one.token)
    with ExitStack() as closing:
        overwrite(queue_settings(directory, kind), closing)
        with pytest.raises(QueueLocked, match="x:1"):
            make_lease().acquire()
        backend_of(queue_settings(directory, kind), LONG_S, closing).release(one.token, mail=True)
    with pytest.raises(QueueLocked, match="x:1"):
        make_lease().acquire()


@pytest.mark.usefixtures("no_retries")
async def test_a_server_that_ended(
    directory: Path, kind: str, make_lease: MakeLease, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is not lost, as far as is known; it is not renewed and not released, and the log says so."""
    settings, process = own_server(directory, kind)
    one, two = make_lease(LONG_S, settings), make_lease(LONG_S, settings)
    one.acquire()
    kill(process)
    one.renew()
    one.check()
    one.release(mail=True)
    with pytest.raises(LocalError):
        two.acquire()
    texts = [record.getMessage() for record in caplog.records]
    assert "could not be renewed" in texts[0]
    assert "not released and has to expire" in texts[1]
