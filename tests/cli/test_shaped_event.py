"""How ``tail`` and ``shaping replay`` print a change of what is sent."""

import pytest

from zonemta_py.cli.common import shaped_text
from zonemta_py.cli.events import print_event
from zonemta_py.core.codec import to_plain
from zonemta_py.events.schema import Shaped


@pytest.mark.parametrize(
    ("provider", "address", "where"),
    [("google", "192.0.2.1", "google from 192.0.2.1"), ("", "", "any from any")],
)
def test_a_change_is_one_line(
    capsys: pytest.CaptureFixture[str], provider: str, address: str, where: str
) -> None:
    event = Shaped(
        time_ms=1_795_600_000_123, provider=provider, address=address, what="pace", before="full",
        after="5 sessions, 300/m", cause="31 of 90 attempts were refused or deferred",
    )  # fmt: skip
    print_event({"event": event.name, **to_plain(event)})
    assert capsys.readouterr().out == (
        f"2026-11-25 09:46:40.123  shaped    {where}: pace: full -> 5 sessions, 300/m "
        "(31 of 90 attempts were refused or deferred)\n"
    )


def test_times_can_be_read() -> None:
    row = {
        "provider": "google", "address": "system", "what": "pause", "from": "sending",
        "to": "paused until 1795600000123", "cause": "rule google-blocked",
    }  # fmt: skip
    assert shaped_text(row) == (
        "google from system: pause: sending -> paused until 2026-11-25 09:46:40 UTC (rule google-blocked)"
    )
