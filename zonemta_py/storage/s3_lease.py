"""The lease of a part in objects: one object, written on condition, whose age is told by the store's own clock."""

import logging

from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError, QueueLocked
from zonemta_py.storage.partitions import new_token
from zonemta_py.storage.renewal import Renewal
from zonemta_py.storage.s3_client import Conflict, Found, Objects

SLACK_S = 2  # the server's clock shows whole seconds

log = logging.getLogger(__name__)


class S3Lease:
    """The lease of ``name``, taken and renewed until ``give_back``. Raises QueueLocked."""

    def __init__(self, objects: Objects, name: str, lease_s: float) -> None:
        self.token = new_token()
        self._objects = objects
        self._name = name
        self._path = f"{name}/lease"
        self._lease_s = lease_s
        self._etag = self._take()
        self._renewal = Renewal(f"s3-{name}", lease_s / 3, self._renew)

    @property
    def lost(self) -> bool:
        """Whether another relay has the part by now."""
        return self._renewal.lost

    def _take(self) -> str:
        """The version of the lease, now ours."""
        found = self._objects.get(self._path)
        try:
            if found is None:
                return self._objects.put(self._path, self._data(self.token), new=True)
            if is_free(found):
                return self._objects.put(self._path, self._data(self.token), etag=found.etag)
        except Conflict:
            pass  # somebody was faster
        holder = from_json(found.data)["token"].rpartition(":")[0] if found else ""
        raise QueueLocked(f"S3 part '{self._name}': in use by {holder or 'another relay'}", holder)

    def _data(self, token: str, mail: bool = True) -> bytes:
        """A lease whose holder dies is taken to have left mail."""
        return bytes(to_json({"token": token, "lease_s": self._lease_s, "mail": mail}))

    def _renew(self) -> bool:
        """Write the lease again; False when it is lost."""
        data = self._data(self.token)
        try:
            self._etag = self._objects.put(self._path, data, etag=self._etag)
        except Conflict:
            return self._is_still_ours(data)
        except LocalError as exc:
            log.error("S3 part '%s': the lease could not be renewed: %s", self._name, exc)
        return True

    def _is_still_ours(self, data: bytes) -> bool:
        """Whether a lease that changed was changed by ourselves: an answer was lost, and it was sent again."""
        try:
            found = self._objects.get(self._path)
        except LocalError as exc:
            log.error("S3 part '%s': the lease cannot be read: %s", self._name, exc)
            return True  # the next batch will tell
        if found is not None and found.data == data:
            self._etag = found.etag
            return True
        log.critical("S3 part '%s': the lease is lost, another relay has it", self._name)
        return False

    def stop_renewing(self) -> None:
        """It will run out."""
        self._renewal.close()

    def give_back(self, *, mail: bool) -> None:
        """Another may have the part; with ``mail`` left in it, one should: a notice says so."""
        self._renewal.close()
        if self._renewal.lost:
            return
        try:
            self._objects.put(self._path, self._data("", mail), etag=self._etag)
            if mail:
                self._objects.send(self._name)
        except (Conflict, LocalError) as exc:
            log.error("S3 part '%s': its lease runs out by itself: %s", self._name, exc)


def is_free(lease: Found) -> bool:
    """Whether nobody has it. Raises ValueError, KeyError, TypeError for what is no lease."""
    said = from_json(lease.data)
    return not said["token"] or lease.age_s > said["lease_s"] + SLACK_S
