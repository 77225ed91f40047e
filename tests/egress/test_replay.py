"""A replay of the event log, in which time passes only by its records."""

from typing import Any

from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.sending import ControllerSettings
from zonemta_py.config.shaping import ShapingRule, ShapingRules
from zonemta_py.config.values import Rate
from zonemta_py.egress.controller import FULL
from zonemta_py.egress.replay import ShapingReplay, ShapingSetup
from zonemta_py.egress.rules import OPERATOR

BEGIN_MS = 1_700_000_000_000
LIMITS = ProviderLimits(sessions_per_address=20, rate=(Rate(10, 1.0),))
PLACE = {"provider": "big", "address": "192.0.2.1", "what": "pace"}


def record(seq: int, after_s: float, **values: Any) -> dict[str, Any]:
    return {
        "node": "abcdef", "seq": seq, "position": 0, "time_ms": BEGIN_MS + round(after_s * 1000), **values,
    }  # fmt: skip


def blocked(seq: int, after_s: float) -> dict[str, Any]:
    return record(
        seq, after_s, event="deferred", message="m", provider="big", source_ip="192.0.2.1", zone="default",
        domain="a.example", code=421, status="4.7.0", reply="blocked", **{"class": "blocked"},
    )  # fmt: skip


def ended(seq: int, after_s: float) -> dict[str, Any]:
    changed = {"from": "1 session", "to": FULL, "cause": OPERATOR}
    return record(seq, after_s, event="shaped", **PLACE, **changed)


def test_steps_that_were_due_before_an_operator_ended_a_pace() -> None:
    """No reply came between: the relay has recorded them by its timer."""
    settings = ControllerSettings()
    replay = ShapingReplay(
        ShapingSetup(settings, ShapingRules([]), lambda name: LIMITS, lambda zone, domain: "default", {})
    )
    interval_s = float(settings.interval)
    replay.add(blocked(1, 0))
    [lowered] = replay.changes
    replay.add(ended(2, 2.5 * interval_s))
    replay.add(blocked(3, 2.6 * interval_s))
    replay.end()
    assert [each.before for each in replay.changes] == [
        FULL, lowered.after, replay.changes[1].after, FULL,
    ]  # fmt: skip
    assert [round((each.time_ms - BEGIN_MS) / 1000 / interval_s, 1) for each in replay.changes] == [
        0, 1, 2, 2.6,
    ]  # fmt: skip


def test_what_the_rules_say_of_recipients_is_counted() -> None:
    """Of each kind the first; nothing about sending after one that ignores the reply, nor at a smarthost."""
    rules = [
        ShapingRule("hold", classes=("blocked",), action="hold"),
        ShapingRule("bounce", action="bounce"),
        ShapingRule("early", classes=("blocked",), action="suspend", for_s=60.0),
        ShapingRule("ignore", providers=("big",), action="ignore"),
        ShapingRule("late", action="suspend", for_s=60.0),
    ]
    replay = ShapingReplay(
        ShapingSetup(
            ControllerSettings(), ShapingRules(rules), lambda name: LIMITS, lambda zone, domain: "default", {}
        )
    )  # fmt: skip
    replay.add(blocked(1, 0))
    replay.add({**blocked(2, 1), "provider": ""})
    replay.add({**blocked(3, 2), "class": "policy"})
    replay.end()
    assert [tuple(each) for each in replay.uses()] == [
        ("hold", "hold", 2, 0), ("bounce", "bounce", 1, 0), ("early", "suspend", 1, 1), ("ignore", "ignore", 2, 0),
    ]  # fmt: skip
