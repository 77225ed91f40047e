"""Scenarios of a simulation."""

from pathlib import Path

import pytest

from zonemta_py.core.errors import ConfigError
from zonemta_py.pipeline.simulate.job import scenarios


def test_scenarios() -> None:
    found = scenarios(
        "zones: {default: {rate: 5/s}}",
        Path("z.yaml"),
        ["zones.default.connections=10, 20", "zones.default.retry.delays=[1m, 2m]"],
    )
    assert [dict(each.settings)["zones.default.connections"] for each in found] == ["10", "20"]
    assert [each.config.zones["default"].connections for each in found] == [10, 20]
    assert {each.config.zones["default"].retry.delays for each in found} == {(60.0, 120.0)}
    assert all(each.config.zones["default"].rate for each in found)
    [one] = scenarios("{}", Path("z.yaml"), [])
    assert one.settings == ()


def test_what_is_not_changed_stays_as_it_is_written() -> None:
    """``off`` is a mode of TLS here, and a boolean elsewhere; errors name the line."""
    text = "hostname: h\nzones:\n  default:\n    tls: off\n"
    for changes in ([], ["zones.second.connections=3"], ["zones.default.tls=off"]):
        [found] = scenarios(text, Path("z.yaml"), changes)
        assert found.config.zones["default"].tls == "off"
    assert found.config.hostname == "h"
    alias = "zones: {default: &usual {retry: {delays: [1m]}}, bulk: *usual, empty: }\n"
    [found] = scenarios(alias, Path("z.yaml"), ["zones.bulk.connections=7"])
    assert [found.config.zones[name].connections == 7 for name in ("default", "bulk", "empty")] == [
        False,
        True,
        False,
    ]
    [found] = scenarios(alias, Path("z.yaml"), ["zones.empty.connections=7"])
    assert found.config.zones["empty"].connections == 7
    with pytest.raises(ConfigError, match=r"z\.yaml:4: zones\.default\.tls"):
        scenarios(text.replace("off", "sometimes"), Path("z.yaml"), [])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("zones.default.connections", "expected KEY=VALUE"),
        ("zones.default.connections=10,", "found an empty value"),
        ("zones.default.connections=many", "with zones.default.connections=many"),
        ("zones.default.conections=3", "did you mean"),
        ("zones.default.connections.x=3", "with|no such key"),
        ("hostname.x=3", "no such key|with"),
        ("zones.default.rate=[", "--set zones.default.rate"),
        (f"zones.default.connections={','.join('1' * 1001)}", r"combinations \(1001\)"),
    ],
)
def test_bad_scenarios(change: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        scenarios("hostname: h\nzones: {default: {connections: 3}}", Path("z.yaml"), [change])
