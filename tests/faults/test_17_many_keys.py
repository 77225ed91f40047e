"""17. Thousands of DKIM keys: each is read and checked once, off the event loop, and parsed again when it signs for the first time."""

import base64
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.kit.dkim import verified, write_key
from tests.kit.relay import empty, received, relaying, send, staged
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Dkim, DkimKey
from zonemta_py.config.tenants import Tenants
from zonemta_py.core.errors import ConfigError
from zonemta_py.delivery import dkim
from zonemta_py.delivery.dkim import Key, load_keys
from zonemta_py.relay.preflight import warnings

PROCESSES = pytest.mark.parametrize("processes", [(0, 0), (2, 2)], ids=["0/0", "2/2"])


class Parsed:
    """Counts how often a key was parsed, by thread, and fails for OpenSSL's own check of one, which takes 36 ms."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.threads: Counter[int] = Counter()
        self._original = serialization.load_pem_private_key
        patch.setattr(serialization, "load_pem_private_key", self._load)

    def _load(self, data: bytes, password: bytes | None, **options: Any) -> Any:
        assert options.get("unsafe_skip_rsa_key_validation"), (
            "checked by OpenSSL, with the interpreter lock held"
        )
        self.threads[threading.get_ident()] += 1
        return self._original(data, password, **options)

    @property
    def here(self) -> int:
        return self.threads[threading.get_ident()]


def settings_of(path: Path, count: int) -> Dkim:
    return Dkim(
        keys=tuple(DkimKey(domain=f"d{n}.example", selector="s", key_file=path) for n in range(count))
    )


def test_a_key_is_parsed_at_load_and_at_its_first_signature(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_key(directory / "key.pem")
    parsed = Parsed(monkeypatch)
    keys = load_keys(settings_of(path, 300))
    assert parsed.here == 300
    [key] = keys["d7.example"]
    path.unlink()  # what was read at the reload signs until the next
    assert key.sign(b"x") == key.sign(b"x")
    assert parsed.here == 301


async def test_what_is_done_with_thousands_of_keys(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is parsed and checked once at load, parsed once more when it signs for the first time, and then never again."""
    parsed, checked = Parsed(monkeypatch), Counter[str]()
    fits_together = dkim._fits_together

    def check(numbers: rsa.RSAPrivateNumbers) -> bool:
        checked["keys"] += 1
        return fits_together(numbers)

    monkeypatch.setattr(dkim, "_fits_together", check)
    settings = settings_of(write_key(directory / "key.pem"), 5000)

    async def body_hash() -> bytes:
        return b"hash"

    async def sign(signer: dkim.Signer, message: str, domain: str) -> None:
        header = f"From: n@{domain}\r\n".encode()
        assert f" d={domain};".encode() in await signer.signatures(message, header, body_hash, "")

    signer = dkim.Signer(settings, load_keys(settings), Tenants({}))
    try:
        for begun in (0, 1):  # at the start, and behind a reload
            if begun:
                signer.configure(settings, load_keys(settings), Tenants({}))
            assert (sum(parsed.threads.values()), checked["keys"]) == (5000, 5000)
            for times in range(3):
                for number in range(0, 5000, 200):
                    await sign(signer, f"{times}-{number}", f"d{number}.example")
                    await sign(signer, f"{times}-{number}", f"d{number}.example")  # its next transaction
            assert (sum(parsed.threads.values()), checked["keys"]) == (5025, 5000)
            parsed.threads.clear()
            checked.clear()
    finally:
        signer.close()


def test_a_damaged_rsa_key_is_refused(directory: Path) -> None:
    """A flipped bit is an error that names the file, or changes nothing of the numbers, wherever it is."""
    path = write_key(directory / "key.pem", bits=1024)
    text = path.read_bytes()
    head, body, tail = text.partition(b"\n")[0], b"".join(text.splitlines()[1:-1]), text.splitlines()[-1]
    der = bytearray(base64.b64decode(body))
    right = Key("d.example", "s", path).record()
    for at in range(0, len(der), 5):
        flipped = bytearray(der)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(b"\n".join([head, base64.b64encode(flipped), tail, b""]))
        try:
            found = Key("d.example", "s", path).record()
        except ConfigError as exc:
            assert str(path) in str(exc)
        else:
            assert found == right, at


@PROCESSES
async def test_a_reload_reads_keys_in_a_thread(
    directory: Path, monkeypatch: pytest.MonkeyPatch, processes: tuple[int, int]
) -> None:
    """What is submitted behind the reload is signed by the new keys, each tenant's by its own, in all processes."""
    paths = [write_key(directory / f"{name}.pem") for name in ("old", "one", "two")]

    def dkim(*keys: tuple[str, Path]) -> dict[str, Any]:
        listed = [{"domain": domain, "selector": "s", "key_file": str(path)} for domain, path in keys]
        more = [
            {"domain": f"d{n}.example", "selector": "s", "key_file": str(paths[0])} for n in range(200)
        ]
        return {"keys": [*listed, *more]}

    counts = {"receivers": processes[0], "senders": processes[1]}
    before = dkim(("one.example", paths[0]))
    after = dkim(("one.example", paths[1]), ("two.example", paths[2]))
    async with staged(directory) as stage:
        sinks = [await stage.receiver("a.example"), await stage.receiver("b.example")]
        async with relaying(stage.config(dkim=before, processes=counts)) as relay:
            parsed = Parsed(monkeypatch)
            assert "dkim.keys" in await relay.reload(stage.config(dkim=after, processes=counts))
            assert parsed.here == 0, "on the event loop"
            assert sum(parsed.threads.values()) == 202
            monkeypatch.undo()
            for domain, to in (("one.example", "x@a.example"), ("two.example", "x@b.example")):
                await send(relay, [to], f"From: n@{domain}\r\nSubject: x\r\n\r\nhello\r\n".encode())
            found = [(await received(sink, 1))[0].data for sink in sinks]
            await empty(relay)
    for data, domain, path in zip(found, ("one.example", "two.example"), paths[1:], strict=True):
        assert re.findall(rb" d=([^;]+);", data) == [domain.encode()]
        assert verified(data, Key(domain, "s", path)) == [True]


def test_warnings_do_not_grow_with_keys(directory: Path) -> None:
    """Files that others may read are named, up to five; unsigned domains of tenants are looked for in linear time."""
    path = write_key(directory / "key.pem", "ed25519")
    path.chmod(0o644)
    keys = "\n".join(
        f"    - {{domain: k{n}.example, selector: s, key_file: {path}}}" for n in range(2000)
    )
    tenants = "\n".join(f"  t{n}: {{domains: [d{n}.example, '*.d{n}.example']}}" for n in range(2000))
    config = parse_config(f"dkim:\n  keys:\n{keys}\ntenants:\n{tenants}\n", directory / "z.yaml")
    found = list(warnings(config, "relay.example"))
    readable = [text for text in found if "every user of this machine can read" in text]
    assert len(readable) == 6
    assert readable[-1].startswith("every user of this machine can read 1995 more files")
    assert any("dkim.keys has no key for d0.example (t0)" in text for text in found)
