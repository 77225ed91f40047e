"""DKIM signing of outgoing messages, with keys by domain.

RSA signatures are computed in threads: OpenSSL releases the interpreter lock. Ed25519 takes less time
than the handover to a thread.

A relay may have thousands of keys, of which most sign nothing today. ``load_keys`` reads and checks all files, about
0.1 ms each; a key of OpenSSL is made from the text when the key signs for the first time. OpenSSL's own check of an
RSA key proves that its two numbers are primes, 36 ms with the interpreter lock held; here the numbers are compared
with each other instead, which finds every damaged file.
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
from zonemta_py.core.runtime import Threads
from zonemta_py.smtp import dkim
from zonemta_py.smtp.authors import author_domain
from zonemta_py.smtp.headers import scan

RSA_BITS_MIN = 1024  # RFC 8301 section 3.2: verifiers may ignore shorter keys
SIGNED_MAX = 1000  # messages whose signatures are cached
THREADS = 2


PrivateKey = rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


class Key:
    """A private key, and the name of its DNS record. Raises ConfigError for a file that is no key, or a damaged one."""

    def __init__(self, domain: str, selector: str, path: Path) -> None:
        self.domain = domain
        self.selector = selector
        self._pem, key = _read(path)
        self._key: PrivateKey | None = None  # from the first signature on
        self.is_slow = isinstance(key, rsa.RSAPrivateKey)  # sign in a thread
        self.algorithm = "rsa-sha256" if self.is_slow else "ed25519-sha256"

    def _loaded(self) -> PrivateKey:
        if self._key is None:  # two threads may do it at once: both keys are the same
            self._key = _parse(self._pem)
        return self._key

    def sign(self, data: bytes) -> bytes:
        """The signature of ``data``."""
        key = self._loaded()
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
        return key.sign(hashlib.sha256(data).digest())  # RFC 8463 section 3

    def record(self) -> tuple[str, str]:
        """Name and text of the TXT record with the public key."""
        public = self._loaded().public_key()
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


def _parse(pem: bytes) -> PrivateKey:
    """The key in ``pem``, not checked. Raises ValueError, TypeError, UnsupportedAlgorithm; ConfigError for another kind."""
    key = serialization.load_pem_private_key(pem, None, unsafe_skip_rsa_key_validation=True)
    if isinstance(key, rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey):
        return key
    raise ConfigError("found another kind of key, allowed for DKIM: RSA, Ed25519")


def _read(path: Path) -> tuple[bytes, PrivateKey]:
    """A PEM private key without a passphrase, as text and parsed. Raises ConfigError."""
    try:
        pem = path.read_bytes()
        key = _parse(pem)
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise ConfigError(f"{path}: not a readable private key in PEM: {exc}") from exc
    if isinstance(key, rsa.RSAPrivateKey):
        if key.key_size < RSA_BITS_MIN:
            raise ConfigError(
                f"{path}: an RSA key of {key.key_size} bits, verifiers require 1024 or more"
            )
        if not _fits_together(key.private_numbers()):
            raise ConfigError(f"{path}: a damaged RSA key: its numbers do not belong together")
    return pem, key


def _fits_together(key: rsa.RSAPrivateNumbers) -> bool:
    """True if the numbers of an RSA key are those of one key, prime factors taken for granted. Source: RFC 8017 section 3.2."""
    p, q, public = key.p, key.q, key.public_numbers
    return (
        p * q == public.n
        and key.d * public.e % (p - 1) == 1
        and key.d * public.e % (q - 1) == 1
        and key.dmp1 == key.d % (p - 1)
        and key.dmq1 == key.d % (q - 1)
        and key.iqmp * q % p == 1
    )


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
        self.signs = bool(keys)  # mail of any domain is signed; asked of each message
        self._tenants = tenants
        self._signed: OrderedDict[str, _Signed | asyncio.Future[None]] = OrderedDict()

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
