"""The log: formats, destinations, and lines that come by the thousand."""

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from zonemta_py.config.schema import LogSettings
from zonemta_py.core import logs
from zonemta_py.core import logs as repeats
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.logs import LogTarget, RepeatedLines, configure_logs, parse_target

log = logging.getLogger("zonemta_py.test")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # configure_logs closes those that it replaces
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_target_is_text_for_another_process() -> None:
    settings = LogSettings(format="json", destination="syslog")
    assert parse_target(settings.target("debug")) == LogTarget("debug", "json", "syslog")
    assert parse_target(LogSettings().target()) == LogTarget()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogTarget("info", "json"))
    log.info("two\nlines %s", "é")
    log.debug("not written")
    try:
        raise ValueError("a defect")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["level"], first["logger"]) == (
        "two\nlines é",
        "info",
        "zonemta_py.test",
    )
    assert "a defect" in second["exception"]


def test_the_format_of_postfix(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogTarget("info", "postfix"))
    log.info("hello")
    line = capsys.readouterr().err
    assert line.endswith("]: hello\n")
    assert " zonemta/test[" in line


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogTarget("warning"))
    log.info("not written")
    log.warning("written")
    assert capsys.readouterr().err.endswith(" WARNING zonemta_py.test: written\n")


@pytest.mark.parametrize("destination", ["journald", "syslog"])
def test_a_destination_that_is_not_there(
    destination: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "JOURNAL", str(tmp_path / "none"))
    monkeypatch.setattr(logs, "SYSLOG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"log.destination: {destination}: there is no socket"):
        configure_logs(LogTarget("info", "text", destination))


@pytest.mark.parametrize(
    ("destination", "format_", "expected"),
    [
        ("journald", "text", b"MESSAGE=zonemta_py.test: hello\nPRIORITY=4\nSYSLOG_IDENTIFIER=zonemta\n"),
        ("syslog", "text", b"<20>zonemta["),
        ("journald", "postfix", b"MESSAGE=hello\nPRIORITY=4\nSYSLOG_IDENTIFIER=zonemta/test\n"),
        ("syslog", "postfix", b"<20>zonemta/test["),
    ],
)
def test_datagrams(
    destination: str, format_: str, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "socket")
    monkeypatch.setattr(logs, "JOURNAL", path)
    monkeypatch.setattr(logs, "SYSLOG", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        configure_logs(LogTarget("info", format_, destination))
        log.warning("hello")
        assert receiver.recv(1000).startswith(expected)
        if destination == "journald" and format_ == "text":
            log.warning("two\nlines")
            assert b"MESSAGE\n\x1a\0\0\0\0\0\0\0zonemta_py.test: two\nlines\n" in receiver.recv(1000)


def test_a_journal_that_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "socket"
    monkeypatch.setattr(logs, "JOURNAL", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        configure_logs(LogTarget("info", "text", "journald"))
    path.unlink()
    log.warning("hello")
    assert "hello" in capsys.readouterr().err
    assert sys.stderr


async def test_repetitions_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "KINDS_MAX", 2)
    lines = RepeatedLines(log)
    for number in range(1000):
        lines.write("dead", logging.WARNING, partial("failure {}".format, number))
    for kind in ("other", "third", "fourth"):
        lines.write(kind, logging.WARNING, partial(str, kind))
    lines.flush()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "failure 0", "other", "repeated 999 more times within a minute: failure 0"
    ]  # fmt: skip


async def test_counts_are_written_after_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "WINDOW_S", 0.0)
    lines = RepeatedLines(log)
    lines.write("dead", logging.WARNING, lambda: "failure")
    lines.write("dead", logging.WARNING, lambda: "failure")
    while "1 more" not in caplog.text:
        await asyncio.sleep(0)
