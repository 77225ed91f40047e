"""The partitions of several relays in one bucket; ``s3`` draws the objects of one."""

import logging

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.storage.s3 import S3Store
from zonemta_py.storage.s3_client import S3Client
from zonemta_py.storage.s3_lease import is_free

log = logging.getLogger(__name__)


class S3SharedStorage:
    """See ``SharedStorage``. Raises LocalError for a bucket that cannot be read."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._client = S3Client(settings.s3)
        self._receipts: dict[str, str] = {}  # of notifications, by partition
        try:
            self._client.directories()
        except LocalError:
            self._client.close()
            raise

    def open(self, name: str) -> S3Store:
        """See ``SharedStorage.open``. Deletes the notification about the partition."""
        store = S3Store(self._settings, name)
        receipt = self._receipts.pop(name, None)
        try:
            if receipt is not None:
                self._client.delete_notification(receipt)
        except LocalError as exc:
            log.warning("the notification about partition '%s' will be repeated: %s", name, exc)
        return store

    def orphans(self) -> list[str]:
        """See ``SharedStorage.orphans``. The partition of a relay that died may turn out to be empty."""
        found = []
        for name in self._client.directories():
            lease = self._client.get(f"{name}/lease")
            try:
                if lease is not None and is_free(lease) and from_json(lease.data)["mail"]:
                    found.append(name)
            except (ValueError, KeyError, TypeError) as exc:
                log.error("s3: %s/lease is not a lease, the partition is ignored: %r", name, exc)
        return found

    def wait_for_notification(self, wait_s: float) -> str | None:
        """See ``SharedStorage.wait_for_notification``."""
        received = self._client.receive_notification(wait_s)
        if received is None:
            return None
        name, self._receipts[name] = received
        return name

    def close(self) -> None:
        """See ``SharedStorage.close``."""
        self._client.close()
