"""Warm-up schedules."""

from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from zonemta_py.cli.main import main
from zonemta_py.config.load import load_config
from zonemta_py.config.providers import ProviderSettings, ProviderTable
from zonemta_py.config.warmup import WarmupSchedule, check_warmups, falling, read_warmups
from zonemta_py.core.errors import ConfigError
from zonemta_py.delivery.egress import read_egress


def test_a_schedule(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "- {address: 203.0.113.7, begins: 2026-11-01, daily: [200, 500], provider: google}\n"
        '- {address: "2001:DB8::1", begins: 2026-11-30, daily: [1]}\n'
    )
    google, six = read_warmups(path)
    assert list(google.days()) == [(date(2026, 11, 1), 200), (date(2026, 11, 2), 500)]
    assert six == WarmupSchedule("2001:db8::1", date(2026, 11, 30), (1,), "")


GOOD = "- {address: 1.2.3.4, begins: 2026-11-01, daily: [1]}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "1: entries: found a mapping, expected a list"),
        ("- 3", "1: entries[0]: found '3', expected a mapping"),
        ("- {address: 1.2.3.4, begins: 2026-11-01}", "1: entries[0].daily: a list of numbers"),
        ("- {address: 1.2.3.4, daily: [1]}", "1: entries[0].begins: the first day is needed"),
        ("- {begins: 2026-11-01, daily: [1]}", "1: entries[0].address: an IP address is needed"),
        (GOOD + "- {address: 1.2.3, begins: 2026-11-01, daily: [1]}", "2: entries[1].address: found '1.2.3', exp"),
        (GOOD + "- {address: 1.2.3.4, begins: soon, daily: [1]}", "2: entries[1].begins: found 'soon', expected a day"),
        ("- {address: 1.2.3.4, begins: 2026-13-01, daily: [1]}", "1: entries[0].begins: found '2026-13-01', expected a d"),
        ("- {address: 1.2.3.4, begins: '2026-02-30', daily: [1]}", "1: entries[0].begins: found '2026-02-30', expected"),
        ("- {address: 1.2.3.4, begins: 2026-11-01 10:00:00, daily: [1]}", "1: entries[0].begins: found"),
        ("- {address: 1.2.3.4, begins: 2026-11-01, dayly: [1]}", "entries[0].dayly: unknown key; did you mean 'daily'?"),
        ("- {address: 1.2.3.4, begins: 2026-11-01, daily: [x]}", "entries[0].daily[0]: found 'x', expected a whole n"),
        ("- {address: 1.2.3.4, begins: 2026-11-01, daily: [1, 0]}", "entries[0].daily[1]: found 0, expected at least 1"),
        ("- {address: 1.2.3.4, begins: 2026-11-01, daily: [-1]}", "entries[0].daily[0]: found -1, expected at least 1"),
        ("- {address: 1.2.3.4, begins: 2026-11-01, daily: [true]}", "entries[0].daily[0]: found 'true'"),
        ("- {address: 1.2.3.4, begins: 2026-11-01, daily: [1], provider: ''}", "entries[0].provider: a name is n"),
        (GOOD + GOOD, "2: entries[1]: 1.2.3.4 for all mail has a schedule already: "),
        ("- [", "1: not YAML"),
    ],
)  # fmt: skip
def test_a_bad_schedule(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_warmups(path)
    assert str(caught.value).startswith(f"{path}:")
    assert problem in str(caught.value)


ALL = ProviderTable({"google": ProviderSettings(), "default": ProviderSettings()})


@pytest.mark.parametrize(
    ("address", "provider", "problem"),
    [
        ("203.0.113.8", "", "address: found '203.0.113.8', which is in no pool; there is "),
        ("203.0.113.7", "gogle", "provider: found 'gogle': the table has no such provider, and it is not the name of a host; did you mean 'google'?"),
        ("203.0.113.7", "Google", "provider: found 'Google', expected lower case"),
        ("203.0.113.7", "default", "provider: 'default' is no provider"),
    ],
)  # fmt: skip
def test_what_would_limit_nothing(tmp_path: Path, address: str, provider: str, problem: str) -> None:
    """An address of no pool, and a provider that no mail is for."""
    path = tmp_path / "w.yaml"
    path.write_text(
        GOOD + f"- {{address: {address}, begins: 2026-11-01, daily: [1], provider: '{provider}'}}"
    )
    if not provider:
        path.write_text(GOOD + f"- {{address: {address}, begins: 2026-11-01, daily: [1]}}")
    with pytest.raises(ConfigError) as caught:
        check_warmups(read_warmups(path), ["1.2.3.4", "203.0.113.7", "system"], ALL)
    assert str(caught.value).startswith(f"{path}:2: entries[1].{problem}")


def test_addresses_have_one_form(tmp_path: Path) -> None:
    """A pool may write one as it likes, and the relay knows providers by the names of their hosts, too."""
    path, config = tmp_path / "w.yaml", tmp_path / "z.yaml"
    path.write_text("- {address: '2001:db8::1', begins: 2026-11-01, daily: [1], provider: mx.example}")
    config.write_text("pools: {default: [{address: '2001:DB8:0::1'}]}\nwarmup: {file: w.yaml}")
    found = load_config(config)
    assert found.pools["default"][0].address == "2001:db8::1"
    assert [each.provider for each in read_egress(found).schedules] == ["mx.example"]


def test_errors_name_the_key_of_the_file(tmp_path: Path) -> None:
    """Of a file that is not there, and of one with a mistake."""
    config = tmp_path / "z.yaml"
    for key in ("providers", "shaping", "warmup"):
        for name, text in (("none", "cannot be read"), ("z.yaml", "1: ")):
            config.write_text(f"{key}: {{file: {name}}}")
            with pytest.raises(ConfigError) as caught:
                read_egress(load_config(config))
            assert str(caught.value).startswith(f"{key}.file: {tmp_path / name}:")
            assert text in str(caught.value)


def test_a_falling_sequence_is_a_warning(tmp_path: Path) -> None:
    path, config = tmp_path / "w.yaml", tmp_path / "z.yaml"
    path.write_text(
        "- {address: 127.0.0.1, begins: 2026-11-01, daily: [1, 2, 2]}\n"
        "- {address: 127.0.0.2, begins: 2026-11-01, daily: [5, 10, 8, 3]}\n"
    )
    expected = f"{path}:2: entries[1].daily: day 3 allows 8, fewer than the 10 of the day before"
    assert list(falling(read_warmups(path))) == [expected]
    config.write_text(
        "pools: {default: [{address: 127.0.0.1}, {address: 127.0.0.2}]}\n"
        "queue: {directory: q}\nlisteners: [{address: '127.0.0.1:0'}]\nwarmup: {file: w.yaml}\n"
    )
    checked = CliRunner().invoke(main, ["check", "-c", str(config)])
    assert checked.exit_code == 0, checked.output
    assert f"warning: {expected}" in checked.stderr
    path.write_text("- {address: 127.0.0.3, begins: 2026-11-01, daily: [1]}\n")
    refused = CliRunner().invoke(main, ["check", "-c", str(config)])
    assert (refused.exit_code, "warmup.file: " in refused.stderr) == (2, True)
