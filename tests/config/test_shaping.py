"""Files of shaping rules, and which of them a reply matches."""

from pathlib import Path
from typing import Any

import pytest

from zonemta_py.config.providers import ProviderTable, load_providers
from zonemta_py.config.shaping import (
    ShapingRule,
    ShapingRules,
    ShapingTarget,
    check_pools,
    check_rule_providers,
    load_shaping,
    read_shaping,
)
from zonemta_py.config.values import Percent, Rate
from zonemta_py.core.errors import ConfigError

WHOLE = """
rules:
  - {name: a, provider: google, class: blocked, threshold: 5/1h, action: suspend, for: 2h}
  - {name: b, provider: [yahoo, x.example], pattern: 'TS0[34]', action: lower_rate, to: 60/m, for: 30m}
  - {name: c, class: [rate_limited, blocked], pattern: [slow, fast], action: lower_rate, to: 50%, for: 1d}
  - {name: d, class: greylisted, action: retry, delays: [5m, 10m]}
  - {name: e, class: connection_limited, action: lower_sessions, to: 2, for: 1h}
  - {name: f, class: policy, action: pool, pool: fallback, for: 1h}
  - {name: g, class: mailbox_full, action: not_counted}
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "shaping.yaml"
    path.write_text(text)
    return path


def test_every_action(tmp_path: Path) -> None:
    assert read_shaping(written(tmp_path, WHOLE)) == [
        ShapingRule("a", ("google",), ("blocked",), (), 5, 3600.0, "suspend", 7200.0),
        ShapingRule(
            "b", ("yahoo", "x.example"), (), ("TS0[34]",), action="lower_rate", for_s=1800.0,
            to=ShapingTarget(rate=Rate(60, 60.0)),
        ),
        ShapingRule(
            "c", (), ("rate_limited", "blocked"), ("slow", "fast"), action="lower_rate", for_s=86400.0,
            to=ShapingTarget(percent=Percent(50)),
        ),
        ShapingRule("d", (), ("greylisted",), action="retry", delays_s=(300.0, 600.0)),
        ShapingRule(
            "e", (), ("connection_limited",), action="lower_sessions", for_s=3600.0, to=ShapingTarget(sessions=2)
        ),
        ShapingRule("f", (), ("policy",), action="pool", for_s=3600.0, pool="fallback"),
        ShapingRule("g", (), ("mailbox_full",), action="not_counted"),
    ]  # fmt: skip


def test_what_a_reply_matches(tmp_path: Path) -> None:
    """All rules, in their order; provider, class and one of the patterns must hold."""
    rules = ShapingRules(read_shaping(written(tmp_path, WHOLE)))

    def names(*arguments: Any) -> str:
        return "".join(rule.name for rule in rules.matching(*arguments))

    assert names("google", "blocked", 550, "", "too fast") == "ac"
    assert names("microsoft", "blocked", 550, "", "no") == ""
    assert names("yahoo", "other", 421, "4.7.0", "[TS04] later") == "b"
    assert names("mx.x.example", "other", 421, "", "[TS03]", "x.example") == "b"
    assert names("aol", "other", 421, "", "[TS03]") == ""
    assert (
        names("yahoo", "greylisted", 421, "", "https://x.example/TS03") == "bd"
    )  # a URL is searched, too
    assert ShapingRules(()).matching("google", "blocked", 550, "", "x") == []


ACTION = ", action: suspend, for: 1h}"


@pytest.mark.parametrize(
    "entry, where, words",
    [
        ("{class: policy" + ACTION, "name", "a name is needed"),
        ("{name: A b, class: policy" + ACTION, "name", "a name is needed"),
        ("{name: a" + ACTION, "", "a class or a pattern is needed"),
        ("{name: a, class: plicy" + ACTION, "class", "found 'plicy', allowed: invalid_recipient"),
        ("{name: a, pattern: '('" + ACTION, "pattern", "'(' is no pattern of RE2"),
        ("{name: a, class: policy, provider: Google" + ACTION, "provider", "expected lower case"),
        ("{name: a, class: policy}", "action", "an action is needed: suspend, lower_rate"),
        (
            "{name: a, class: policy, action: stop}",
            "action",
            "found 'stop', allowed: suspend, lower_rate",
        ),
        (
            "{name: a, class: policy, action: none}",
            "action",
            "found 'none', allowed: suspend, lower_rate",
        ),
        ("{name: a, class: policy, action: suspend}", "", "action suspend needs for"),
        (
            "{name: a, class: policy, provider: [google, smarthost]" + ACTION,
            "action",
            "found 'suspend': nothing limits mail to a smarthost; rules for it may say hold, bounce, defer, retry, not_counted, ignore",
        ),
        ("{name: a, class: policy, action: hold, for: 1h}", "for", "action hold has no for"),
        ("{name: a, class: policy, action: retry}", "", "action retry needs delays"),
        ("{name: a, class: policy, action: retry, delays: [0s]}", "delays", "more than 0s"),
        ("{name: a, class: policy, action: suspend, for: 90d}", "for", "up to 31d"),
        ("{name: a, class: policy, threshold: 1/1h" + ACTION, "threshold", "absent: at once"),
        (
            "{name: a, class: policy, threshold: 5/1h, action: bounce}",
            "threshold",
            "action bounce has no threshold",
        ),
        (
            "{name: a, class: policy, threshold: often" + ACTION,
            "threshold",
            "expected a number of matches in a time such as 5/10m, of at least 2",
        ),
        (
            "{name: a, class: policy, threshold: 5" + ACTION,
            "threshold",
            "found '5', expected a number of matches",
        ),
        (
            "{name: a, class: policy, threshold: 0/10m" + ACTION,
            "threshold",
            "such as 5/10m, of at least 2",
        ),
        (
            "{name: a, class: policy, threshold: 9/40d" + ACTION,
            "threshold",
            "such as 5/10m: 2 to 10000 in up to 31d",
        ),
        ("{name: a, class: policy, action: lower_rate, to: 5, for: 1h}", "to", "or a rate such as 60/m"),
        (
            "{name: a, class: policy, action: lower_sessions, to: 0, for: 1h}",
            "to",
            "or a number of sessions",
        ),
        ("{name: a, class: policy, action: lower_rate, to: 100%, for: 1h}", "to", "1% to 99%"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, entry: str, where: str, words: str) -> None:
    path = written(tmp_path, f"rules:\n- {entry}\n")
    with pytest.raises(ConfigError) as caught:
        read_shaping(path)
    key = f"rules[0].{where}".rstrip(".")
    assert str(caught.value).startswith(f"{path}:2: {key}: ")
    assert words in str(caught.value)


def test_names_are_unique_and_replace_shipped_rules(tmp_path: Path) -> None:
    twice = "rules:\n" + "- {name: a, class: policy, action: hold}\n" * 2
    with pytest.raises(
        ConfigError, match=r"shaping.yaml:3: rules\[1\].name: 'a' is the name of an earlier"
    ):
        read_shaping(written(tmp_path, twice))
    shipped = load_shaping(None, shipped=True).rules
    name = shipped[-1].name
    own = written(tmp_path, f"rules:\n- {{name: {name}, class: policy, action: hold}}\n")
    both = load_shaping(own, shipped=True).rules
    assert len(both) == len(shipped)
    assert (both[0].name, both[0].action) == (name, "hold")
    assert len(load_shaping(own, shipped=False).rules) == 1


def test_pools_must_exist(tmp_path: Path) -> None:
    """The error names the file and the line."""
    path = written(tmp_path, WHOLE)
    rules = ShapingRules(read_shaping(path))
    check_pools(rules, ["default", "fallback"])
    with pytest.raises(ConfigError) as caught:
        check_pools(rules, ["default", "falback"])
    assert str(caught.value) == (f"{path}:8: rules[5].pool: found 'fallback'; did you mean 'falback'?")


def test_providers_of_rules_must_be_known(tmp_path: Path) -> None:
    """Names without a dot: a table has them. Rules that are shipped may be for a table that is not used."""
    table = load_providers(None, shipped=True)
    check_rule_providers(load_shaping(None, shipped=True), ProviderTable({}))
    for name, problem in (
        ("gogle", "found 'gogle': the table has no such provider, and it is not the name of a host; did you mean 'google'?"),
        ("default", "'default' is no provider, but has the limits"),
        ("mx example.com", "found 'mx example.com': the table has no such provider"),
    ):  # fmt: skip
        path = written(
            tmp_path,
            f"rules:\n- {{name: a, provider: [smarthost, google, x.example, {name}], class: policy, action: hold}}",
        )
        with pytest.raises(ConfigError) as caught:
            check_rule_providers(load_shaping(path, shipped=True), table)
        assert str(caught.value).startswith(f"{path}:2: rules[0].provider: {problem}")


def test_shipped_rules_name_providers_of_the_table() -> None:
    table = load_providers(None, shipped=True).providers
    rules = load_shaping(None, shipped=True).rules
    assert len(rules) >= 15
    assert [name for rule in rules for name in rule.providers if name not in table] == []


SAID = [
    ("google", "rate_limited", 421, "4.7.28", "Gmail has detected an unusual rate of mail", "google-unusual-rate"),
    ("yahoo", "rate_limited", 421, "4.7.0", "[TSS04] Messages from 192.0.2.1 temporarily deferred", "yahoo-deferred"),
    ("microsoft", "blocked", 550, "5.7.1", "part of their network is on our block list (S3140)", "microsoft-block-list"),
    ("comcast", "rate_limited", 421, "4.1.0", "Throttled, see https://x.example/codes#RL000010", "comcast-throttled"),
    ("qq", "rate_limited", 550, "", "Ip frequency limited", "qq-frequency"),
    ("netease", "rate_limited", 421, "", "HL:IFC 163 mx1", "netease-too-fast"),
]  # fmt: skip


@pytest.mark.parametrize("provider, reply_class, code, status, text, expected", SAID)
def test_shipped_rules(
    provider: str, reply_class: str, code: int, status: str, text: str, expected: str
) -> None:
    found = load_shaping(None, shipped=True).matching(provider, reply_class, code, status, text)
    assert expected in [rule.name for rule in found]
