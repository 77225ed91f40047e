"""Keys, and certificates of receivers, whose sizes are the same in each process: bytes on a connection decide when they arrive."""

import ssl
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

SERIAL = 1 << 150
KEY_BITS = 2048  # RSA: its signatures have one length, those of ECDSA have several
FROM, TO = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)


@cache
def _made(hosts: tuple[str, ...]) -> tuple[bytes, bytes]:
    """A certificate that is its own authority, and its key, both PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "receivers")])
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), SERIAL, FROM, TO)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return certificate.public_bytes(pem), key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, plain
    )


def key_file(directory: Path, name: str) -> Path:
    """A key of that name, in PEM."""
    path = directory / f"{name}.key"
    path.write_bytes(_made((name,))[1])
    return path


def server_context(directory: Path, *hosts: str) -> tuple[Path, ssl.SSLContext]:
    """The certificate of ``hosts``, as a file in ``directory``, and the context of a server with it."""
    path = directory / f"{hosts[0]}.pem"
    certificate, key = _made(hosts)
    path.write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context
