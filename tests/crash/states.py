"""What a kill or a power cut leaves of a relay on a real store: rebuilt from its recorded calls, opened, played to its end, audited.

``python -m tests.crash.states --states 1000``. A relay runs with ``recorder.c`` preloaded, through several starts, so that LevelDB
makes logs, tables and manifests and removes them. ``Recorded`` follows the calls. After any of them it makes the directory that is
left in one of three ways:

- *killed*: everything is there;
- *ordered*: names are on disk in the order of their changes, up to some change behind the last sync of anything; of what was written
  to a file and not synced there is any first part (a file system with a journal, such as ext4);
- *strict*: a directory has the names of its last sync, and any of the changes since; of what was written to a file and not synced
  any part is there, with holes of whole pages (what POSIX promises).

A relay is started on it. Every message that was acknowledged before that call has one outcome for each recipient then, with its
bytes, and is delivered again only where an ``uncertain`` event says so; nothing is left in the queue.
"""

import argparse
import asyncio
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.crash.disk import library
from tests.kit.deadlines import until
from tests.kit.queue import everything, problems
from tests.simulation.disk import Change, names_after, torn
from zonemta_py import LocalMessage, Relay, Reply, parse_config
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import LocalError
from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.queue.format import keys

MODELS = ("killed", "ordered", "strict")
STORES = ("leveldb", "filesystem")
STARTS = 4
MESSAGES = 12  # of each start
SIZES = (10, 3000, 70_000, 200_000)
JOURNAL = "journal"  # what the recorded relay says of itself: a file beside its queue
LATER, NEVER = "later", "never"  # recipients that are refused while the relay is recorded


# ---- the relay


def config_of(directory: Path, store: str) -> Config:
    """A relay without listeners, which delivers by ``deliver``."""
    text = f"""
hostname: relay.example
listeners: []
admin: {{address: null}}
queue: {{directory: queue, store: {store}, min_free_disk: 1MiB}}
events: {{directory: events}}
zones: {{default: {{transport: python, python: {{function: {deliver.__module__}.deliver}}, retry: {{delays: [1h]}}}}}}
"""
    return parse_config(text, directory / "zonemta.yaml")


def body_of(number: int) -> bytes:
    """The body of a message."""
    line = b"%d of this message\r\n" % number
    return line * (SIZES[number % len(SIZES)] // len(line) + 1)


@dataclass
class Deliveries:
    """What ``deliver`` has got. ``journal``: the file in which it says so, while the relay is recorded."""

    journal: int | None = None
    made: list[tuple[str, str]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


_deliveries = Deliveries()


async def deliver(message: LocalMessage) -> Reply | None:
    """The transport: refuses some recipients while it is recorded, and takes everything later."""
    body = b"".join([chunk async for chunk in message.body()])
    subject = message.header.partition(b"Subject: message ")[2].split(b"\r\n")[0]
    if subject.isdigit() and body != body_of(int(subject)):
        _deliveries.damaged.append(f"{message.message} to {message.recipient}: other bytes")
    if _deliveries.journal is not None:
        user = message.recipient.partition("_")[0]
        if user == LATER:
            return Reply(451, "4.7.1", "later")
        if user == NEVER:
            return Reply(550, "5.1.1", "no such user")
        os.write(_deliveries.journal, f"sent {message.message} {message.recipient}\n".encode())
    _deliveries.made.append((message.message, message.recipient))
    return None


async def run_recorded(directory: Path, store: str) -> None:
    """Start a relay some times, with mail; what it has acknowledged, and sent, is in the journal."""
    journal = os.open(directory / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _deliveries.journal = journal
    for start in range(STARTS):
        async with Relay(config_of(directory, store)) as relay:
            for number in range(start * MESSAGES, (start + 1) * MESSAGES):
                recipients = [
                    f"{user}_{number}@x.example" for user in ("u", "v", (LATER, NEVER)[number % 2])
                ]
                text = b"From: s@x.example\r\nSubject: message %d\r\n\r\n" % number + body_of(number)
                made = await relay.enqueue("s@x.example", recipients, text)
                os.write(journal, f"accepted {made} {' '.join(recipients)}\n".encode())
            wanted = (
                start * MESSAGES
            )  # of the deliveries so far; the others are interrupted, or come later
            await until(lambda: len(_deliveries.made) >= wanted, "deliveries")  # noqa: B023 - called now
            if start % 2:
                await relay.flush()


def record(directory: Path, scratch: Path, store: str) -> bytes:
    """Run the relay in ``directory``; returns the record of its calls."""
    found = scratch / "record"
    environment = {
        "LD_PRELOAD": str(library("recorder", str(scratch))),
        "RECORDED": str(directory),
        "RECORD": str(found),
    }
    command = [sys.executable, "-m", "tests.crash.states", "--record", str(directory), "--store", store]
    subprocess.run(command, env={**os.environ, **environment}, check=True)
    return found.read_bytes()


# ---- the calls


class Call(NamedTuple):
    """A line of the record, and the data behind it."""

    what: str
    words: list[str]
    data: bytes


def calls(text: bytes) -> Iterator[Call]:
    """The calls of a record, see ``recorder.c``."""
    at = 0
    while at < len(text):
        end = text.index(b"\n", at)
        what, *words = text[at:end].decode().split(" ")
        size = int(words[2]) if what == "write" else int(words[1]) if what == "symlink" else 0
        at = end + 1 + size
        yield Call(what, words, text[end + 1 : at])


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0  # bytes from its begin that are on disk as they are
    target: str = ""  # of a symbolic link


@dataclass
class _Directory:
    """``names``: now. ``synced``: those of its last sync, ``changes`` since. ``durable``: those of the last sync of anything."""

    names: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    durable: dict[str, int] = field(default_factory=dict)


ROOT = 0


class Recorded:
    """The files and directories below ``directory``, after the calls that were followed; each has a number, inodes are used again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers: dict[int, int] = {}  # by inode
        self._files: dict[int, _File] = {}
        self._directories = {ROOT: _Directory()}
        self._since_sync: list[tuple[int, Change]] = []

    def follow(self, call: Call) -> None:
        """A call has been made."""
        words = call.words
        match call.what:
            case "file":
                self._files[self._made(words[0])] = _File()
                self._name(words[1], words[0])
            case "symlink":
                self._files[self._made(words[0])] = _File(target=call.data.decode())
                self._name(words[2], words[0])
            case "folder":
                self._directories[self._made(words[0])] = _Directory()
                self._name(words[1], words[0])
            case "name":
                self._name(words[1], words[0])
            case "renamed":
                self._rename(words[0], words[1])
            case "gone":
                place, name = self._place(words[0])
                self._change(place, {name: None})
            case "write":
                self._write(self._files[self._numbers[int(words[0])]], int(words[1]), call.data)
            case "cut":
                file, size = self._files[self._numbers[int(words[0])]], int(words[1])
                file.data = file.data[:size].ljust(size, b"\0")
                file.synced = min(file.synced, size)
            case _:
                self._sync(
                    self._numbers.get(int(words[0]), ROOT)
                )  # of which no line says that it was made

    def _made(self, inode: str) -> int:
        """The number of what has just been made."""
        self._numbers[int(inode)] = number = 1 + len(self._files) + len(self._directories)
        return number

    def _place(self, path: str) -> tuple[int, str]:
        """The directory of ``path``, and the name in it."""
        *parents, name = Path(path).relative_to(self._directory).parts
        found = ROOT
        for each in parents:
            found = self._directories[found].names[each]
        return found, name

    def _name(self, path: str, inode: str) -> None:
        place, name = self._place(path)
        self._change(place, {name: self._numbers[int(inode)]})

    def _rename(self, old: str, new: str) -> None:
        (source, before), (target, after) = self._place(old), self._place(new)
        found = self._directories[source].names.get(before)
        if found is None:
            return  # LevelDB's own log of messages, which is written by other calls
        if source == target:
            self._change(source, {before: None, after: found})
        else:
            self._change(source, {before: None})
            self._change(target, {after: found})

    def _change(self, place: int, change: Change) -> None:
        directory = self._directories[place]
        directory.names = names_after(directory.names, [change])
        directory.changes.append(change)
        self._since_sync.append((place, change))

    def _write(self, file: _File, at: int, data: bytes) -> None:
        file.data.extend(bytes(max(0, at - len(file.data))))
        file.data[at : at + len(data)] = data
        file.synced = min(file.synced, at)

    def _sync(self, number: int) -> None:
        for place, change in self._since_sync:
            directory = self._directories[place]
            directory.durable = names_after(directory.durable, [change])
        self._since_sync.clear()
        if number in self._files:
            self._files[number].synced = len(self._files[number].data)
            return
        directory = self._directories[number]
        directory.synced, directory.changes = dict(directory.names), []

    def file(self, name: str) -> bytes:
        """The bytes that were written to a file of the directory."""
        found = self._directories[ROOT].names.get(name)
        return bytes(self._files[found].data) if found is not None else b""

    def leave(self, target: Path, model: str, r: random.Random) -> None:
        """Make the directory ``target``: what is left after the last call."""
        kept = self._since_sync[: r.randint(0, len(self._since_sync))]
        self._leave(ROOT, target, (model, kept, r))

    def _leave(
        self, number: int, target: Path, how: tuple[str, list[tuple[int, Change]], random.Random]
    ) -> None:
        model, kept, r = how
        directory = self._directories[number]
        names = directory.names
        if model == "ordered":
            names = names_after(directory.durable, [change for place, change in kept if place == number])
        elif model == "strict":
            names = names_after(
                directory.synced, [each for each in directory.changes if r.random() < 0.5]
            )
        target.mkdir(mode=0o700)
        for name, found in sorted(names.items()):
            if found in self._directories:
                self._leave(found, target / name, how)
                continue
            file = self._files[found]
            if file.target:
                (target / name).symlink_to(file.target)
                continue
            data = bytes(file.data)
            if model != "killed":
                data = torn(data, file.synced, r, with_holes=model == "strict")
            (target / name).write_bytes(data)
            (target / name).chmod(0o600)


# ---- the audit


async def audit(directory: Path, store: str, journal: bytes) -> list[str]:
    """Start a relay in ``directory`` and let it deliver all that is there; what is wrong then, by what its ``journal`` said before."""
    global _deliveries
    _deliveries = Deliveries()
    async with Relay(config_of(directory, store)) as relay:

        def left() -> list[bytes]:
            """What is in the queue; a key that would wake what has been sent is deleted at its time."""
            return [key for key in everything(relay.queue.store) if not key.startswith(keys.DUE)]

        await relay.flush()
        try:
            await until(lambda: not left(), "an empty queue")
        except AssertionError:
            return [f"the queue is not empty: {left()[:3]}"]
        found = list(problems(relay.queue.store))
    paths = sealed_segments(directory / "events")
    records = (record for path in paths for record in read_segment(path))
    history = RecipientHistory(records, addresses=True)
    uncertain = {(each["message"], each["recipient"]) for each in history.uncertain}
    again = Counter(_deliveries.made)
    outcomes = {(each[0], history.addresses.get(each, "")) for each in history.outcomes}
    for line in journal.decode().splitlines():
        what, message, *recipients = line.split(" ")
        for each in recipients:
            if what == "accepted" and (message, each) not in outcomes:
                found.append(f"{message} to {each} was acknowledged, and has no outcome")
            if what == "sent" and again[message, each] and (message, each) not in uncertain:
                found.append(f"{message} to {each} is sent again, which no event says")
    found += [f"{message} to {each} is sent {n} times" for (message, each), n in again.items() if n > 1]
    return found + _deliveries.damaged + [f"two outcomes: {each}" for each in history.repeated]


def record_in(directory: Path, store: str) -> tuple[Path, list[Call]]:
    """Record a relay in a new directory below ``directory``; returns that, and the calls."""
    place, scratch = directory / "relay", directory / "scratch"
    place.mkdir()
    scratch.mkdir()
    return place, list(calls(record(place, scratch, store)))


async def play(directory: Path, store: str, states: int, r: random.Random) -> list[str]:
    """Record a relay, make ``states`` of what it could have left, and audit them; what is wrong."""
    place, made = record_in(directory, store)
    return await play_calls(place, store, made, [(r.choice(MODELS), r) for _ in range(states)])


async def play_calls(
    place: Path, store: str, made: Sequence[Call], states: Sequence[tuple[str, random.Random]]
) -> list[str]:
    """Make and audit ``states``, each by its model, of what ``made`` could have left; what is wrong."""
    recorded, found = Recorded(place), list[str]()
    due = sorted((r.randrange(len(made)), n) for n, (_, r) in enumerate(states))
    for number, call in enumerate(made):
        recorded.follow(call)
        while due and due[0][0] == number:
            n = due.pop(0)[1]
            model, r = states[n]
            left = place.with_name(f"{number}-{n}")
            recorded.leave(left, model, r)
            try:
                wrong = await audit(left, store, recorded.file(JOURNAL))
            except LocalError as exc:
                wrong = [f"it does not start: {exc}"]
            found += [f"{store}, call {number} of {len(made)}, {model}: {each}" for each in wrong]
            if not wrong:
                shutil.rmtree(left)
    return found


def main() -> int:
    """Play states of each store; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.states", description=__doc__)
    parser.add_argument("--states", type=int, default=200, help="of each store")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--record", type=Path, help="run the recorded relay in this directory")
    arguments = parser.parse_args()
    if arguments.record:
        asyncio.run(run_recorded(arguments.record, arguments.store))
        return 0
    logging.disable()
    failed = 0
    for store in [arguments.store] if arguments.store else STORES:
        directory = Path(tempfile.mkdtemp(prefix="zonemta-states-"))
        found = asyncio.run(play(directory, store, arguments.states, random.Random(arguments.seed)))
        for each in found:
            print(each)
        failed += len(found)
        print(
            f"{store}: {arguments.states} states with seed {arguments.seed}, {len(found)} faults; {directory}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
