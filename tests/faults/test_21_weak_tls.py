"""21. Opportunistic TLS is the best that both ends can; clear text comes last, and is no reason to return mail."""

import ssl
from pathlib import Path

import pytest
import trustme

from tests.kit.deadlines import until
from tests.kit.queue import everything
from tests.kit.relay import FAST_RETRY, ledger, received, relaying, send, staged
from tests.kit.tls_sink import TlsSink, server_context

pytestmark = pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
GROUP_OF_1024_BITS = """-----BEGIN DH PARAMETERS-----
MIGHAoGBAOQcae2yInjwrFsg5CigIv3iagO40TXkI8k7xp0EUfQ+n17pMOt12kld
qTXct0ZRTU9Kun+GF9tZ6hFd23bphe6M5sEoXVGFDos0x11XsDdy8OSCAE7Oygf8
4PaYwvtu0BclhNHm6ex8obYQ6ps9tYfrxXX4rgU4eHp87Lm+dkF/AgEC
-----END DH PARAMETERS-----
"""
MUST = "530 5.7.0 Must issue a STARTTLS command first"
PROCESSES = [{"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}]


def server_of(
    directory: Path,
    domain: str,
    ca: trustme.CA,
    versions: tuple[ssl.TLSVersion, ssl.TLSVersion],
    ciphers: str = "DEFAULT",
) -> ssl.SSLContext:
    """A server with an RSA certificate of ``ca``, and these versions and ciphers only."""
    cert = ca.issue_cert(f"mx.{domain}", key_type=trustme.KeyType.RSA)
    cert.private_key_and_cert_chain_pem.write_to_path(directory / "rsa.pem")
    context = server_context(directory / "rsa.pem", directory / "rsa.pem")
    context.minimum_version, context.maximum_version = versions
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    return context


@pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
async def test_the_best_that_both_can(directory: Path, processes: dict[str, int]) -> None:
    """TLS 1.0, TLS 1.1, a group of 1024 bits; a zone that requires TLS takes TLS 1.3 with a known certificate only."""
    v, ca = ssl.TLSVersion, trustme.CA(key_type=trustme.KeyType.RSA)
    ca.cert_pem.write_to_path(directory / "ca.pem")
    small = "DHE-RSA-AES128-GCM-SHA256"
    servers = {
        "one.example": server_of(directory, "one.example", ca, (v.TLSv1, v.TLSv1)),
        "two.example": server_of(directory, "two.example", ca, (v.TLSv1_1, v.TLSv1_1)),
        "small.example": server_of(directory, "small.example", ca, (v.TLSv1_2, v.TLSv1_2), small),
        "new.example": server_of(directory, "new.example", ca, (v.TLSv1, v.TLSv1_3)),
    }
    (directory / "dh.pem").write_text(GROUP_OF_1024_BITS)
    servers["small.example"].load_dh_params(str(directory / "dh.pem"))
    async with staged(directory) as stage:
        for domain, context in servers.items():
            await stage.receiver(domain, kind=TlsSink, context=context)
        zones = {
            "default": {"port": stage.port, "retry": FAST_RETRY},
            "strict": {"tls": "required", "tls_ca_file": str(directory / "ca.pem")},
        }
        routing = [{"sender_domain": "strict.example", "zone": "strict"}]
        config = stage.config(zones=zones, routing=routing, processes=processes)
        async with relaying(config) as relay:
            for domain in servers:
                await send(relay, [f"x@{domain}"], sender="s@strict.example")
                await send(relay, [f"x@{domain}"])
            for domain, sink in stage.sinks.items():
                await received(sink, 2 if domain == "new.example" else 1)
            await until(lambda: len(relay.queue.traffic.failures) >= 3, "the strict zone")
        for domain, sink in stage.sinks.items():
            assert isinstance(sink, TlsSink)
            expected = [("s@sender.example", True)]
            if domain == "new.example":
                expected.append(("s@strict.example", True))
            assert sorted(sink.envelopes) == expected, domain
        made = {domain: sink.handshakes[0] for domain, sink in stage.sinks.items()}  # type: ignore[attr-defined]  # each is a TlsSink
        assert made == {
            "one.example": "TLSv1",
            "two.example": "TLSv1.1",
            "small.example": "TLSv1.2",
            "new.example": "TLSv1.3",
        }


@pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
async def test_clear_text_is_the_last(directory: Path, processes: dict[str, int]) -> None:
    """A handshake that is cut once is made again; where it never succeeds the mail leaves in clear text."""
    cert = trustme.CA().issue_cert("mx.example")
    cert.private_key_and_cert_chain_pem.write_to_path(directory / "cert.pem")
    context = server_context(directory / "cert.pem", directory / "cert.pem")
    async with staged(directory) as stage:
        once = await stage.receiver("once.example", kind=TlsSink, context=context, cuts=1, requires=MUST)
        never = await stage.receiver("never.example", kind=TlsSink, cuts=1000)
        twice = await stage.receiver(
            "twice.example", kind=TlsSink, context=context, cuts=2, requires="550 5.7.1 TLS required"
        )
        async with relaying(stage.config(processes=processes)) as relay:
            for domain, sink in stage.sinks.items():
                await send(relay, [f"x@{domain}"])
                await received(sink, 1)
            await until(lambda: not everything(relay.queue.store), "an empty queue")
        assert isinstance(once, TlsSink)
        assert isinstance(never, TlsSink)
        assert isinstance(twice, TlsSink)
        assert once.envelopes == [("s@sender.example", True)]
        assert never.envelopes == [("s@sender.example", False)]
        assert twice.envelopes == [("s@sender.example", False), ("s@sender.example", True)]
    counts = ledger(directory).counts["default"]
    assert (counts["delivered"], counts["bounced"]) == (3, 0)
