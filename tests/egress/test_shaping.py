"""What the rules of shaping change, with time as an argument."""

from itertools import count
from pathlib import Path

from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.sending import ControllerSettings
from zonemta_py.config.shaping import ShapingRules, read_shaping
from zonemta_py.config.values import Rate
from zonemta_py.egress.controller import ShapingChange
from zonemta_py.egress.rules import USUAL, ProviderReply, RecipientAction, ShapingEngine

BEGIN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
MESSAGES = count()
LIMITS = ProviderLimits(sessions_per_address=20, rate=(Rate(600, 60.0),))


def engine(directory: Path, *rules: str) -> ShapingEngine:
    path = directory / "shaping.yaml"
    path.write_text("rules:\n" + "".join(f"  - {{{each}}}\n" for each in rules))
    made = ShapingEngine()
    found = ShapingRules(read_shaping(path))
    made.configure(ControllerSettings(enabled=False), found, lambda name: LIMITS, {})
    return made


def reply(
    reply_class: str, provider: str = "big", address: str = "192.0.2.1", text: str = "no"
) -> ProviderReply:
    return ProviderReply(provider, address, "default", "d.example", reply_class, 550, "5.7.1", text)


def give(made: ShapingEngine, reply: ProviderReply, now_ms: int) -> list[ShapingChange]:
    """The reply to one more message."""
    return made.reply(reply, str(next(MESSAGES)), now_ms)


def test_a_threshold_in_its_window(directory: Path) -> None:
    """For each address by itself; afterwards it takes as many again."""
    made = engine(directory, "name: r, class: blocked, threshold: 3/10m, action: suspend, for: 1h")
    for step in (0, 1, 3_700_000, 3_700_001):
        assert give(made, reply("blocked"), BEGIN_MS + step) == []
    assert give(made, reply("blocked", address="192.0.2.2"), BEGIN_MS + 3_700_002) == []
    [change] = give(made, reply("blocked"), BEGIN_MS + 3_700_003)
    assert (change.what, change.cause) == ("pause", "rule r")
    assert made.controller.paces["big", "192.0.2.1"].paused_ms == BEGIN_MS + 3_700_003 + HOUR_MS
    assert give(made, reply("blocked"), BEGIN_MS + 3_700_004) == []


def test_a_threshold_that_gets_another_period_is_counted_anew(directory: Path) -> None:
    """A reload that makes 5/1m of a rule 5/1h: the count of a minute would never reach it. Others continue to count."""
    threshold = "name: r, class: blocked, threshold: {}, action: suspend, for: 1h"
    made = engine(directory, threshold.format("3/1m"))
    give(made, reply("blocked"), BEGIN_MS)
    for times, period in ((2, "1m"), (3, "1h")):
        rules = directory / "rules.yaml"
        rules.write_text("rules:\n  - {" + threshold.format(f"3/{period}") + "}\n")
        found = ShapingRules(read_shaping(rules))
        made.configure(ControllerSettings(enabled=False), found, lambda name: LIMITS, {})
        step_ms = 50_000 if period == "1h" else 1
        changes = [give(made, reply("blocked"), BEGIN_MS + n * step_ms) for n in range(times)]
        assert list(map(len, changes)) == [0] * (times - 1) + [1]
        made.controller.paces.clear()


def test_the_rules_of_a_provider(directory: Path) -> None:
    made = engine(
        directory,
        "name: a, provider: big, pattern: 'TS0[0-9]', action: lower_rate, to: 25%, for: 1h",
        "name: b, provider: [other], class: policy, action: lower_sessions, to: 2, for: 1h",
    )
    assert give(made, reply("policy"), BEGIN_MS) == []
    [change] = give(made, reply("policy", text="[TS03] no"), BEGIN_MS)
    assert change.after == f"20 sessions, 150/m until {BEGIN_MS + HOUR_MS}"
    [change] = give(made, reply("policy", "other"), BEGIN_MS)
    assert change.after == f"2 sessions, 600/m until {BEGIN_MS + HOUR_MS}"


def test_replies_to_mail_of_another_pool_do_not_move_that_of_the_zone(directory: Path) -> None:
    """That of a tenant with a pool of its own, or of the fallback pool; also while mail of the zone is moved."""
    rule = "name: {0}, class: blocked, pattern: '{0}', action: pool, pool: {1}, for: 1h"
    made = engine(directory, rule.format("p", "second"), rule.format("q", "third"))
    rules = ShapingRules(read_shaping(directory / "shaping.yaml"))
    own, second, tenants = "192.0.2.1", "192.0.2.2", "192.0.2.3"
    pools = {"default": {own}, "second": {second}, "third": {"192.0.2.4"}, "tenants": {tenants}}
    made.configure(ControllerSettings(enabled=False), rules, lambda name: LIMITS, pools)
    assert give(made, reply("blocked", address=tenants, text="p"), BEGIN_MS) == []
    [change] = give(made, reply("blocked", address=own, text="p"), BEGIN_MS)
    assert change.before == "default"
    assert give(made, reply("blocked", address=tenants, text="q"), BEGIN_MS + 1) == []
    [change] = give(made, reply("blocked", address=second, text="q"), BEGIN_MS + 1)
    assert change.before == "second"


def test_another_pool_for_a_time(directory: Path) -> None:
    made = engine(directory, "name: p, class: blocked, action: pool, pool: second, for: 1h")
    [change] = give(made, reply("blocked"), BEGIN_MS)
    assert (change.before, change.after) == ("default", f"second until {BEGIN_MS + HOUR_MS}")
    assert made.rerouted_pool("big", "default", BEGIN_MS + 1) == "second"
    assert give(made, reply("blocked"), BEGIN_MS + HOUR_MS // 2) == [], "it has moved already"
    assert made.rerouted_pool("big", "default", BEGIN_MS + HOUR_MS) == "default"
    assert made.rerouted_pool("other", "default", BEGIN_MS + 1) == "default"
    assert made.end_reroutes(BEGIN_MS + HOUR_MS - 1) == []
    [over] = give(made, reply("mailbox_full"), BEGIN_MS + HOUR_MS + 5)
    assert over == (
        BEGIN_MS + HOUR_MS, "big", "", "pool", "second", "default", "its time is over", True
    )  # fmt: skip
    assert made.end_reroutes(BEGIN_MS + 2 * HOUR_MS) == []


def test_what_becomes_of_the_recipient(directory: Path) -> None:
    made = engine(
        directory,
        "name: a, class: greylisted, action: retry, delays: [5m, 10m]",
        "name: b, class: greylisted, action: not_counted",
        "name: c, class: mailbox_full, action: bounce",
        "name: d, class: spam_content, action: hold",
        "name: e, class: spam_content, action: bounce",
    )
    assert made.action(reply("greylisted")) == RecipientAction((300.0, 600.0), is_counted=False)
    assert made.action(reply("mailbox_full")) == RecipientAction(bounces=True, rule="c")
    assert made.action(reply("spam_content")) == RecipientAction(holds=True, rule="d")
    assert made.action(reply("policy")) is USUAL
    assert made.action(reply("")) is USUAL


def test_what_several_recipients_have_at_once_counts_once(directory: Path) -> None:
    made = engine(directory, "name: r, class: blocked, threshold: 3/10m, action: suspend, for: 1h")
    for _ in range(50):
        assert made.reply(reply("blocked"), "m1", BEGIN_MS) == []
    assert made.reply(reply("blocked", text="another one"), "m1", BEGIN_MS) == []
    [change] = made.reply(reply("blocked"), "m1", BEGIN_MS + 1)
    assert change.what == "pause"


def test_what_is_ignored(directory: Path) -> None:
    """It is no attempt for the controller, and no match for rules behind it; those before it were written for it."""
    rules = (
        "name: own, class: rate_limited, threshold: 101/10m, action: lower_sessions, to: 1, for: 1h",
        "name: i, provider: big, pattern: 'this mailbox', action: ignore",
        "name: r, class: rate_limited, threshold: 3/10m, action: suspend, for: 1h",
    )
    made = engine(directory, *rules)
    made.controller.configure(ControllerSettings(attempts=10), lambda name: LIMITS)
    busy = reply("rate_limited", text="this mailbox is busy")
    for number in range(100):
        assert give(made, busy, BEGIN_MS + number) == []
    assert list(made.controller.counts(BEGIN_MS + 100)) == []
    [change] = give(made, busy, BEGIN_MS + 100)
    assert change.cause == "rule own"


def test_the_pools_of_another_provider_are_no_obstacle(directory: Path) -> None:
    made = engine(
        directory,
        "name: one, provider: big, class: blocked, action: pool, pool: second, for: 1h",
        "name: two, provider: other, class: blocked, action: pool, pool: third, for: 1h",
    )
    [_] = give(made, reply("blocked"), BEGIN_MS)
    [change] = give(made, reply("blocked", "other")._replace(pool="second"), BEGIN_MS)
    assert change.after.startswith("third until ")
