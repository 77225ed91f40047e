"""Keys and certificates of a run, made by the openssl command."""

import shutil
import subprocess
from pathlib import Path

from zonemta_py.core.errors import LocalError

RSA = ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048")
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_dkim_key(path: Path) -> None:
    """An RSA-2048 key. Raises LocalError without openssl."""
    _openssl("genpkey", *RSA, "-out", str(path))


def make_certificate(certificate: Path, key: Path) -> None:
    """A certificate for localhost that nobody trusts, with an EC key. Raises LocalError without openssl."""
    files = ("-out", str(certificate), "-keyout", str(key))
    _openssl("req", "-x509", *EC, "-subj", "/CN=localhost", "-days", "2", *files)


def _openssl(*arguments: str) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise LocalError("the openssl command is needed for this scenario")
    done = subprocess.run([openssl, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LocalError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-300:]}")
