"""The adapter of aiobotocore: objects with conditional writes in S3, and notifications in SQS.

Life of an ``S3Client``: connected by its constructor ─▶ closed. Its event loop runs in a ``LoopThread``.

Invariants:

- Every call blocks, unless it is a coroutine for ``S3Client.thread``. All raise LocalError when the server fails, and Conflict for a
  condition that does not hold.
- A conditional write may be sent again by the client after a lost answer: its Conflict may be about itself, and callers compare.
- The age of an object is measured by the server's clock.
- Deletions are in the background; one that fails leaves the object, with a warning, and ``close`` waits for them.

Callers: ``storage.s3``. Example: ``client.put_new("mx1/log/0000000000000001", data)`` raises Conflict if the object exists.

Source: Amazon S3, "Conditional requests"; Amazon SQS, "Visibility timeout".
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, NamedTuple, TypeVar

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from aiohttp import ClientError as ConnectionFailure
from botocore.exceptions import BotoCoreError, ClientError

from zonemta_py.config.schema import S3Settings
from zonemta_py.core.errors import LocalError
from zonemta_py.storage.remote import LoopThread

log = logging.getLogger(__name__)


CONCURRENT = 8  # requests of one call
DELETE_MAX = 1000  # objects in one request, by the protocol
WAIT_MAX_S = 20  # of a receive, by the protocol
VISIBLE_AGAIN_S = 900  # a notification that is not deleted by then is delivered again
READ_ATTEMPTS = 3  # of an object whose connection ends in the middle, which the client does not repeat

# ConnectionFailure: aiobotocore does not convert every error of the connection below it.
CLIENT_ERRORS = (ClientError, BotoCoreError, ConnectionFailure, OSError, ValueError)

T = TypeVar("T")


_CONFIG = AioConfig(
    connect_timeout=5, read_timeout=15, max_pool_connections=2 * CONCURRENT, retries={"max_attempts": 5, "mode": "standard"}
)  # fmt: skip


@cache
def _session() -> AioSession:
    """The session of the process: it reads the descriptions of the services, which takes 0.1 s each."""
    return AioSession()


class Conflict(Exception):
    """The condition of a write does not hold: the object exists, or is another version."""


class S3Object(NamedTuple):
    """An object. ``etag`` is its version, ``age_s`` the time since it was written, by the server's clock."""

    data: bytes
    etag: str
    age_s: float


class S3Client:
    """The objects under ``settings.prefix``; paths are relative to it. Its event loop runs in ``thread``."""

    def __init__(self, settings: S3Settings) -> None:
        self._bucket = settings.bucket
        self._prefix = settings.prefix.strip("/") + "/"
        self._sqs_url = settings.notices
        self.thread = LoopThread("s3", f"s3://{settings.bucket}", CLIENT_ERRORS)
        self._clients = AsyncExitStack()
        self._deletions: set[asyncio.Task[None]] = set()
        try:
            self._run(self._connect(settings))
        except LocalError:
            self.thread.close(self._clients.aclose)
            raise

    async def _connect(self, settings: S3Settings) -> None:
        session = _session()
        options = {"region_name": settings.region, "endpoint_url": settings.endpoint, "config": _CONFIG}
        self._s3 = await self._clients.enter_async_context(session.create_client("s3", **options))
        self._sqs: Any = None
        if settings.notices is not None:
            self._sqs = await self._clients.enter_async_context(session.create_client("sqs", **options))

    def _run(self, work: Awaitable[T]) -> T:
        return self.thread.run(work)

    # ---- objects

    def get(self, path: str) -> S3Object | None:
        return self._run(self.fetch(path))

    async def fetch(self, path: str) -> S3Object | None:
        """Return an object, or None; on the client's loop."""
        for attempts_left in reversed(range(READ_ATTEMPTS)):
            try:
                answer = await self._s3.get_object(Bucket=self._bucket, Key=self._prefix + path)
            except ClientError as exc:
                if exc.response["Error"]["Code"] in ("NoSuchKey", "404"):
                    return None
                raise
            try:
                async with answer["Body"] as body:
                    data = await body.read()
                break
            except CLIENT_ERRORS:
                if not attempts_left:
                    raise
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        written: datetime = answer["LastModified"]
        age_s = (parsedate_to_datetime(date) - written).total_seconds() if date else 0.0
        return S3Object(data, answer["ETag"], age_s)

    def get_all(self, paths: Iterable[str]) -> list[S3Object | None]:
        """Return objects in the order of their paths; several are read concurrently."""
        return self._run(self._get_all(list(paths)))

    async def _get_all(self, paths: "Sequence[str]") -> list[S3Object | None]:
        slots = asyncio.Semaphore(CONCURRENT)

        async def one(path: str) -> S3Object | None:
            async with slots:
                return await self.fetch(path)

        return list(await asyncio.gather(*map(one, paths)))

    def put(self, path: str, data: bytes) -> str:
        """Write an object, whether there is one or not, and return its version."""
        return self._run(self._put(path, data, {}))

    def put_new(self, path: str, data: bytes) -> str:
        """Write an object and return its version. Raises Conflict when there is one."""
        return self._run(self._put(path, data, {"IfNoneMatch": "*"}))

    def replace(self, path: str, data: bytes, etag: str) -> str:
        """Write an object and return its version. Raises Conflict unless it is the version ``etag`` now."""
        if not etag:  # a server may ignore an empty condition
            raise Conflict(path)
        return self._run(self._put(path, data, {"IfMatch": etag}))

    async def _put(self, path: str, data: bytes, condition: Mapping[str, str]) -> str:
        try:
            answer = await self._s3.put_object(
                Bucket=self._bucket, Key=self._prefix + path, Body=data, **condition
            )
        except ClientError as exc:
            if exc.response["ResponseMetadata"]["HTTPStatusCode"] in (404, 409, 412) and condition:
                raise Conflict(path) from exc
            raise
        version: str = answer["ETag"]
        return version

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Write objects, several concurrently."""
        self._run(self._put_all(objects))

    async def _put_all(self, objects: Mapping[str, bytes]) -> None:
        slots = asyncio.Semaphore(CONCURRENT)

        async def one(path: str, data: bytes) -> None:
            async with slots:
                await self._put(path, data, {})

        await asyncio.gather(*(one(path, data) for path, data in objects.items()))

    def paths(self, directory: str) -> list[str]:
        """Return the paths that begin with ``directory``, in order."""
        return self._run(self._paths(directory))

    async def _paths(self, directory: str) -> list[str]:
        found: list[str] = []
        pages = self._s3.get_paginator("list_objects_v2")
        async for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + directory):
            found += (entry["Key"][len(self._prefix) :] for entry in page.get("Contents", ()))
        return found

    def directories(self) -> list[str]:
        """Return the first part of each path, once."""
        return self._run(self._directories())

    async def _directories(self) -> list[str]:
        found: list[str] = []
        pages = self._s3.get_paginator("list_objects_v2")
        async for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"):
            found += (
                entry["Prefix"][len(self._prefix) : -1] for entry in page.get("CommonPrefixes", ())
            )
        return found

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, which need not exist. What cannot be deleted stays, with a warning."""
        self._run(self._try_delete(list(paths)))

    def delete_later(self, paths: Iterable[str]) -> None:
        """Delete objects in the background; ``close`` waits for that."""
        self._run(self._begin_delete(list(paths)))

    async def _begin_delete(self, paths: list[str]) -> None:
        deletion = asyncio.create_task(self._try_delete(paths))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)

    async def _try_delete(self, paths: list[str]) -> None:
        try:
            await self._delete(paths)
        except (LocalError, *CLIENT_ERRORS) as exc:
            log.warning("s3://%s: %d unused objects are not deleted: %s", self._bucket, len(paths), exc)

    async def _delete(self, paths: list[str]) -> None:
        for at in range(0, len(paths), DELETE_MAX):
            names = [{"Key": self._prefix + path} for path in paths[at : at + DELETE_MAX]]
            answer = await self._s3.delete_objects(
                Bucket=self._bucket, Delete={"Objects": names, "Quiet": True}
            )
            for refused in answer.get("Errors", ()):  # in an answer with the status 200
                raise LocalError(f"{refused.get('Key')}: {refused.get('Code')} {refused.get('Message')}")

    # ---- notifications

    def send_notification(self, text: str) -> None:
        """Send ``text`` to one receiver. Without SQS, do nothing."""
        if self._sqs is not None:
            self._run(self._sqs.send_message(QueueUrl=self._sqs_url, MessageBody=text))

    def receive_notification(self, wait_s: float) -> tuple[str, str] | None:
        """Return a notification and its receipt, or None after ``wait_s``.

        It is delivered again after VISIBLE_AGAIN_S unless it is deleted.
        """
        if self._sqs is None:
            self._run(asyncio.sleep(wait_s))
            return None
        answer = self._run(
            self._sqs.receive_message(
                QueueUrl=self._sqs_url,
                WaitTimeSeconds=min(WAIT_MAX_S, max(1, int(wait_s))),
                VisibilityTimeout=VISIBLE_AGAIN_S,
            )
        )
        for message in answer.get("Messages", ()):
            return message["Body"], message["ReceiptHandle"]
        return None

    def delete_notification(self, receipt: str) -> None:
        self._run(self._sqs.delete_message(QueueUrl=self._sqs_url, ReceiptHandle=receipt))

    def close(self) -> None:
        """Finish deletions, and disconnect. No call follows."""
        self._run(self._finish_deletions())
        self.thread.close(self._clients.aclose)

    async def _finish_deletions(self) -> None:
        await asyncio.gather(*self._deletions, return_exceptions=True)
