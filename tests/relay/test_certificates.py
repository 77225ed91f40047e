"""Certificates that end soon are named before they do."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.kit.deadlines import until
from zonemta_py.config.load import parse_config
from zonemta_py.relay import preflight
from zonemta_py.relay.preflight import CertificateWatch, certificate_warnings

NOW = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("days", "expected"),
    [(30, None), (13, "ends on 2027-01-14 00:00 UTC"), (-2, "has ended on 2026-12-30"), (None, None)],
)
def test_when_a_certificate_ends(tmp_path: Path, days: int | None, expected: str | None) -> None:
    """One that is no certificate is not our matter: the listener refuses it."""
    path = tmp_path / "cert.pem"
    path.write_text("no certificate")
    if days is not None:
        end = NOW + timedelta(days=days)
        issued = trustme.CA().issue_cert("relay.example", not_before=NOW - timedelta(90), not_after=end)
        issued.cert_chain_pems[0].write_to_path(str(path))
    tls = f"{{mode: starttls, certificate_file: {path}, key_file: {path}}}"
    config = parse_config(
        f"listeners: [{{address: '127.0.0.1:0', tls: {tls}}}]\n"
        f"admin: {{tls: {{certificate_file: {path}, key_file: {path}}}}}\n",
        tmp_path / "z.yaml",
    )
    found = list(certificate_warnings(config, NOW))
    if expected is None:
        assert found == []
    else:
        assert found == [
            f"listeners[0].tls.certificate_file: {path} {expected}",
            f"admin.tls.certificate_file: {path} {expected}",
        ]


async def test_the_watch_logs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "LOOK_EVERY_S", 0.0)
    path = tmp_path / "cert.pem"
    now = datetime.now(UTC)
    issued = trustme.CA().issue_cert("relay.example", not_after=now + timedelta(days=1))
    issued.cert_chain_pems[0].write_to_path(str(path))
    config = parse_config(
        f"admin: {{tls: {{certificate_file: {path}, key_file: {path}}}}}\n", tmp_path / "z.yaml"
    )
    watch = CertificateWatch(lambda: config)
    await watch.start()
    await until(lambda: "admin.tls.certificate_file" in caplog.text, "the warning")
    await watch.close()
