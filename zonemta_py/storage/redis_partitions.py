"""The partitions of several relays in one Redis."""

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError
from zonemta_py.core.text import without_secrets
from zonemta_py.queue.format import keys
from zonemta_py.storage.partitions import MAIL_PREFIXES
from zonemta_py.storage.redis import RedisStore
from zonemta_py.storage.redis_client import RedisClient
from zonemta_py.storage.redis_scripts import RedisKeys, notifications_key

WAIT_MAX_S = 3.0  # for a notification: less than an answer may take


class RedisSharedStorage:
    """See ``SharedStorage``. Raises LocalError for a Redis that cannot be used."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._prefix = settings.redis.prefix
        self._client = RedisClient(settings.redis, "Redis")
        try:
            self._check(sync=settings.durability == "sync")
        except BaseException:
            self._client.close()
            raise

    def _check(self, *, sync: bool) -> None:
        try:
            self._client.run_once(self._client.commands.ping())
        except LocalError as exc:
            url = without_secrets(self._settings.redis.url)
            raise LocalError(without_secrets(f"queue.redis.url: {url} cannot be used: {exc}")) from exc
        if sync:
            self._client.run(self._client.check_durability())

    def open(self, name: str) -> RedisStore:
        """See ``SharedStorage.open``."""
        return RedisStore(self._settings, name)

    def orphans(self) -> list[str]:
        """See ``SharedStorage.orphans``."""
        return self._client.run(self._orphans())

    async def _orphans(self) -> list[str]:
        found = []
        pattern = f"{{{_escaped(self._prefix)}:*}}:keys"
        async for index in self._client.commands.scan_iter(match=pattern, count=1000):
            name = index.decode()[len(self._prefix) + 2 : -len("}:keys")]
            where = RedisKeys(self._prefix, name)
            lease = await self._client.commands.get(where.lease)
            if lease is None and await self._has_mail(where.index):
                found.append(name)
        return sorted(found)

    async def _has_mail(self, index: str) -> bool:
        for prefix in MAIL_PREFIXES:
            start, stop = b"[" + prefix, b"(" + keys.end_of(prefix)
            if await self._client.commands.zrangebylex(index, start, stop, start=0, num=1):
                return True
        return False

    def wait_for_notification(self, wait_s: float) -> str | None:
        """See ``SharedStorage.wait_for_notification``."""
        timeout_s = min(max(0.01, wait_s), WAIT_MAX_S)
        notifications = [notifications_key(self._prefix)]
        found = self._client.run_once(self._client.commands.blpop(notifications, timeout=timeout_s))
        return found[1].decode() if found else None

    def close(self) -> None:
        """See ``SharedStorage.close``."""
        self._client.close()


def _escaped(text: str) -> str:
    """``text`` as a literal in a pattern of SCAN."""
    return "".join(f"\\{c}" if c in "*?[]\\^" else c for c in text)
