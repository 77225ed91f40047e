"""The parts of several relays in one bucket; the objects are in ``object_store``."""

import logging

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.storage.s3 import S3Store
from zonemta_py.storage.s3_client import Objects
from zonemta_py.storage.s3_lease import is_free

log = logging.getLogger(__name__)


class S3SharedStorage:
    """The parts in one bucket."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._objects = Objects(settings.s3)
        self._receipts: dict[str, str] = {}
        try:
            self._objects.folders()
        except LocalError:
            self._objects.close()
            raise

    def open(self, name: str) -> "S3Store":
        """As ``SharedStorage``; a notice about it has served its purpose."""
        store = S3Store(self._settings, name)
        receipt = self._receipts.pop(name, None)
        try:
            if receipt is not None:
                self._objects.forget(receipt)
        except LocalError as exc:
            log.warning("a notice will come again: %s", exc)
        return store

    def orphans(self) -> list[str]:
        """As ``SharedStorage``; a part whose relay has died may turn out to be empty."""
        found = []
        for name in self._objects.folders():
            lease = self._objects.get(f"{name}/lease")
            try:
                if lease is not None and is_free(lease) and from_json(lease.data)["mail"]:
                    found.append(name)
            except (ValueError, KeyError, TypeError) as exc:
                log.error("s3: %s/lease cannot be read, the part is left alone: %r", name, exc)
        return found

    def notice(self, wait_s: float) -> str | None:
        """As ``SharedStorage``."""
        received = self._objects.receive(wait_s)
        if received is None:
            return None
        self._receipts[received[0]] = received[1]
        return received[0]

    def close(self) -> None:
        """As ``SharedStorage``."""
        self._objects.close()
