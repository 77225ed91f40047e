"""The lease of a partition in S3: one object, written on condition, whose age is measured by the server's clock."""

from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.storage.s3_client import Conflict, S3Client, S3Object

SLACK_S = 2  # the server's clock shows whole seconds


class S3Lease:
    """The lease of the partition ``name``; see ``LeaseBackend``."""

    def __init__(self, client: S3Client, name: str, lease_s: float) -> None:
        self._client = client
        self._name = name
        self._path = f"{name}/lease"
        self._lease_s = lease_s
        self._etag = ""  # the version that this relay wrote

    def try_acquire(self, token: str, previous: str = "") -> str | None:
        """See ``LeaseBackend``. Also raises LocalError for an object that is not a lease."""
        found = self._client.get(self._path)
        try:
            if found is not None and not is_free(found):
                holder = _token_of(found)
                if holder != previous:
                    return holder
        except (ValueError, KeyError, TypeError) as exc:
            raise LocalError(f"s3: {self._path} is not a lease: {exc!r}") from exc
        if self._write(self._data(token), found.etag if found is not None else None):
            return None
        return ""  # another relay was faster

    def holder(self) -> str | None:
        """See ``LeaseBackend``."""
        found = self._client.get(self._path)
        try:
            return _token_of(found) if found is not None and not is_free(found) else None
        except (ValueError, KeyError, TypeError) as exc:
            raise LocalError(f"s3: {self._path} is not a lease: {exc!r}") from exc

    def _data(self, token: str, *, mail: bool = True) -> bytes:
        """While it is held, ``mail`` is true: a relay that dies may have left some."""
        return bytes(to_json({"token": token, "lease_s": self._lease_s, "mail": mail}))

    def _write(self, data: bytes, etag: str | None) -> bool:
        """Write the lease if it is the version ``etag`` (None: if there is none); False if it is not."""
        try:
            if etag is None:
                self._etag = self._client.put_new(self._path, data)
            else:
                self._etag = self._client.replace(self._path, data, etag)
        except Conflict:
            # Perhaps by this relay: the answer was lost, and the client sent the request again.
            found = self._client.get(self._path)
            if found is None or found.data != data:
                return False
            self._etag = found.etag
        return True

    def renew(self, token: str) -> bool:
        """See ``LeaseBackend``."""
        return self._write(self._data(token), self._etag)

    def release(self, token: str, *, mail: bool) -> None:
        """See ``LeaseBackend``. The object is read first: what this relay wrote last may have been replaced."""
        found = self._client.get(self._path)
        try:
            if found is None or _token_of(found) != token:
                return
        except (ValueError, KeyError, TypeError) as exc:
            raise LocalError(f"s3: {self._path} is not a lease: {exc!r}") from exc
        if self._write(self._data("", mail=mail), found.etag) and mail:
            self._client.send_notification(self._name)


def _token_of(lease: S3Object) -> str:
    return str(from_json(lease.data)["token"])


def is_free(lease: S3Object) -> bool:
    """Whether no relay has the lease. Raises ValueError, KeyError, TypeError for data that are not a lease."""
    found = from_json(lease.data)
    return not found["token"] or lease.age_s > found["lease_s"] + SLACK_S
