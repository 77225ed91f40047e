"""What needs no Spark: keys, relays, providers, suppression files, finding Java."""

import random
import stat
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.keys import relays_of, submission_key
from zonemta_py.pipeline.rules.provider import provider_of
from zonemta_py.pipeline.rules.suppression import Suppression, read_suppression
from zonemta_py.pipeline.spark import java

addresses = st.lists(st.emails(), min_size=1, max_size=5, unique=True)


@given(addresses, st.randoms())
def test_a_key_is_of_campaign_and_recipients(found: list[str], rng: random.Random) -> None:
    key = submission_key("june", found)
    shuffled = sorted(found, key=lambda _: rng.random())
    assert submission_key("june", shuffled) == key
    assert submission_key("july", found) != key
    assert submission_key("june", [*found, "one.more@x.example"]) != key
    assert len(key) == 32
    assert all(c in "0123456789abcdef" for c in key)


def test_keys_keep_their_relay() -> None:
    """With a relay more, only the keys that it wins move; and each relay has its share."""
    keys = [submission_key("c", [f"{n}@x.example"]) for n in range(2000)]
    three = ("a:25", "b:25", "c:25")
    before = {key: relays_of(key, three)[0] for key in keys}
    after = {key: relays_of(key, (*three, "d:25"))[0] for key in keys}
    assert all(after[key] in (before[key], "d:25") for key in keys)
    for relay in (*three, "d:25"):
        assert 350 < sum(found == relay for found in after.values()) < 650
    assert relays_of(keys[0], ("c:25", "a:25", "b:25")) == relays_of(keys[0], three)


def test_providers() -> None:
    assert provider_of("gmail.com") == provider_of("googlemail.com") == "google"
    assert provider_of("d1.example") == "d1.example"


def test_a_suppression_file(tmp_path: Path) -> None:
    """Addresses and domains in the relay's spelling; bad lines are counted and cost nothing else."""
    path = tmp_path / "s.txt"
    path.write_text(
        "# comment\n\nA@EXAMPLE.org, bounced\n@Spam.example\nbücher.example\tasked\nnot an address\n"
        "a@example.org,again # the first reason stands\n"
    )
    found = read_suppression(iter([path]))
    assert found.entries == {
        "A@example.org": "bounced",
        "spam.example": "suppressed",
        "xn--bcher-kva.example": "asked",
        "a@example.org": "again",
    }
    assert found.bad == 1
    assert "s.txt:6: 'not an address'" in found.shown[0]
    with pytest.raises(LocalError, match="nothing-here"):
        read_suppression(iter([tmp_path / "nothing-here"]))


def test_a_line_that_expired(tmp_path: Path) -> None:
    """The last day counts; the day after it does not."""
    path = tmp_path / "s.txt"
    path.write_text("a@x.example, bounced, on monday, until 2026-11-20\nb@x.example, until 2026-11-21\n")
    found = Suppression(date(2026, 11, 21))
    for line in path.read_text().splitlines():
        found.add(line, "s.txt")
    assert (found.entries, found.expired) == ({"b@x.example": "suppressed"}, 1)
    assert read_suppression(iter([path])).bad == 0


def _java(folder: Path, says: str) -> Path:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ('openjdk version "11.0.2" 2019', "is Java 11: Spark needs Java 17"),
        ('java version "1.8.0_292"', "is Java 8"),
        ("nonsense", "does not say its version"),
    ],
)
def test_an_unfit_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, problem: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "jdk", says)))
    with pytest.raises(LocalError, match=problem):
        java.find_java()


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="no Java found in JAVA_HOME"):
        java.find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match="apt-get install openjdk-17-jre-headless"):
        java.find_java()


def test_a_fit_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _java(tmp_path / "jdk", 'openjdk version "21.0.1" 2023')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java() == home / "bin" / "java"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[X] first\nsecond", "[X] first"),
        ("\n  \n[X] first", "[X] first"),
        ("", ""),
        ("Job aborted\n\tat x\nCaused by: java.io.IOException: disk full\n\tat y", "disk full"),
        ("\n  An exception was thrown:\nTraceback\n  File x\nModuleNotFoundError: No module named 'pyarrow'\n", "ModuleNotFoundError: No module named 'pyarrow'"),
    ],
)  # fmt: skip
def test_the_line_that_helps(text: str, line: str) -> None:
    from zonemta_py.pipeline.spark.errors import line_of

    assert line_of(text) == line
