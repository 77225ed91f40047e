"""Warnings about certificates of listeners that end soon."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from zonemta_py.config.schema import Config
from zonemta_py.core import clock

SOON = timedelta(days=14)
LOOK_EVERY_S = 24 * 3600.0

log = logging.getLogger(__name__)


def certificate_warnings(config: Config, now: datetime) -> Iterator[str]:
    """A warning for each certificate that ends within SOON, or has ended. Files that cannot be read are left out."""
    files = {
        f"listeners[{i}].tls.certificate_file": listener.tls.certificate_file
        for i, listener in enumerate(config.listeners)
        if listener.tls.mode != "none"
    }
    files["admin.tls.certificate_file"] = config.admin.tls.certificate_file
    for key, path in files.items():
        end = _end_of(path) if path is not None else None
        if end is None or end - now > SOON:
            continue
        when = f"has ended on {end:%Y-%m-%d}" if end <= now else f"ends on {end:%Y-%m-%d %H:%M} UTC"
        yield f"{key}: {path} {when}"


def _end_of(path: Path) -> datetime | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None  # the listener refuses it


class CertificateWatch:
    """Logs the warnings about the present configuration once a day."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look every day: at the start, `preflight.warnings` has them."""
        self._task = asyncio.create_task(self._run(), name="certificates")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for warning in certificate_warnings(self._config(), clock.utc(clock.now_ms())):
                log.warning("%s", warning)

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
