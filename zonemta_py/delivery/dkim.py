"""DKIM signing of outgoing messages, with keys by domain. The only importer of cryptography.

RSA signatures are computed in threads: OpenSSL releases the interpreter lock. Ed25519 takes less time
than the handover to a thread.
"""

import asyncio
import hashlib
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa

from zonemta_py.config.schema import Dkim
from zonemta_py.config.tenants import Tenants
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.threads import Threads
from zonemta_py.smtp import dkim
from zonemta_py.smtp.authors import author_domain
from zonemta_py.smtp.headers import scan

RSA_BITS_MIN = 1024  # RFC 8301 section 3.2: verifiers may ignore shorter keys
SIGNED_MAX = 1000  # messages whose signatures are cached
THREADS = 2


class Key:
    """A private key, and the name of its DNS record."""

    def __init__(self, domain: str, selector: str, path: Path) -> None:
        self.domain = domain
        self.selector = selector
        self._key = _load(path)
        self.algorithm = "rsa-sha256" if isinstance(self._key, rsa.RSAPrivateKey) else "ed25519-sha256"

    @property
    def is_slow(self) -> bool:
        """Whether to sign in a thread."""
        return isinstance(self._key, rsa.RSAPrivateKey)

    def sign(self, data: bytes) -> bytes:
        """The signature of ``data``."""
        if isinstance(self._key, rsa.RSAPrivateKey):
            return self._key.sign(data, padding.PKCS1v15(), hashes.SHA256())
        return self._key.sign(hashlib.sha256(data).digest())  # RFC 8463 section 3

    def record(self) -> tuple[str, str]:
        """Name and text of the TXT record with the public key."""
        public = self._key.public_key()
        if isinstance(public, rsa.RSAPublicKey):
            kind, form = "rsa", serialization.PublicFormat.SubjectPublicKeyInfo
            raw = public.public_bytes(serialization.Encoding.DER, form)
        else:
            kind = "ed25519"
            raw = public.public_bytes_raw()
        return (
            f"{self.selector}._domainkey.{self.domain}",
            f"v=DKIM1; k={kind}; p={b64encode(raw).decode()}",
        )


def _load(path: Path) -> rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey:
    """A PEM private key without a passphrase. Raises ConfigError."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise ConfigError(f"{path}: not a readable private key in PEM: {exc}") from exc
    if isinstance(key, rsa.RSAPrivateKey):
        if key.key_size < RSA_BITS_MIN:
            raise ConfigError(
                f"{path}: an RSA key of {key.key_size} bits, verifiers require 1024 or more"
            )
        return key
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    raise ConfigError(f"{path}: found another kind of key, allowed for DKIM: RSA, Ed25519")


DkimKeys = dict[str, list[Key]]  # by domain


def load_keys(settings: Dkim) -> DkimKeys:
    """The keys by domain, in the order of the configuration. Raises ConfigError."""
    keys: dict[str, list[Key]] = {}
    for entry in settings.keys:
        assert entry.domain and entry.selector and entry.key_file  # config.checks has verified it
        keys.setdefault(entry.domain, []).append(Key(entry.domain, entry.selector, entry.key_file))
    return keys


class _Signed(NamedTuple):
    """The signatures of a message, and until when they are used again (unix ms)."""

    fields: bytes
    until_ms: float


class Signer:
    """Computes the signatures of an author's domain, one with each of its keys."""

    def __init__(
        self,
        settings: Dkim,
        keys: Mapping[str, Sequence[Key]],
        tenants: Tenants,
        now_ms: Callable[[], int] = clock.now_ms,
    ) -> None:
        self.configure(settings, keys, tenants)
        self._now_ms = now_ms
        self._threads: Threads | None = None

    def configure(self, settings: Dkim, keys: Mapping[str, Sequence[Key]], tenants: Tenants) -> None:
        """Use new settings, keys and tenants; cached signatures are dropped."""
        self._settings = settings
        self._keys = keys
        self._tenants = tenants
        self._signed: OrderedDict[str, _Signed | asyncio.Future[None]] = OrderedDict()

    @property
    def signs(self) -> bool:
        """Whether there is a key for any domain."""
        return bool(self._keys)

    async def signatures(
        self, message: str, header: bytes, body_hash: Callable[[], Awaitable[bytes]], tenant: str
    ) -> bytes:
        """The DKIM-Signature fields of a message, empty without a key; cached under ``message`` for its next transactions.

        Mail of a tenant is signed for the tenant's domains only, other mail for those of no tenant. ``body_hash`` is called when there is a key. Raises what it raises.
        """
        signed = self._signed  # a new configuration replaces the cache
        known = signed.get(message)
        if isinstance(known, _Signed):
            if self._now_ms() < known.until_ms:
                return known.fields
            known = None
        if known is None:
            known = signed[message] = asyncio.get_running_loop().create_future()
            if len(signed) > SIGNED_MAX:
                signed.popitem(last=False)
            try:
                fields = await self._sign(header, body_hash, tenant)
            except BaseException:
                signed.pop(message, None)
                known.set_result(None)  # a waiting transaction tries again by itself
                raise
            signed[message] = _Signed(fields, self._until_ms())
            known.set_result(None)
            return fields
        await asyncio.shield(known)
        return await self.signatures(message, header, body_hash, tenant)

    def _until_ms(self) -> float:
        """Until when a signature of now is used again: half of its time is for the way to the verifier."""
        expire_s = self._settings.expire
        return inf if expire_s is None else self._now_ms() + expire_s * 500

    async def _sign(
        self, header: bytes, body_hash: Callable[[], Awaitable[bytes]], tenant: str
    ) -> bytes:
        fields = scan(header)[0]
        author = author_domain(header, fields)
        keys = self._keys.get(dkim.signing_domain(author, self._keys.keys()), ())
        if not keys or (self._tenants and not self._tenants.signs_for(tenant, keys[0].domain)):
            return b""
        hashed = await body_hash()
        settings, time_s = self._settings, self._now_ms() // 1000
        listed = dkim.signed_names(fields, settings.headers, settings.oversign)
        expires_s = time_s + int(settings.expire) if settings.expire is not None else None
        made = []
        for key in keys:
            terms = dkim.SignatureTerms(key.algorithm, key.domain, key.selector, time_s, expires_s)
            unsigned = dkim.unsigned_field(terms, listed, hashed)
            data = dkim.to_sign(header, fields, listed, unsigned)
            signature = await self._in_thread(partial(key.sign, data)) if key.is_slow else key.sign(data)
            made.append(dkim.signed_field(unsigned, signature))
        return b"".join(made)

    async def _in_thread(self, work: Callable[[], bytes]) -> bytes:
        if self._threads is None:
            self._threads = Threads(asyncio.get_running_loop(), "dkim", THREADS)
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._threads.put(work, partial(_resolve, done))
        return await done

    def close(self) -> None:
        """End the threads. No call of ``signatures`` follows."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None


def _resolve(done: "asyncio.Future[bytes]", result: bytes, failure: Exception | None) -> None:
    if done.done():
        return
    if failure is not None:
        done.set_exception(failure)
    else:
        done.set_result(result)
