"""Signing: real keys, and verification by dkimpy of what a receiver got."""

import re
from pathlib import Path

import dkim as dkimpy
import pytest

from tests.kit.dkim import verified, write_key
from tests.kit.relay import empty, ledger, received, relaying, send, staged
from zonemta_py.config.schema import Dkim, DkimKey
from zonemta_py.config.tenants import Tenants
from zonemta_py.config.values import Seconds
from zonemta_py.core.errors import ConfigError, QueueCorrupt
from zonemta_py.delivery.dkim import Key, Signer, load_keys
from zonemta_py.smtp.dkim import BodyHash

BODY = b"A line.  Two  spaces, a tab\tand an end \r\n\r\n.dot\r\n\r\n\r\n"


async def test_both_kinds_of_key(directory: Path) -> None:
    """Two signatures, both verify; a changed subject, a second From and a changed body do not."""
    keys = [
        Key("example.org", "r1", write_key(directory / "r.pem")),
        Key("example.org", "e1", write_key(directory / "e.pem", "ed25519")),
    ]
    signer = Signer(Dkim(), {"example.org": keys}, Tenants({}))
    header = b"From: News <news@mail.example.org>\r\nSubject: Hello\r\n\tyou\r\nTo: a@b.example\r\n"

    async def hashed() -> bytes:
        found = BodyHash()
        found.feed(BODY)
        return found.digest()

    fields = await signer.signatures("m1", header, hashed, "")
    message = fields + header + b"\r\n" + BODY
    assert verified(message, *keys) == [True, True]
    assert await signer.signatures("m1", b"", hashed, "") == fields, "once a message"
    assert max(map(len, fields.split(b"\r\n"))) < 90
    for wrong in (
        message.replace(b"Hello", b"Hallo"),
        fields + b"From: evil@evil.example\r\n" + header + b"\r\n" + BODY,
        fields + b"Cc: more@evil.example\r\n" + header + b"\r\n" + BODY,
        message.replace(b"A line", b"B line"),
    ):
        try:
            assert not any(verified(wrong, *keys))
        except dkimpy.ValidationError:
            pass
    signer.close()


async def test_an_author_without_a_key_and_a_body_that_cannot_be_read(directory: Path) -> None:
    """Nothing is added; a failure is not remembered."""
    keys = {"example.org": [Key("example.org", "e", write_key(directory / "e", "ed25519"))]}
    signer = Signer(Dkim(), keys, Tenants({}))

    async def damaged() -> bytes:
        raise QueueCorrupt("chunk 2 is missing")

    assert await signer.signatures("m1", b"From: a@other.example\r\n", damaged, "") == b""
    for _ in range(2):
        with pytest.raises(QueueCorrupt):
            await signer.signatures("m2", b"From: a@example.org\r\n", damaged, "")
    assert "m2" not in signer._signed
    signer.close()


async def test_a_retry_is_signed_anew_before_its_signature_expires(directory: Path) -> None:
    keys = {"example.org": [Key("example.org", "e", write_key(directory / "e", "ed25519"))]}
    now_ms = 1_800_000_000_000
    signer = Signer(Dkim(expire=Seconds(3600)), keys, Tenants({}), lambda: now_ms)

    async def body_hash() -> bytes:
        return b"x" * 32

    async def expires_s() -> int:
        fields = await signer.signatures("m1", b"From: a@example.org\r\n", body_hash, "")
        found = re.search(rb"\bx=(\d+)", fields)
        assert found is not None
        return int(found[1])

    first_s = await expires_s()
    now_ms += 1_799_000
    assert await expires_s() == first_s
    now_ms += 1000
    assert await expires_s() == first_s + 1800
    signer.close()


def test_keys_that_cannot_be_used(directory: Path) -> None:
    def entry(path: Path) -> Dkim:
        return Dkim((DkimKey("example.org", "s", path),))

    with pytest.raises(ConfigError, match=r"none\.pem"):
        load_keys(entry(directory / "none.pem"))
    (directory / "text.pem").write_text("hello")
    with pytest.raises(ConfigError, match="PEM"):
        load_keys(entry(directory / "text.pem"))
    with pytest.raises(ConfigError, match="allowed for DKIM: RSA, Ed25519"):
        load_keys(entry(write_key(directory / "ec.pem", "ec")))


@pytest.mark.parametrize("size", [50, 300_000])
async def test_a_receiver_can_verify(directory: Path, size: int) -> None:
    """Through the whole relay: hashed as it came in, signed once, verified as it arrived; a report too."""
    rsa_key, own_key = write_key(directory / "r.pem"), write_key(directory / "e.pem", "ed25519")
    entries = [
        {"domain": "sender.example", "selector": "r1", "key_file": str(rsa_key)},
        {"domain": "sender.example", "selector": "e1", "key_file": str(own_key)},
    ]
    keys = [Key("sender.example", "r1", rsa_key), Key("sender.example", "e1", own_key)]
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        other = await stage.receiver("b.example")
        async with relaying(stage.config(dkim={"keys": entries})) as relay:
            message = (
                b"From: s@sender.example\r\nSubject: x\r\n\r\n"
                + BODY
                + b"y" * 70
                + b"\r\n" * (size // 2)
            )
            await send(relay, ["x@a.example", "y@b.example"], message + b"end")
            await received(sink, 1)
            await received(other, 1)
            await empty(relay)
        (one,), (two,) = sink.messages, other.messages
        assert verified(one.data, *keys) == [True, True]
        assert one.data == two.data
    assert ledger(directory).total("delivered") == 2
