"""The week of docs/deliverability.md, with a relay that is started at moments of it: what its pictures show."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import scaled
from tests.services.page_week import MOMENTS, NEW, relay_at, week
from zonemta_py.delivery.egress_operator import path_rows, warmup_rows
from zonemta_py.relay.relay import Relay

pytestmark = pytest.mark.timeout(scaled(240))


def shown(relay: Relay) -> dict[str, Any]:
    """What the page says of the new address at the provider."""
    egress = relay._delivery.egress
    [path] = [row for row in path_rows(egress) if (row["provider"], row["address"]) == ("google", NEW)]
    [warmup] = warmup_rows(egress)
    paused_until_ms: Any = path["paused_until_ms"]
    pace = (path["pace_sessions"], paused_until_ms - egress.now_ms())
    return {"pace": pace, **{key: warmup[key] for key in ("step", "allowed", "sent", "late_days")}}


async def test_the_week_of_a_relay(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warmed, blocked, paused, lowered, a day late, and at the end of its schedule."""
    monkeypatch.setattr(time, "time_ns", time.time_ns)  # set by ``relay_at``
    found = {}
    async with week(directory) as (config, google):
        for moment in MOMENTS:
            async with relay_at(moment, config, google) as relay:
                found[moment.name] = shown(relay)
    first, blocked, again, late, last = (found[moment.name] for moment in MOMENTS)
    assert (first["step"], first["sent"], first["allowed"]) == (1, 500, 500)
    assert (blocked["step"], blocked["allowed"], blocked["pace"][0]) == (3, 2000, 1)
    assert 7_000_000 < blocked["pace"][1] <= 7_200_000
    assert again["pace"][1] <= 0
    assert 1 < again["pace"][0] < 10
    assert (late["step"], late["sent"], late["allowed"], late["late_days"]) == (3, 2000, 2000, 1)
    assert (last["step"], last["allowed"], last["pace"][0]) == (5, 8000, None)
