"""Recovery of a damaged log of LevelDB: a torn end is cut off at the opening, the rest is for ``queue repair``.

A power cut can leave any pages of the last write on disk, and zeros for the others. Nothing of that write was acknowledged, so
a start continues without it. Where whole groups follow, or where one bit is wrong, the disk has changed acknowledged data:
the database is not opened, and a repair writes a log of the whole groups. The original log is kept in ``lost``, as LevelDB's
repair keeps its own files.

An opening that was interrupted is finished first (``finish_opening``).

Life of a log: LevelDB writes it (``note_written`` stores its number in WRITTEN once it has contents), a crash may tear its end,
the next opening checks it (``check_logs``), and LevelDB turns it into a table. Invariants:

- A log that WRITTEN names is there at the next opening, unless it has become a table; a missing one was removed, not lost by a crash.
- Only the last write of the newest data is ever cut, and only when it is not whole and nothing whole follows. Damage of
  an acknowledged last write looks the same as a crash during it; so the log as it was is kept.
- ``clean_logs`` runs before LevelDB's repair, which would take damaged groups for whole ones.

``storage.leveldb`` calls ``finish_opening``, ``check_logs``, ``cut_torn_end`` and ``note_written``; ``relay.runner`` calls ``clean_logs`` for a repair.
Source: doc/log_format.md and db/version_edit.cc of LevelDB.

Example: after a power cut the last write of ``000007.log`` ends in 4 KiB of zeros. The next opening cuts it off, keeps the log as it was
as ``lost/000007.log.damaged``, and has all earlier writes.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.files import private_directory, replace_text, sync_directory
from zonemta_py.queue.format import keys
from zonemta_py.storage.leveldb_log import (
    DamagedBytes,
    Group,
    bytes_at,
    is_sound,
    loose_data,
    read_groups,
    records,
    varint,
    written,
)

ASIDE = "lost"
DATABASE_FILES = ("*.ldb", "*.sst", "*.log", "MANIFEST-*")  # of LevelDB: those with contents
MANIFESTS = ("MANIFEST-000001", "MANIFEST-000002")  # of a new database, and of its first opening
WRITTEN = "WRITTEN"  # has the number of the newest log that a write has reached
SHOWN = 20  # recipients in a line of the log
SHOWN_BYTES = 4096  # that are kept of an ``outbox/`` record whose length is damaged

_RECIPIENT = re.compile(rb"(?:delivery-zone|deferred)/[a-z0-9][a-z0-9_-]*/[0-9a-f]{24}/")
_MESSAGE = re.compile(rb"\x01[\x20-\x29]message/([0-9a-f]{24})/")
_OUTBOX = re.compile(rb"\x01\x17outbox/[0-9a-f]{16}")
_ACCEPTED = re.compile(rb'\{"node":"[^\n]*"event":"accepted"[^\n]*\}\n')

log = logging.getLogger(__name__)


class NamedRecipient(NamedTuple):
    """A recipient whose key, or accepted event, is in damaged bytes. ``record`` is its value, empty if it was removed or is not there.

    Without ``zone`` and ``address``: a message that is named.
    """

    zone: str
    message: str
    address: str
    record: bytes = b""
    is_removed: bool = False


class LogDamage(NamedTuple):
    """The result of a repair in one place of a log: a text, and the recipients and the ``outbox/`` records that are there.

    ``is_lost``: nothing of it is in the log any more; else it is set right.
    """

    text: str
    is_lost: bool
    named: tuple[NamedRecipient, ...] = ()
    outbox: tuple[tuple[bytes, bytes], ...] = ()


def check_logs(directory: Path, *, keep: bool) -> None:
    """Raises QueueCorrupt for a log that is missing or damaged, as far as its heads tell; cuts a torn end off (``cut_torn_end``)."""
    following = 0
    for path in live_logs(directory):
        sound, following = is_sound(path.read_bytes(), following)
        if not sound:
            cut_torn_end(directory, keep=keep)
            return


def finish_opening(directory: Path) -> None:
    """Undo what an opening has left that a power cut has interrupted, before CURRENT is read. Raises OSError.

    LevelDB renames CURRENT when it has synced a new MANIFEST, and removes the old one and the logs that it needed; it syncs no
    name after that. So the rename may be lost, and what came behind it not: then CURRENT is made to name the newest MANIFEST. The
    first MANIFEST of a database is not synced at all: without CURRENT, or torn, it stands for a database that has had nothing.
    """
    if is_unfinished(directory):
        for name in (*MANIFESTS, "CURRENT"):
            (directory / name).unlink(missing_ok=True)
        return
    if not (directory / "CURRENT").exists():
        return
    current = _current(directory)
    number = _manifest_number(current)
    newer = [path.name for path in directory.glob("MANIFEST-*") if _manifest_number(path.name) > number]
    if number < 0 or not newer or _is_whole(directory, current):
        return
    newest = max(newer, key=_manifest_number)
    if _is_whole(directory, newest):
        replace_text(directory / "CURRENT", f"{newest}\n", 0o600)
        log.warning(
            "%s: a power cut has taken the end of an opening: CURRENT names %s now", directory, newest
        )


def is_unfinished(directory: Path) -> bool:
    """True if LevelDB was making the database: it has had nothing, and CURRENT names no MANIFEST that is whole.

    A repair makes such a MANIFEST, also of a database of which nothing is left.
    """
    if (directory / WRITTEN).exists():
        return False
    if (directory / "CURRENT").exists():
        current = _current(directory)
        if current != MANIFESTS[0] or _is_whole(directory, current):
            return False
    found = [path for pattern in DATABASE_FILES for path in directory.glob(pattern)]
    return bool(found) and all(
        path.name in MANIFESTS or (path.suffix == ".log" and not path.stat().st_size) for path in found
    )


def _is_whole(directory: Path, manifest: str) -> bool:
    """True if a MANIFEST and the logs that it needs are there."""
    try:
        _check_logs_there(directory, _oldest_log(directory, manifest))
        return any(records((directory / manifest).read_bytes()))
    except (OSError, QueueCorrupt):
        return False


def _current(directory: Path) -> str:
    """The MANIFEST that CURRENT names. Raises OSError."""
    return (directory / "CURRENT").read_bytes().decode(errors="replace").strip().replace("\0", "")


def _manifest_number(name: str) -> int:
    """That in the name of a MANIFEST; -1 for another name."""
    digits = name.removeprefix("MANIFEST-")
    return int(digits) if name != digits and digits.isascii() and digits.isdigit() else -1


def live_logs(directory: Path) -> list[Path]:
    """The logs that the next opening reads, oldest first. Raises QueueCorrupt when one is missing, or the MANIFEST is damaged.

    None without a MANIFEST that can be opened: LevelDB says what is wrong.
    """
    try:
        oldest = _oldest_log(directory, _current(directory))
    except OSError:
        return []
    _check_logs_there(directory, oldest)
    return [path for path in _logs(directory) if int(path.stem) >= oldest]


def _check_logs_there(directory: Path, oldest: int) -> None:
    """Raises QueueCorrupt when a log is missing or empty that must be there, of those from ``oldest`` on."""
    found = {int(path.stem): path for path in _logs(directory)}
    written_to = _written_log(directory)
    for number in (oldest, written_to):
        if number >= max(oldest, 1) and (
            number not in found or (number == written_to and not found[number].stat().st_size)
        ):
            state = "empty" if number in found else "missing"
            raise QueueCorrupt(f"{directory}: {number:06}.log, which has the newest mail, is {state}")


def note_written(directory: Path) -> bool:
    """A write has reached the newest log: it must be there, with contents, at the next opening. Raises OSError.

    Returns whether that is new. LevelDB notes the number of a log when the one before has become a table, and not at all whether
    it had anything.
    """
    logs = _logs(directory)
    if not logs or int(logs[-1].stem) == _written_log(directory):
        return False
    if not logs[-1].stat().st_size:  # begun behind the write by a compaction: it may stay empty
        return False
    replace_text(directory / WRITTEN, f"{int(logs[-1].stem)}\n", 0o600)
    return True


def _written_log(directory: Path) -> int:
    """The number in WRITTEN; 0 without one: an earlier version wrote none."""
    try:
        return int((directory / WRITTEN).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _logs(directory: Path) -> list[Path]:
    return sorted(
        (path for path in directory.glob("*.log") if path.stem.isdigit()), key=lambda p: int(p.stem)
    )


def _oldest_log(directory: Path, manifest: str) -> int:
    """The number of the oldest log that ``manifest`` needs, 0 for none in particular. Raises QueueCorrupt for a damaged MANIFEST, OSError.

    LevelDB passes over a head of zeros there in silence, and then deletes all tables that the rest does not name.
    Source: VersionEdit::DecodeFrom in db/version_edit.cc of LevelDB.
    """
    found = 0
    try:
        for edit in records((directory / manifest).read_bytes()):
            position = 0
            while position < len(edit):
                tag, position = varint(edit, position)
                if tag == 1:  # the comparator
                    _, position = bytes_at(edit, position)
                elif tag in (2, 3, 4, 9):  # log, next file, last sequence number, previous log
                    value, position = varint(edit, position)
                    found = value if tag == 2 else found
                elif tag in (5, 6, 7):  # compaction pointer, removed file, new file
                    for _ in range({5: 1, 6: 2, 7: 3}[tag]):
                        _, position = varint(edit, position)
                    for _ in range({5: 1, 6: 0, 7: 2}[tag]):
                        _, position = bytes_at(edit, position)
                else:
                    raise ValueError(f"unknown tag {tag}")
    except ValueError as exc:
        raise QueueCorrupt(f"{directory}: {manifest}: {exc}") from exc
    return found


def cut_torn_end(directory: Path, *, keep: bool) -> bool:
    """Cut off the last write where it is not whole and nothing whole is behind it; returns whether there was one.

    ``keep`` the log as it was. Raises QueueCorrupt for any other damage.
    """
    following, torn = 0, None
    for path in live_logs(directory):
        data = path.read_bytes()
        for found in read_groups(data, following):
            if torn is not None or (isinstance(found, Group) and found.flipped):
                place = torn[1] if torn is not None else found
                name = torn[0].name if torn is not None else path.name
                raise QueueCorrupt(f"{directory}: {name} is damaged at byte {place.start}")
            if isinstance(found, DamagedBytes):
                torn = path, found
            else:
                following = found.following
    if torn is None:
        return False
    path, damage = torn
    if not damage.start and int(path.stem) == _written_log(directory):
        raise QueueCorrupt(f"{directory}: {path.name} is damaged at its beginning")
    data = path.read_bytes()
    kept = _replace(path, [data[: damage.start]], keep=keep)
    if keep:
        log.warning(
            "%s: its last write, %d bytes from byte %d on, was not whole and is cut off: the machine stopped before it was on "
            "disk and could be acknowledged. %s; the log as it was is kept as %s",
            path, damage.end - damage.start, damage.start, _names(data, damage), kept,
        )  # fmt: skip
    return True


def _names(data: bytes, damage: DamagedBytes) -> str:
    """The recipients that damaged bytes name."""
    named = sorted(
        {each.address for each in _named(loose_data(data, damage)) if not each.is_removed} - {""}
    )
    if not named:
        return "It names no recipient that can be read"
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f"It names {', '.join(named[:SHOWN])}{more}"


def clean_logs(directory: Path) -> list[LogDamage]:
    """Before LevelDB's repair: leave only whole groups in every log, keep what was damaged in ``lost``. Raises OSError."""
    found: list[LogDamage] = []
    try:
        oldest = _oldest_log(directory, _current(directory))
    except (OSError, QueueCorrupt) as exc:
        found.append(LogDamage(f"{exc}: made anew from all tables and logs", is_lost=False))
        oldest = max((int(path.stem) for path in _logs(directory)), default=0)
    try:
        _check_logs_there(directory, oldest)
    except QueueCorrupt as exc:
        found.append(LogDamage(str(exc), is_lost=True))
    for path in _logs(directory):
        data = path.read_bytes()
        items = list(read_groups(data))
        groups = [item for item in items if isinstance(item, Group)]
        if len(groups) == len(items) and not any(group.flipped for group in groups):
            continue
        kept = _replace(path, written(groups), keep=True)
        found += [_describe(path, kept, data, item) for item in items if _is_wrong(item)]
    return found


def _is_wrong(item: Group | DamagedBytes) -> bool:
    return isinstance(item, DamagedBytes) or item.flipped


def _describe(path: Path, kept: Path, data: bytes, item: Group | DamagedBytes) -> LogDamage:
    if isinstance(item, Group):
        return LogDamage(
            f"{path.name}: a flipped bit behind byte {item.start} is set right", is_lost=False
        )
    size = item.end - item.start
    text = f"{path.name}: {size} bytes from byte {item.start} on are damaged, and left out; see {kept}"
    if not size:
        text = f"{path.name}: a write is missing in front of byte {item.start}"
    loose = loose_data(data, item)
    return LogDamage(text, is_lost=True, named=tuple(_named(loose)), outbox=tuple(_outbox(loose)))


def _named(loose: bytes) -> Iterator[NamedRecipient]:
    """The recipients that are named in damaged bytes, by a key or in an event, and the messages."""
    for match in _RECIPIENT.finditer(loose):
        at = match.start()
        begin = at - (3 if at > 2 and loose[at - 2] > 127 else 2)  # the operation, the length of the key
        if begin < 0 or loose[begin] > 1:
            continue
        try:
            key, end = bytes_at(loose, begin + 1)
            zone, message, address = keys.parse_recipient(key)
        except ValueError:
            continue
        record = b""
        if loose[begin]:
            try:
                record, _ = bytes_at(loose, end)
            except ValueError:
                record = b""
        yield NamedRecipient(zone, message, address, record, not loose[begin])
    for name in sorted(set(_MESSAGE.findall(loose))):
        yield NamedRecipient("", name.decode(), "")
    for match in _ACCEPTED.finditer(loose):
        try:
            event = from_json(match[0])
            for each in event["recipients"]:
                yield NamedRecipient(each["zone"], event["message"], each["recipient"])
        except (ValueError, KeyError, TypeError):
            continue


def _outbox(loose: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The ``outbox/`` records in damaged bytes, whole or not: they have a sum of their own."""
    for match in _OUTBOX.finditer(loose):
        try:
            value, _ = bytes_at(loose, match.end())
        except ValueError:
            value = loose[match.end() : match.end() + SHOWN_BYTES]
        yield match[0][2:], value


def _replace(path: Path, parts: Iterable[bytes], *, keep: bool) -> Path:
    """Give a log other contents, durably; returns the path under which it is kept as it was. Raises OSError."""
    new = path.with_suffix(".new")
    try:
        with new.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # such as on a full disk, where the relay tries again and again
        new.unlink(missing_ok=True)
        raise
    aside = path.parent / ASIDE / f"{path.name}.damaged"
    if keep:
        private_directory(aside.parent)
        for number in count(2):
            if not aside.exists():
                break
            aside = aside.with_name(f"{path.name}.damaged-{number}")
        os.link(path, aside)
        sync_directory(aside.parent)
    new.replace(path)
    sync_directory(path.parent)
    return aside
