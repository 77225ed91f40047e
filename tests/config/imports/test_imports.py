"""KumoMTA's and PowerMTA's files as providers and shaping rules. The files are written for these tests."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.cli.main import main
from zonemta_py.config.imports import kumomta as kumomta_module
from zonemta_py.config.imports import powermta as powermta_module
from zonemta_py.config.imports.kumomta import import_kumomta
from zonemta_py.config.imports.model import Imported, duration_of, rate_of
from zonemta_py.config.imports.powermta import import_powermta
from zonemta_py.config.providers import ProviderTable, load_providers
from zonemta_py.config.shaping import load_shaping
from zonemta_py.core.errors import ConfigError

KNOWN = load_providers(None, shipped=True)
NONE = ProviderTable({})

KUMOMTA = r"""
["default"]
connection_limit = 8
max_connection_rate = "90/min"
max_message_rate = "1,000/hr"
enable_tls = "Required"

[["default".automation]]
regex = [
  '^421',
  "(?=look)around",
]
action = [{SetConfig={name="max_message_rate", value="2/minute"}}, {SetConfig={name="connection_limit", value=1}}, "SuspendTenant"]
duration = "90m"

[provider."outlook"]
match = [{MXSuffix=".olc.protection.outlook.com"}]
provider_connection_limit = 5
max_deliveries_per_connection = 50

[provider."mine"]
match = [{MXSuffix=".mine.example"}, {HostName="MX.Other.example"}, {DomainSuffix="x.example"}]
connection_limit = "local:3"

[[provider."mine".automation]]
regex = "too fast"
trigger = {Threshold="5/hr"}
action = "Suspend"
duration = "2 hours"

[[provider."mine".automation]]
regex = "no such"
action = "Bounce"

[provider."nowhere"]
connection_limit = 3

["one.example"]
max_deliveries_per_connection = 7
["one.example".sources."ip-1"]
connection_limit = 5

["gmail.com"]
[["gmail.com".automation]]
regex = "slow"
action = "Suspend"
duration = "1 fortnight"
"""

POWERMTA = r"""
# limits
domain-macro big big.example, also.example
<mx-rollup-list>
  mx *.rolled.example rolled.rollup   # a comment
</mx-rollup-list>
<domain *>
  max-smtp-out 4
  max-msg-rate 100/h
  retry-after 10m
</domain>
<domain $big>
  max-msg-per-connection 9
  max-connect-rate unlimited
  smtp-pattern-list slow
  backoff-max-msg-rate 1/m   # slower
  backoff-max-smtp-out 1
  backoff-to-normal-after 2h
</domain>
<domain rolled.rollup>
  smtp-pattern-list slow
</domain>
<domain lost.rollup>
  max-smtp-out 1
</domain>
<smtp-pattern-list slow>
  reply /421 .* # later/ mode=backoff
  reply /see http:\/\/a\.example/ mode=backoff
  reply /\[5\]/ bounce-rcpt
  reply /x/ skip-mx
  reply /(?<!a)b/ mode=backoff
  nonsense
</smtp-pattern-list>
<smtp-pattern-list unused>
  reply /busy/ mode=backoff
</smtp-pattern-list>
<virtual-mta a>
  <domain *>
    max-smtp-out 1
  </domain>
</virtual-mta>
include other.conf
"""


def kumomta(directory: Path, text: str = KUMOMTA, known: ProviderTable = KNOWN) -> Imported:
    path = directory / "shaping.toml"
    path.write_text(text)
    return import_kumomta(path, known)


def powermta(directory: Path, text: str = POWERMTA, known: ProviderTable = KNOWN) -> Imported:
    path = directory / "config"
    path.write_text(text)
    return import_powermta(path, known)


def remarks(found: Imported, text: str) -> list[str]:
    """Each remark with the words of its line, as a reader finds it."""
    lines = text.splitlines()
    return [f"{lines[each.line - 1].strip()} | {each.text}" for each in sorted(found.left) if each.line]


def test_kumomta(tmp_path: Path) -> None:
    """The limits of its default are those of each provider that has no own ones."""
    found = kumomta(tmp_path)
    base = {"sessions_per_address": 8, "connect_rate": ["90/m"], "rate": ["1000/h"]}
    assert found.providers == {
        "default": {"limits": base},
        "microsoft": {
            "mx": ["*.olc.protection.outlook.com"],
            "limits": {**base, "sessions_per_address": 5, "messages_per_session": 50},
        },
        "mine": {
            "mx": ["*.mine.example", "mx.other.example"],
            "limits": {**base, "sessions_per_address": 3},
        },
        "one_example": {"domains": ["one.example"], "limits": {**base, "messages_per_session": 7}},
    }
    mine = {"provider": ["mine"]}
    assert found.rules == [
        {"name": "all-lower-rate", "pattern": ["^421"], "action": "lower_rate", "to": "2/m", "for": "90m"},
        {"name": "all-lower-sessions", "pattern": ["^421"], "action": "lower_sessions", "to": 1, "for": "90m"},
        {"name": "mine-suspend", **mine, "pattern": ["too fast"], "threshold": "5/h", "action": "suspend", "for": "2h"},
        {"name": "mine-bounce", **mine, "pattern": ["no such"], "action": "bounce"},
    ]  # fmt: skip


def test_kumomta_what_is_left_out(tmp_path: Path) -> None:
    """With the line, of each of several automations, too."""
    found = remarks(kumomta(tmp_path), KUMOMTA)
    for expected in (
        "enable_tls = \"Required\" | enable_tls = 'Required': zones.tls says it",
        "[[\"default\".automation]] | pattern '(?=look)around': invalid perl operator: (?=",
        '[["default".automation]] | action SuspendTenant: no counterpart',
        '[[provider."mine".automation]] | action Bounce: only the recipient of the reply bounces',
        '[provider."nowhere"] | provider nowhere: no match, and no provider of this name is known',
        '["one.example"] | one.example: other domains with its MX hosts need mx, its hosts',
        '["one.example".sources."ip-1"] | source ip-1: limits are those of every address',
        '[["gmail.com".automation]] | action Suspend: no duration that can be read, of up to 31d',
    ):
        assert expected in found
    assert any("match DomainSuffix 'x.example'" in each for each in found)
    second = [each.line for each in kumomta(tmp_path).left if "action Bounce" in each.text]
    assert KUMOMTA.splitlines()[second[0]].startswith('regex = "no such"')


def test_kumomta_with_values_of_other_kinds(tmp_path: Path) -> None:
    """Each is left out with a remark; names that are words here, or would be the same, get others."""
    path = tmp_path / "odd.toml"
    path.write_text(
        '["default"]\nconnection_limit = 3\nautomation = 5\n'
        '[provider."default"]\nmatch = [{MXSuffix = ".d.example"}, 7]\nconnection_limit = 4\n'
        '[provider."a b"]\nmatch = [{MXSuffix = ".a.example"}]\nconnection_limit = 5\n'
        '[provider."a_b"]\nmatch = [{MXSuffix = ".b.example"}]\nconnection_limit = 9\n'
        '[provider."own"]\nmatch = [{MXSuffix = ".o.example"}]\nreplace_base = true\n'
        "max_deliveries_per_connection = 2\n"
        '[["x.example".automation]]\nregex = [5, "/too (many|fast)/"]\naction = "Suspend"\nduration = "1h"\n'
    )
    found = import_kumomta(path, ProviderTable({}))
    assert found.providers.pop("own")["limits"] == {"messages_per_session": 2}
    assert {name: each["limits"]["sessions_per_address"] for name, each in found.providers.items()} == {
        "default": 3, "provider_default": 4, "a_b": 5, "a_b_2": 9,
    }  # fmt: skip
    assert [rule["pattern"] for rule in found.rules] == [["too (many|fast)"]]
    left = [each.text for each in found.left]
    assert {"automation: not a table of rules", "match: not a table of names"} <= set(left)
    assert "regex = [5, '/too (many|fast)/']: not a text" in left


def test_powermta(tmp_path: Path) -> None:
    found = powermta(tmp_path)
    base = {"sessions_per_address": 4, "rate": ["100/h"]}
    assert found.providers == {
        "default": {"limits": base},
        "big": {
            "domains": ["big.example", "also.example"],
            "limits": {**base, "messages_per_session": 9},
        },
        "rolled": {"mx": ["*.rolled.example"], "limits": base},
    }
    patterns = ["421 .* # later", r"see http://a\.example"]
    big, rolled = {"provider": ["big"]}, {"provider": ["rolled"]}
    assert found.rules == [
        {"name": "big-slow-lower-rate", **big, "pattern": patterns, "action": "lower_rate", "to": "1/m", "for": "2h"},
        {"name": "big-slow-lower-sessions", **big, "pattern": patterns, "action": "lower_sessions", "to": 1, "for": "2h"},
        {"name": "slow-bounce", **big, "pattern": [r"\[5\]"], "action": "bounce"},
        {"name": "rolled-slow-lower-rate", **rolled, "pattern": patterns, "action": "lower_rate", "to": "25%", "for": "1h"},
        {"name": "slow-bounce-2", **rolled, "pattern": [r"\[5\]"], "action": "bounce"},
        {"name": "unused-lower-rate", "pattern": ["busy"], "action": "lower_rate", "to": "25%", "for": "1h"},
    ]  # fmt: skip


def test_powermta_what_is_left_out(tmp_path: Path) -> None:
    found = remarks(powermta(tmp_path), POWERMTA)
    for expected in (
        "retry-after 10m | retry-after 10m: zones.retry.delays is for all providers",
        "<domain lost.rollup> | <domain lost.rollup>: nothing in this file says whose it is",
        "reply /x/ skip-mx | 'skip-mx': no counterpart",
        "nonsense | 'nonsense' is not reply /REGEX/ ACTION",
        "<domain *> | <domain *> in <virtual-mta a>: limits are those of every address",
        "include other.conf | include other.conf: import it on its own, or put it here",
    ):
        assert expected in found
    assert any("'(?<!a)b': invalid perl operator" in each for each in found)


def test_of_two_limits_the_stricter_one_counts(tmp_path: Path) -> None:
    """KumoMTA has one for a site and one for its provider."""
    text = """
[provider."x"]
match = [{MXSuffix=".x.example"}]
provider_connection_limit = 50
connection_limit = "1_000"
max_message_rate = "10/m"
provider_max_message_rate = "500/m"
max_connection_rate = "local:5/s"
provider_max_connection_rate = "1,000/h"
["y.example"]
connection_limit = 3
provider_connection_limit = 50
"""
    found = kumomta(tmp_path, text)
    assert found.providers["x"]["limits"] == {
        "sessions_per_address": 50, "rate": ["10/m"], "connect_rate": ["5/s", "1000/h"],
    }  # fmt: skip
    assert found.providers["y_example"]["limits"] == {"sessions_per_address": 3}
    said = remarks(found, text)
    for expected in (
        "provider_connection_limit = 50 | provider_connection_limit = 50 and connection_limit = '1_000': the stricter one is used",
        'provider_max_message_rate = "500/m" | provider_max_message_rate = \'500/m\' and max_message_rate = \'10/m\': the stricter',
    ):  # fmt: skip
        assert any(each.startswith(expected) for each in said), said


def test_rules_that_no_mail_could_match(tmp_path: Path) -> None:
    """KumoMTA's name of a provider may be that of its domain; one that is in no table has no rules."""
    rule = 'regex = "slow"\naction = "Suspend"\nduration = "1 hour"\n'
    names = ('provider."gmail"', 'provider."nowhere"', '"own.example"', '"tool"')
    text = "".join(f"[[{name}.automation]]\n{rule}" for name in names)
    found = kumomta(tmp_path, text)
    assert [each["provider"] for each in found.rules] == [["google"], ["own.example"]]
    assert [(each.line, each.text) for each in sorted(found.left)] == [
        (1, "provider gmail: no match; its name is taken for google"),
        (5, "provider nowhere is in no table: its rules are left out"),
        (13, "tool is not a domain of recipients"),
    ]


def test_a_bounce_has_no_threshold(tmp_path: Path) -> None:
    """It would be about the recipients of all replies at the relay, and the first would bounce."""
    text = '[["x.example".automation]]\nregex = "slow"\naction = ["Suspend", "Bounce"]\ntrigger = {Threshold="5/h"}\nduration = "1h"\n'
    found = kumomta(tmp_path, text)
    assert [(each["action"], each["threshold"]) for each in found.rules] == [("suspend", "5/h")]
    assert "action Bounce with a threshold: no counterpart" in [each.text for each in found.left]


def test_thresholds_and_durations_that_the_relay_has_not(tmp_path: Path) -> None:
    entry = '[["x.example".automation]]\nregex = "slow"\naction = "Suspend"\n'
    text = (
        f'{entry}trigger = {{Threshold="often"}}\nduration = "1h"\n'
        f'{entry}trigger = {{Threshold="5/40d"}}\nduration = "1h"\n'
        f'{entry}duration = "40 days"\n{entry}duration = 0\n{entry}trigger = {{Threshold="1/h"}}\nduration = "1h"\n'
    )
    found = kumomta(tmp_path, text)
    assert [(each.get("threshold"), each["for"]) for each in found.rules] == [(None, "1h")]
    assert [each.text for each in sorted(found.left)] == [
        "trigger {'Threshold': 'often'}: not a threshold; its rules are left out",
        "trigger {'Threshold': '5/40d'}: not a threshold; its rules are left out",
        *["action Suspend: no duration that can be read, of up to 31d"] * 2,
    ]


def test_what_another_provider_has_stays_there(tmp_path: Path) -> None:
    """Of two providers with the same hosts the relay would use one."""
    table = '[provider."{}"]\nmatch = [{{MXSuffix=".a.example"}}, {{MXSuffix=".yahoodns.net"}}]\nconnection_limit = 1\n'
    found = kumomta(
        tmp_path, '[provider."g"]\nmatch=[{MXSuffix=".google.com"}, {MXSuffix=".yahoodns.net"}]\n'
        + table.format("one").replace(".yahoodns.net", ".b.example") + table.format("two").replace(".yahoodns.net", ".c.example"),
    )  # fmt: skip
    assert {name: each["mx"] for name, each in found.providers.items()} == {
        "google": ["*.google.com"], "one": ["*.a.example", "*.b.example"], "two": ["*.c.example"],
    }  # fmt: skip
    assert [each.text for each in found.left] == [
        "*.yahoodns.net of google: it belongs to the provider yahoo",
        "*.a.example of two: it belongs to the provider one",
    ]


def test_a_provider_with_hosts_of_two_known_ones_is_both(tmp_path: Path) -> None:
    """KumoMTA has one entry for all of Microsoft."""
    office = (
        '[provider."Office 365"]\nmatch=[{MXSuffix=".olc.protection.outlook.com"}, '
        '{MXSuffix=".mail.protection.outlook.com"}]\nconnection_limit=3\n'
        '[[provider."Office 365".automation]]\nregex="slow"\naction="Suspend"\nduration="1h"\n'
    )
    rolled = (
        "<mx-rollup-list>\nmx *.olc.protection.outlook.com ms.rollup\n"
        "mx *.mail.protection.outlook.com ms.rollup\n</mx-rollup-list>\n"
        "<domain ms.rollup>\nmax-smtp-out 3\nsmtp-pattern-list slow\nbackoff-max-msg-rate 5/m\n</domain>\n"
        "<smtp-pattern-list slow>\nreply /slow/ mode=backoff\n</smtp-pattern-list>\n"
    )
    for found in (kumomta(tmp_path, office), powermta(tmp_path, rolled)):
        assert [found.rules[0]["provider"]] == [["microsoft", "microsoft_365"]]
        limits = {name: each["limits"]["sessions_per_address"] for name, each in found.providers.items()}
        assert limits == {"microsoft": 3, "microsoft_365": 3}
        assert found.providers["microsoft_365"]["mx"] == list(KNOWN.providers["microsoft_365"].mx)
        assert any("gets the same limits and rules" in each.text for each in found.left)


BACKOFF = """\
<domain x.example>
smtp-pattern-list slow
{}
</domain>
<smtp-pattern-list slow>
reply /slow/ mode=backoff
</smtp-pattern-list>
"""


@pytest.mark.parametrize(
    ("lines", "rules", "said"),
    [
        ("backoff-to-normal-after 1h30m\nbackoff-max-msg-rate 5/m", [("5/m", "1h30m")], []),
        ("backoff-to-normal-after 1h 30m\nbackoff-max-msg-rate 5/m", [("5/m", "1h30m")], []),
        ("backoff-to-normal-after never\nbackoff-max-msg-rate 5/m", [("5/m", "1h")],
         ["backoff-to-normal-after never: cannot be read; the rule is for 1h"]),
        ("backoff-to-normal-after 90d\nbackoff-max-msg-rate 5/m", [("5/m", "1h")],
         ["backoff-to-normal-after 90d: cannot be read; the rule is for 1h"]),
        ("backoff-to-normal-after 1h\nbackoff-max-msg-rate slow", [("25%", "1h")],
         ["backoff-max-msg-rate slow: cannot be read; the rate is lowered to 25%"]),
        ("backoff-to-normal-after 1h\nbackoff-max-smtp-out 0", [("25%", "1h")],
         ["no backoff-max-msg-rate: the rate is lowered to 25%",
          "backoff-max-smtp-out 0: cannot be read; sessions are not lowered"]),
        ("backoff-to-normal-after 1h\nbackoff-max-smtp-out 2", [(2, "1h")], []),
        ("backoff-to-normal-after 1h\nbackoff-max-msg-rate unlimited", [],
         ["backoff-max-msg-rate unlimited: there is nothing to lower"]),
    ],
)  # fmt: skip
def test_backoff(tmp_path: Path, lines: str, rules: list[tuple[object, str]], said: list[str]) -> None:
    """What cannot be read has a default, which is said."""
    found = powermta(tmp_path, BACKOFF.format(lines))
    assert [(each["to"], each["for"]) for each in found.rules] == rules
    assert [each.text for each in sorted(found.left)] == said


def test_powermta_what_has_no_counterpart_is_said(tmp_path: Path) -> None:
    """At the top, in blocks of other kinds, and numbers that are no limits; no passwords."""
    text = """\
http-access secret admin
<smtp-user x>
  password hunter2
</smtp-user>
domain-macro m a.example, not_a domain
<mx-rollup-list>
  mx /regex/ x.rollup
  nonsense
</mx-rollup-list>
<domain a.example>
  max-smtp-out 0
  max-msg-rate 0/h
  max-msg-per-connection unlimited
</domain>
<domain>
  max-smtp-out 1
</domain>
"""
    assert remarks(powermta(tmp_path, text), text) == [
        "http-access secret admin | http-access: no counterpart",
        "<smtp-user x> | <smtp-user x>: no counterpart, nor for what is in it",
        "domain-macro m a.example, not_a domain | 'not_a domain' is not a domain of recipients",
        "mx /regex/ x.rollup | 'mx /regex/ x.rollup' is not mx PATTERN NAME",
        "nonsense | 'nonsense' is not mx PATTERN NAME",
        "max-smtp-out 0 | max-smtp-out 0: not a number from 1 to 100000",
        "max-msg-rate 0/h | max-msg-rate 0/h: not a rate",
        "<domain> | <domain >: nothing in this file says whose it is",
    ]


def test_a_macro_may_have_several_lines(tmp_path: Path) -> None:
    text = "domain-macro m a.example, b.example,\nc.example, # more\n\nd.example\ne.example\n<domain $m>\nmax-smtp-out 1\n</domain>"
    found = powermta(tmp_path, text)
    assert found.providers["m"]["domains"] == ["a.example", "b.example", "c.example", "d.example"]
    assert [each.text for each in found.left] == ["e.example: no counterpart"]


def test_remarks_name_keys_of_the_configuration() -> None:
    """Each is in docs/configuration.md, or a section of what is."""
    page = (Path(__file__).parents[3] / "docs/configuration.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", page))
    documented |= {key.rpartition(".")[0] for key in documented}
    remarks = [*kumomta_module._INSTEAD.values(), *powermta_module._INSTEAD.values()]
    named = {key for text in remarks for key in re.findall(r"\b[a-z_A-Z]+(?:[._][a-z_A-Z]+)+\b", text)}
    assert {"zones.timeouts.idle", "allow_private_destinations", "dkim.keys"} <= named
    assert named - documented == set()


@pytest.mark.parametrize("kind", ["kumomta", "powermta"])
@pytest.mark.parametrize(
    "text",
    ["", "# A project\n\nIt <b>does</b> things.\n<p>\n", "[tool.x]\na = 1\n[package]\n", "a: 1\n"],
)
def test_a_file_with_nothing_of_the_format_is_refused(tmp_path: Path, kind: str, text: str) -> None:
    source = tmp_path / "README.md"
    source.write_text(text)
    refused = zonemta("import-shaping", source, "--format", kind, "-o", tmp_path / "out")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: {source}: ")
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text, words",
    [
        ("<domain a>\n", "config:1: <domain> has no </domain>"),
        ("</domain>", "config:1: </domain> without <domain>"),
    ],
)
def test_powermta_blocks(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        powermta(tmp_path, text)


def test_a_domain_of_a_known_provider_is_that_provider(tmp_path: Path) -> None:
    """Its hosts, too, so that the limits are for all domains there."""
    found = kumomta(
        tmp_path, '["gmail.com"]\nconnection_limit = 2\n["comcast.net"]\nconnection_limit = 3'
    )
    assert found.providers["google"]["mx"] == list(KNOWN.providers["google"].mx)
    assert found.providers["comcast"]["mx"] == list(KNOWN.providers["comcast"].mx)
    assert kumomta(tmp_path, '["gmail.com"]\nconnection_limit = 2', NONE).providers == {
        "gmail_com": {"domains": ["gmail.com"], "limits": {"sessions_per_address": 2}}
    }


def test_rates_and_durations() -> None:
    assert [rate_of(each) for each in ("100/min", "1,000/hr", "5/day", "2/s", "7/5m", "0/s", "1/0h", "5", None)] == [
        "100/m", "1000/h", "5/d", "2/s", "7/5m", None, None, None, None,
    ]  # fmt: skip
    assert [duration_of(each) for each in ("2 hours", "90m", "1h 30 min", "1h30m", "1d2h3m4s", "5s", 60, "0s", 0, "32d", "soon", "", None)] == [
        "2h", "90m", "1h30m", "1h30m", "1d2h3m4s", "5s", "60s", None, None, None, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "remark"),
    [
        ("sources = 5", "sources = 5: not a table of sources"),
        (f'max_message_rate = "{"9" * 17}/s"', "no counterpart"),
        (f'max_message_rate = "{"9" * 5000}/s"', "no counterpart"),
        ('max_message_rate = "\N{ARABIC-INDIC DIGIT THREE}/s"', "no counterpart"),
        ('max_connection_rate = "5/1000000d"', "no counterpart"),
        *((f'[["a.example".automation]]\nregex="x"\nduration={each}', "no duration") for each in ("inf", "nan")),
        *((f'[["a.example".automation]]\nregex="x"\nduration="1h"\ntrigger={{Threshold="{each}"}}', "not a threshold")
          for each in (f"{'9' * 17}/hr", f"5/{'9' * 16}hr")),
    ],
)  # fmt: skip
def test_values_beyond_the_limits_are_left_out(tmp_path: Path, lines: str, remark: str) -> None:
    found = kumomta(tmp_path, f'\ufeff["a.example"]\nconnection_limit = 5\n{lines}\n')
    assert any(remark in each.text for each in found.left)


def test_powermta_values_beyond_the_limits(tmp_path: Path) -> None:
    text = f"<domain a.example>\nmax-smtp-out 5\nmax-msg-rate {'9' * 17}/h\n</domain>\n<domain b.example>\nmax-msg-rate 5/{'9' * 11}h\n</domain>\n"
    assert sum("not a rate" in each.text for each in powermta(tmp_path, text).left) == 2


def test_an_error_of_the_result_names_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *, shipped: bool) -> None:
        raise ConfigError(f"{path}:3: rules[0]: no")

    monkeypatch.setattr("zonemta_py.cli.config.load_shaping", refuse)
    source = tmp_path / "shaping.toml"
    source.write_text(KUMOMTA)
    done = zonemta("import-shaping", source, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert f"error: {source}: what was made of it" in done.stderr
    assert "there: shaping.yaml:3: rules[0]: no" in done.stderr


def zonemta(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_the_command(tmp_path: Path) -> None:
    """What it writes is what the relay can use; files that are there stay without --force."""
    source, output = tmp_path / "shaping.toml", tmp_path / "out"
    source.write_text(KUMOMTA)
    done = zonemta("import-shaping", source, "-o", output, "--json")
    assert done.exit_code == 0
    row = json.loads(done.stdout)
    assert (row["providers"], row["rules"]) == (4, 4)
    assert f"{source}:6: enable_tls" in done.stderr
    table = load_providers(output / "providers.yaml", shipped=True)
    assert table.of("hotmail.com", ("a.olc.protection.outlook.com",)) == "microsoft"
    rules = load_shaping(output / "shaping.yaml", shipped=False)
    assert [each.name for each in rules.matching("mine", "other", 451, "", "too fast")] == [
        "mine-suspend"
    ]
    again = zonemta("import-shaping", source, "-o", output)
    assert again.exit_code == 2 and "--force replaces" in again.stderr
    assert zonemta("import-shaping", source, "-o", output, "--force").exit_code == 0
    config = tmp_path / "config"
    config.write_text(POWERMTA)
    assert zonemta("import-shaping", config, "-o", output, "--force").exit_code == 0
    wrong = zonemta("import-shaping", config, "--format", "kumomta", "-o", output, "--force")
    assert wrong.exit_code == 2 and str(config) in wrong.stderr


@given(
    st.lists(
        st.sampled_from(
            [*POWERMTA.splitlines(), "</domain>", "<domain x.example>", "reply /(/ mode=backoff"]
        )
    )
)
def test_any_lines_of_powermta(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Lines in any order are imported, or refused with their number."""
    directory = tmp_path_factory.mktemp("pmta")
    try:
        found = powermta(directory, "\n".join(lines))
    except ConfigError as exc:
        assert str(exc).startswith(f"{directory / 'config'}:")
        return
    assert all(0 <= each.line <= len(lines) for each in found.left)
