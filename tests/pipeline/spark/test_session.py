"""The Java and the configuration of a session."""

import logging
import os
import stat
import subprocess
import sys
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
    """Without it Spark logs warnings to stderr."""
    assert session.LOG_SETTINGS.is_file()


def test_whose_settings_count() -> None:
    """The user's before ours, those of the command before both; UTC always."""
    of_user = {"spark.ui.enabled": "true", "spark.master": "local[2]", "spark.sql.session.timeZone": "Asia/Tokyo"}  # fmt: skip
    found = session.session_settings({"spark.driver.memory": "1g"}, of_user)
    assert (found["spark.ui.enabled"], found["spark.driver.memory"]) == ("true", "1g")
    assert (found["spark.master"], found["spark.sql.shuffle.partitions"]) == ("local[2]", "32")
    assert found["spark.sql.session.timeZone"] == "UTC"
    remote = session.session_settings({"spark.master": "spark://h:7077"}, of_user)
    assert "spark.sql.shuffle.partitions" not in remote


def test_the_users_files(tmp_path: Path) -> None:
    """A session of a process whose SPARK_CONF_DIR has files: their settings apply, their log settings too."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours\nspark.master   local[1]\nspark.driver.memory=512m\n\nspark.sql.ansi.enabled: false\n"
    )
    code = (
        "from zonemta_py.pipeline.spark.session import open_session\n"
        "s = open_session(**{'spark.app.color': 'red'})\n"
        "print([s.conf.get(n) for n in ('spark.master', 'spark.driver.memory', 'spark.sql.ansi.enabled', 'spark.app.color',"
        " 'spark.sql.session.timeZone')])\ns.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "['local[1]', '512m', 'false', 'red', 'UTC']\n", done.stderr[-2000:]
    assert "WARN" not in done.stderr.replace(
        "WARNING: Using incubator modules: jdk.incubator.vector", ""
    )


def test_what_the_gateway_logs_when_java_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of it is shown, also of what it logs by the root logger; messages of others are."""
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    root.addHandler(handler)
    try:
        session.silence_loggers()
        for path in ("/lib/py4j/java_gateway.py", "/lib/other.py"):
            code = "import logging\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('lost')"
            exec(compile(code, path, "exec"), {})
        logging.getLogger("py4j.clientserver").error("lost")
        assert capsys.readouterr().err.count("Traceback") == 1
    finally:
        root.removeHandler(handler)
        root.removeFilter(session._is_not_of_gateway)


def test_a_session_with_an_archive(tmp_path: Path) -> None:
    """The second session makes it, the third uses it; a directory with settings is in the class path, and cannot be archived."""
    code = (
        "from zonemta_py.pipeline.spark.session import open_session\n"
        "s = open_session('local[1]', '512m', light=True)\n"
        "print(s.range(3).count(), s.conf.get('spark.driver.extraJavaOptions'))\ns.stop()\n"
    )

    def options(**names: str) -> str:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), **names}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)  # fmt: skip
        assert done.stdout.startswith("3 ") and done.stdout.count("\n") == 1, done.stdout
        assert "cds" not in done.stderr and "rchive" not in done.stderr, done.stderr[-2000:]
        return done.stdout

    assert "Archive" not in options()
    assert "ArchiveClassesAtExit" in options()
    archives = list((tmp_path / "cache" / "zonemta" / "spark").glob("*.jsa"))
    assert "SharedArchiveFile" in options() and len(archives) == 1
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "hive-site.xml").write_text("<configuration/>")
    assert "Archive" not in options(SPARK_CONF_DIR=str(conf))
