"""18. A reload renews the certificate of implicit TLS for the next connections."""

import asyncio
import ssl
from pathlib import Path

from tests.kit.listener import certificate
from tests.kit.relay import relaying, staged


def serial(port: int) -> str:
    """The certificate that the relay shows."""
    return ssl.get_server_certificate(("127.0.0.1", port))


async def test_implicit_tls(directory: Path) -> None:
    cert, key, _ = certificate(directory)
    async with staged(directory) as stage:
        listener = {
            "address": "127.0.0.1:0",
            "tls": {"mode": "implicit", "certificate_file": str(cert), "key_file": str(key)},
        }
        config = stage.config(listeners=[listener], processes={})
        async with relaying(config) as relay:
            port = relay.addresses[0].port
            before = await asyncio.to_thread(serial, port)
            certificate(directory)
            relay.reload(lambda: stage.config(listeners=[listener], processes={}))
            after = await asyncio.to_thread(serial, port)
            assert after != before
