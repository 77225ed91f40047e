"""KumoMTA's and PowerMTA's files as providers and shaping rules. The files are written for these tests."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.cli.main import main
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
    found = kumomta(tmp_path)
    assert found.providers == {
        "default": {"limits": {"sessions_per_address": 8, "connect_rate": ["90/m"], "rate": ["1000/h"]}},
        "microsoft": {
            "mx": ["*.olc.protection.outlook.com"],
            "limits": {"sessions_per_address": 5, "messages_per_session": 50},
        },
        "mine": {"mx": ["*.mine.example", "mx.other.example"], "limits": {"sessions_per_address": 3}},
        "one_example": {"domains": ["one.example"], "limits": {"messages_per_session": 7}},
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
        "enable_tls = \"Required\" | enable_tls = 'Required': zones.NAME.tls says it",
        "[[\"default\".automation]] | pattern '(?=look)around': invalid perl operator: (?=",
        '[["default".automation]] | action SuspendTenant: no counterpart',
        '[[provider."mine".automation]] | action Bounce: only the recipient of the reply bounces',
        '[provider."nowhere"] | provider nowhere: no match, and no provider of this name is known',
        '["one.example"] | one.example: other domains with its exchangers need mx, its hosts',
        '["one.example".sources."ip-1"] | source ip-1: limits are those of every address',
        '[["gmail.com".automation]] | action Suspend: no duration, or one that cannot be read',
    ):
        assert expected in found
    assert any("match DomainSuffix 'x.example'" in each for each in found)
    second = [each.line for each in kumomta(tmp_path).left if "action Bounce" in each.text]
    assert KUMOMTA.splitlines()[second[0]].startswith('regex = "no such"')


def test_powermta(tmp_path: Path) -> None:
    found = powermta(tmp_path)
    assert found.providers == {
        "default": {"limits": {"sessions_per_address": 4, "rate": ["100/h"]}},
        "big": {"domains": ["big.example", "also.example"], "limits": {"messages_per_session": 9}},
        "rolled": {"mx": ["*.rolled.example"]},
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
        "retry-after 10m | retry-after 10m: zones.NAME.retry.delays is for all providers",
        "<domain lost.rollup> | <domain lost.rollup>: nothing in this file says whose it is",
        "reply /x/ skip-mx | 'skip-mx': no counterpart",
        "nonsense | 'nonsense' is not reply /REGEX/ ACTION",
        "<domain *> | <domain *> in <virtual-mta a>: limits are those of every address",
        "include other.conf | include other.conf: import it on its own, or put it here",
    ):
        assert expected in found
    assert any("'(?<!a)b': invalid perl operator" in each for each in found)


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
    assert [rate_of(each) for each in ("100/min", "1,000/hr", "5/day", "2/s", "7/5m", "0/s", "5", None)] == [
        "100/m", "1000/h", "5/d", "2/s", "7/5m", None, None, None,
    ]  # fmt: skip
    assert [duration_of(each) for each in ("2 hours", "90m", "1h 30 min", "5s", 60, "soon", "", None)] == [
        "2h", "90m", "1h30m", "5s", "60s", None, None, None,
    ]  # fmt: skip


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
