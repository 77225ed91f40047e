"""Keys of DKIM, and verification by dkimpy."""

from collections.abc import Callable
from pathlib import Path

import dkim as dkimpy
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from zonemta_py.delivery.dkim import Key


def write_key(path: Path, kind: str = "rsa", bits: int = 2048) -> Path:
    make: dict[str, Callable[[], PrivateKeyTypes]] = {
        "rsa": lambda: rsa.generate_private_key(65537, bits),
        "ed25519": ed25519.Ed25519PrivateKey.generate,
        "ec": lambda: ec.generate_private_key(ec.SECP256R1()),
    }
    path.write_bytes(
        make[kind]().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def dns(*keys: Key) -> Callable[..., bytes]:
    records = {f"{name}.".encode(): text.encode() for name, text in (key.record() for key in keys)}
    return lambda name, timeout=5: records.get(name, b"")


def verified(message: bytes, *keys: Key) -> list[bool]:
    checker = dkimpy.DKIM(message)
    count = message.lower().count(b"dkim-signature:")
    return [checker.verify(idx=index, dnsfunc=dns(*keys)) for index in range(count)]
