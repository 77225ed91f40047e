"""Providers in the script of a sink: what is read, and errors with file, line and key."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.values import MessagesWithin, Rate, Seconds, Word
from zonemta_py.core.errors import ConfigError
from zonemta_py.sink import sink_limits
from zonemta_py.sink.script import Step, load_script
from zonemta_py.sink.sink_limits import SinkBlock, SinkLimits

OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"
FULL = SinkLimits(
    name="bigmail",
    local=(Word("127.0.0.21"), Word("127.0.0.22")),
    mx=(Word("mx1.bigmail.example"),),
    domains=(Word("a.example"), Word("b.example")),
    sessions=20,
    sessions_per_address=5,
    messages_per_session=50,
    rate=(Rate(10, 1), Rate(1000, 3600)),
    rate_total=(Rate(100, 1),),
    connect_rate=(Rate(60, 60),),
    greylist=Seconds(30),
    block=SinkBlock(
        MessagesWithin(Rate(200, 60)), Seconds(600), "mail", "550 5.7.1 your address is blocked"
    ),
    slack=Seconds(0.005),
    replies={"rate": "421 4.7.28 slow down"},
)


def test_the_example_of_the_module_and_of_the_docs(directory: Path) -> None:
    """Both show every key."""
    path = directory / "s.yaml"
    path.write_text((sink_limits.__doc__ or "").partition("\n\n")[2])
    assert load_script(path).providers == (FULL,)
    section = OPERATIONS.read_text().partition("### Providers with limits")[2]
    [example] = re.findall(r"```yaml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    path.write_text(example)
    script = load_script(path)
    assert script.providers[0] == FULL
    assert script.match(Step.RCPT, "no@x.example", "", [], "127.0.0.21", 1) is not None


def test_every_limit_of_the_relay_can_be_played() -> None:
    """Under the same name as in the configuration of the relay."""
    assert {each.name for each in fields(ProviderLimits)} <= {each.name for each in fields(SinkLimits)}


def test_a_mapping_may_lack_either(directory: Path) -> None:
    path = directory / "s.yaml"
    path.write_text("rules: [{at: rcpt, drop: true}]\n")
    assert load_script(path).providers == ()
    path.write_text("providers: [{name: a, local: '::0001', rate: null}, {name: b}]\n")
    script = load_script(path)
    assert [limits.local for limits in script.providers] == [("::1",), ()]
    assert script.match(Step.RCPT, "no@x.example", "", [], "::1", 1) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("providers: 1", "s.yaml:1: providers: found '1', expected a list"),
        ("providers: [1]", r"s.yaml:1: providers\[0\]: found '1', expected a mapping"),
        ("provider: []", "s.yaml:1: provider: unknown key; did you mean 'providers'"),
        ("providers: []\nproviders: []", "s.yaml:2: providers: appears twice"),
        ("providers: []\nrules: 5", "s.yaml: expected a list of rules"),
        ("providers: []\nrules: [{at: lunch}]", "s.yaml: rule 1: .*'at' is one of"),
        ("providers:\n- {sessions: 1}", r"s.yaml:2: providers\[0\]: a provider needs a name"),
        ("providers:\n- name: a\n- name: a", r"s.yaml:3: providers\[1\].name: two providers are named 'a'"),
        ("providers:\n- name: a\n- name: b", r"providers\[1\].local: only one provider may lack addresses"),
        (
            "providers:\n- {name: a, local: 127.0.0.1}\n- {name: b, local: [127.0.0.1]}",
            r"s.yaml:3: providers\[1\].local: 127.0.0.1 belongs to an earlier provider",
        ),
        ("providers:\n- {name: a, local: mx.example}", r"local\[0\]: found 'mx.example', expected an IP address"),
        ("providers:\n- name: a\n  session: 4", r"s.yaml:3: providers\[0\].session: unknown key; did you mean 'sessions'"),
        ("providers:\n- {name: a, sessions: 0}", r"providers\[0\].sessions: found 0, allowed: 1 to"),
        ("providers:\n- {name: a, rate: fast}", r"providers\[0\].rate: found 'fast', expected a rate such as"),
        ("providers:\n- {name: a, rate: [10/s, 5]}", r"providers\[0\].rate\[1\]: found '5', expected a rate such as"),
        ("providers:\n- {name: a, greylist: 30}", r"providers\[0\].greylist: found '30', expected a duration"),
        ("providers:\n- {name: a, block: {after: 5}}", r"providers\[0\].block.after: found '5', expected a number of mess"),
        ("providers:\n- {name: a, block: {after: 0 messages within 1m}}", r"block.after: found '0 messages within 1m'"),
        ("providers:\n- {name: a, block: {after: 5 messages within ever}}", r"block.after: found"),
        ("providers:\n- {name: a, block: {at: data}}", r"block.at: found 'data', allowed: mail, connect, rcpt, dot"),
        ("providers:\n- {name: a, block: {reply: 250 ok}}", r"block.reply: found '250 ok', expected a refusal"),
        ("providers:\n- {name: a, replies: {rat: 450 x}}", r"replies.rat: no such limit, allowed: .*rate_total"),
        ("providers:\n- {name: a, replies: {rate: no}}", r"replies.rate: found 'False', expected text|found 'no'"),
        ("providers:\n- {name: a, rate: 5/s, slack: 1s}", r"providers\[0\].slack: must be shorter than the period"),
    ],
)  # fmt: skip
def test_bad_providers(directory: Path, text: str, problem: str) -> None:
    path = directory / "s.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_script(path)
