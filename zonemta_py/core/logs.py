"""The log of every process of the relay: one format, one destination.

``configure_logs`` installs one handler for a ``LogTarget``: text for people, JSON, or the form of Postfix, to stderr, journald or syslog.
``RepeatedLines`` writes lines that may come by the thousand.

Invariants:

- Control characters of strangers never reach a terminal: each formatter replaces them.
- A log that cannot be written never stops mail: journald and syslog are not waited for, and what they do not take goes to stderr.
- Of repeated lines the first of a kind is written at once, the others are counted and written as a number after WINDOW_S.

Callers: the entry of each process; ``events.observers`` for repeated lines.

Example: 500 lines of one kind in a minute are two: the first, and "repeated 499 more times within a minute".

Source: systemd, JOURNAL_NATIVE_PROTOCOL; syslog(3).
"""

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Hashable
from logging.handlers import SysLogHandler
from pathlib import Path
from typing import Any, NamedTuple

from zonemta_py.core.errors import ConfigError
from zonemta_py.core.text import escaped, escaped_json

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
JOURNAL = "/run/systemd/journal/socket"
SYSLOG = "/dev/log"
_PRIORITIES = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


class LogTarget(NamedTuple):
    """The least level (debug, info, warning, error), the format (text, json, postfix), the destination (stderr, journald,
    syslog).
    """

    level: str = "info"
    format: str = "text"
    destination: str = "stderr"


def set_log_level(level: str) -> None:
    """Set the least level of written log messages."""
    logging.getLogger().setLevel(level.upper())


def parse_target(text: str) -> LogTarget:
    """A target from its text: the three words with commas between them."""
    return LogTarget(*text.split(","))


class _JsonFormatter(logging.Formatter):
    """A line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(found, ensure_ascii=False))


class _TextFormatter(logging.Formatter):
    """Lines for people; a traceback has several."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record without control characters of strangers."""
        return escaped(super().format(record), "\n\t")


def _service(record: logging.LogRecord) -> str:
    """The name of the process, as Postfix's programs have them: log analysers look for ``…/smtp``."""
    return f"zonemta/{record.name.rpartition('.')[2].replace('_', '-')}"


class _PostfixFormatter(logging.Formatter):
    """The format of Postfix's log file: the name of the host and of the process in front; to syslog without time and host."""

    def __init__(self, *, whole: bool = True) -> None:
        super().__init__()
        self._whole = whole

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_service(record)}[{record.process}]: {record.getMessage()}"
        if self._whole:
            host = socket.gethostname().partition(".")[0]
            text = f"{self.formatTime(record, '%b %d %H:%M:%S')} {host} {text}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _JournalHandler(logging.Handler):
    """Sends records to journald by its native protocol. Source: systemd, JOURNAL_NATIVE_PROTOCOL."""

    def __init__(self, path: str = JOURNAL, *, as_postfix: bool = False) -> None:
        super().__init__()
        self._path = path
        self._as_postfix = as_postfix
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a journal that does not read must not stop the mail

    def close(self) -> None:
        self._socket.close()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Send ``record``; one that cannot be sent goes to stderr."""
        fields = {
            "MESSAGE": self.format(record),
            "PRIORITY": str(_PRIORITIES.get(record.levelno, 6)),
            "SYSLOG_IDENTIFIER": _service(record) if self._as_postfix else "zonemta",
            "LOGGER": record.name,
        }
        data = b"".join(_journal_field(name, value) for name, value in fields.items())
        try:
            self._socket.sendto(data, self._path)
        except OSError:
            sys.stderr.write(f"{fields['MESSAGE']}\n")


def _journal_field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


def configure_logs(target: LogTarget) -> None:
    """Write log messages of the level of ``target`` and above. Raises ConfigError without the destination."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    formatter = {
        "json": _JsonFormatter(),
        "postfix": _PostfixFormatter(),
    }.get(target.format, _TextFormatter(TEXT))
    if target.destination != "stderr":
        path = JOURNAL if target.destination == "journald" else SYSLOG
        if not Path(path).is_socket():
            raise ConfigError(f"log.destination: {target.destination}: there is no socket {path}")
        as_postfix = target.format == "postfix"
        if target.destination == "journald":
            handler = _JournalHandler(path, as_postfix=as_postfix)
        else:
            handler = _syslog(path, "" if as_postfix else f"zonemta[{os.getpid()}]: ")
        if as_postfix and target.destination == "journald":
            formatter = _TextFormatter("%(message)s")
        elif as_postfix:
            formatter = _PostfixFormatter(whole=False)
        elif target.format != "json":
            formatter = _TextFormatter("%(name)s: %(message)s")  # it has time, level and process
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(target.level.upper())
    # asyncio logs every connection at lower levels; the event log has what matters.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class _SyslogHandler(SysLogHandler):
    """Does not wait for a syslog that does not read."""

    socket: Any

    def createSocket(self) -> None:
        """Connect, without waiting later."""
        super().createSocket()
        self.socket.setblocking(False)

    def handleError(self, record: logging.LogRecord) -> None:
        """Write to stderr what could not be sent."""
        sys.stderr.write(f"{self.format(record)}\n")


def _syslog(path: str, ident: str) -> logging.Handler:
    handler = _SyslogHandler(path, SysLogHandler.LOG_MAIL)
    handler.ident = ident
    return handler


# ---- Repeated lines: the first of a kind is written, the others are counted for a minute.

WINDOW_S = 60.0
KINDS_MAX = 50  # in a window; the lines of others are counted together


class RepeatedLines:
    """Writes to ``log``. Needs a running loop."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[Hashable, tuple[int, str, int]] = {}  # level, first text, repetitions
        self._others = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, kind: Hashable, level: int, make_text: Callable[[], str]) -> None:
        """Write a line, unless one of its kind was written within the last minute: then its text is not made."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self.flush)
        known = self._counts.get(kind)
        if known is not None:
            self._counts[kind] = (*known[:2], known[2] + 1)
        elif len(self._counts) >= KINDS_MAX:
            self._others += 1
        else:
            text = make_text()
            self._counts[kind] = level, text, 0
            self._log.log(level, "%s", text)

    def flush(self) -> None:
        """Write how often lines were repeated, and start the next interval."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for level, text, count in counts.values():
            if count:
                self._log.log(level, "repeated %d more times within a minute: %s", count, text)
        if self._others:
            self._log.info("%d further messages were left out within a minute", self._others)
            self._others = 0
