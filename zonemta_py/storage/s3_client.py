"""The one door to aiobotocore: objects with conditional writes, and a queue of notices.

Every call blocks its thread; the client's own loop runs in another. LocalError for whatever goes wrong but
a condition that does not hold.
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
from botocore.exceptions import BotoCoreError, ClientError

from zonemta_py.config.schema import ObjectQueue
from zonemta_py.core.errors import LocalError
from zonemta_py.storage.loop_thread import LoopThread

AT_ONCE = 8  # requests of one call
DELETE_MAX = 1000  # objects in one request, by the protocol
WAIT_MAX_S = 20  # of a receive, by the protocol
VISIBLE_AGAIN_S = 900  # a notice that nobody deleted by then is shown again

T = TypeVar("T")

log = logging.getLogger(__name__)

_CONFIG = AioConfig(
    connect_timeout=5, read_timeout=15, max_pool_connections=2 * AT_ONCE, retries={"max_attempts": 5, "mode": "standard"}
)  # fmt: skip


@cache
def _session() -> AioSession:
    """One for the process: it reads the descriptions of the services, a tenth of a second each."""
    return AioSession()


class Conflict(Exception):
    """The object is not as the condition wants it."""


class Found(NamedTuple):
    """An object: its octets, its version, and how long ago it was written by the server's own clock."""

    data: bytes
    etag: str
    age_s: float


class Objects:
    """The objects under ``settings.prefix``; paths are relative to it."""

    def __init__(self, settings: ObjectQueue) -> None:
        self._bucket = settings.bucket
        self._prefix = settings.prefix.strip("/") + "/"
        self._notices = settings.notices
        self._thread = LoopThread("s3")
        self._stack = AsyncExitStack()
        self._errands: set[asyncio.Task[None]] = set()
        try:
            self._run(self._connect(settings))
        except LocalError:
            self._thread.close()
            raise

    async def _connect(self, settings: ObjectQueue) -> None:
        session = _session()
        options = {"region_name": settings.region, "endpoint_url": settings.endpoint, "config": _CONFIG}
        self._s3 = await self._stack.enter_async_context(session.create_client("s3", **options))
        self._sqs: Any = None
        if settings.notices is not None:
            self._sqs = await self._stack.enter_async_context(session.create_client("sqs", **options))

    def _run(self, work: Awaitable[T]) -> T:
        try:
            return self._thread.run(work)
        except (ClientError, BotoCoreError, OSError, ValueError) as exc:
            raise LocalError(f"s3://{self._bucket}: {exc}") from exc

    # ---- objects

    def get(self, path: str) -> Found | None:
        """An object, or None."""
        return self._run(self._get(path))

    async def _get(self, path: str) -> Found | None:
        try:
            answer = await self._s3.get_object(Bucket=self._bucket, Key=self._prefix + path)
        except ClientError as exc:
            if exc.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise
        async with answer["Body"] as body:
            data = await body.read()
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        written: datetime = answer["LastModified"]
        age_s = (parsedate_to_datetime(date) - written).total_seconds() if date else 0.0
        return Found(data, answer["ETag"], age_s)

    def get_all(self, paths: Iterable[str]) -> list[Found | None]:
        """Objects in the order of their paths, several read at once."""
        return self._run(self._get_all(list(paths)))

    async def _get_all(self, paths: "Sequence[str]") -> list[Found | None]:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(path: str) -> Found | None:
            async with room:
                return await self._get(path)

        return list(await asyncio.gather(*map(one, paths)))

    def put(self, path: str, data: bytes, *, new: bool = False, etag: str = "") -> str:
        """Write an object; its version. ``new``: only if there is none; ``etag``: only that one. Conflict."""
        condition = {"IfNoneMatch": "*"} if new else {"IfMatch": etag} if etag else {}
        return self._run(self._put(path, data, condition))

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
        """Write objects, several at once; all of them are there when it returns."""
        self._run(self._put_all(objects))

    async def _put_all(self, objects: Mapping[str, bytes]) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(path: str, data: bytes) -> None:
            async with room:
                await self._put(path, data, {})

        await asyncio.gather(*(one(path, data) for path, data in objects.items()))

    def paths(self, folder: str) -> list[str]:
        """The paths under ``folder``, in order."""
        return self._run(self._paths(folder))

    async def _paths(self, folder: str) -> list[str]:
        found: list[str] = []
        pages = self._s3.get_paginator("list_objects_v2")
        async for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + folder):
            found += (entry["Key"][len(self._prefix) :] for entry in page.get("Contents", ()))
        return found

    def folders(self) -> list[str]:
        """The names before the first slash of any path."""
        return self._run(self._folders())

    async def _folders(self) -> list[str]:
        found: list[str] = []
        pages = self._s3.get_paginator("list_objects_v2")
        async for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"):
            found += (
                entry["Prefix"][len(self._prefix) : -1] for entry in page.get("CommonPrefixes", ())
            )
        return found

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects, whether they are there or not."""
        self._run(self._delete(list(paths)))

    def delete_later(self, paths: Iterable[str]) -> None:
        """The same, and nobody waits; ``close`` does."""
        self._run(self._begin_delete(list(paths)))

    async def _begin_delete(self, paths: list[str]) -> None:
        errand = asyncio.create_task(self._try_delete(paths))
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def _try_delete(self, paths: list[str]) -> None:
        try:
            await self._delete(paths)
        except (ClientError, BotoCoreError, OSError) as exc:
            log.warning("s3://%s: %d objects that nobody needs stay: %s", self._bucket, len(paths), exc)

    async def _delete(self, paths: list[str]) -> None:
        for at in range(0, len(paths), DELETE_MAX):
            names = [{"Key": self._prefix + path} for path in paths[at : at + DELETE_MAX]]
            await self._s3.delete_objects(Bucket=self._bucket, Delete={"Objects": names, "Quiet": True})

    # ---- notices

    def send(self, text: str) -> None:
        """A notice for whoever receives it."""
        if self._sqs is not None:
            self._run(self._sqs.send_message(QueueUrl=self._notices, MessageBody=text))

    def receive(self, wait_s: float) -> tuple[str, str] | None:
        """A notice and its receipt, if one comes in time; it is shown to others again later."""
        if self._sqs is None:
            self._run(asyncio.sleep(wait_s))
            return None
        answer = self._run(
            self._sqs.receive_message(
                QueueUrl=self._notices,
                WaitTimeSeconds=min(WAIT_MAX_S, max(1, int(wait_s))),
                VisibilityTimeout=VISIBLE_AGAIN_S,
            )
        )
        for message in answer.get("Messages", ()):
            return message["Body"], message["ReceiptHandle"]
        return None

    def forget(self, receipt: str) -> None:
        """A notice has served its purpose."""
        self._run(self._sqs.delete_message(QueueUrl=self._notices, ReceiptHandle=receipt))

    def close(self) -> None:
        """Finish what is under way; no call follows."""
        self._run(self._close())
        self._thread.close()

    async def _close(self) -> None:
        await asyncio.gather(*self._errands, return_exceptions=True)
        await self._stack.aclose()
