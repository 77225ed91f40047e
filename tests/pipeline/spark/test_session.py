"""The Java and the configuration of a session."""

import stat
from pathlib import Path

import pytest

from zonemta_py.core.errors import LocalError

session = pytest.importorskip("zonemta_py.pipeline.spark.session")


def _java(directory: Path, version: str) -> Path:
    command = directory / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return directory


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ('openjdk version "11.0.2" 2019', "is Java 11: Spark needs Java 17"),
        ('java version "1.8.0_292"', "is Java 8"),
        ("nonsense", "does not print its version"),
    ],
)
def test_an_old_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, problem: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "jdk", version)))
    with pytest.raises(LocalError, match=problem):
        session.find_java()


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="no Java found in JAVA_HOME"):
        session.find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match="apt-get install openjdk-17-jre-headless"):
        session.find_java()


def test_a_suitable_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _java(tmp_path / "jdk", 'openjdk version "21.0.1" 2023')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert session.find_java() == home / "bin" / "java"


def test_the_logging_configuration_exists() -> None:
    """Spark logs warnings to stderr when SPARK_CONF_DIR has no log4j2.properties."""
    assert (session.CONF_DIR / "log4j2.properties").is_file()
