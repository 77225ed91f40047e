"""A disk that records syncs and fails on request, by the library ``disk.c`` preloaded into the relay."""

import os
import random
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest


@cache
def library(name: str, directory: str) -> Path:
    """The library of the C file ``name``, made in ``directory``."""
    made = Path(directory) / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return made


def needs_compiler() -> None:
    """Skip without a C compiler; tests/queue/test_power.py runs without one."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler here to build the failing disk")


class Disk:
    """The files below ``directory``. ``environment`` is that of processes which use them."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        scratch.mkdir(exist_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._diary = scratch / "diary"
        self._trouble = scratch / "trouble"
        self.environment = {
            "LD_PRELOAD": str(library("disk", str(scratch))),
            "DISK_FOLDER": str(directory),
            "DISK_DIARY": str(self._diary),
            "DISK_TROUBLE": str(self._trouble),
        }
        self.settle()

    def fail(self, call: str, number: int) -> None:
        """Make every ``call`` (write, fsync, open) fail with errno ``number``."""
        new = self._trouble.with_suffix(".new")
        new.write_text(f"{call} {number}")
        new.replace(self._trouble)

    def heal(self) -> None:
        """Let calls succeed again."""
        self._trouble.unlink(missing_ok=True)

    def cut_power(self, rng: random.Random) -> None:
        """Remove all or a part of the data that were not synced from the end of each file."""
        synced = self._synced()
        for path in [p for name in ("queue", "events") for p in (self.directory / name).glob("**/*")]:
            if path.is_symlink() or not path.is_file():
                continue
            end, least = path.stat().st_size, synced.get(str(path), 0)
            if least < end:
                os.truncate(path, rng.choice([least, rng.randint(least, end)]))
        self.settle()

    def _synced(self) -> dict[str, int]:
        """How long each file was when it was last synced."""
        synced: dict[str, int] = {}
        under_way: dict[str, str] = {}
        for line in self._diary.read_text().splitlines():
            word, _, rest = line.partition(" ")
            first, _, second = rest.partition(" ")
            if word == "sync":
                synced[second] = int(first)
            elif word == "gone":
                synced.pop(rest, None)
            elif word == "naming":
                under_way[first] = second
            elif word == "link":
                synced[second] = synced.get(first, 0)
            else:
                under_way.pop(first, None)
                synced[second] = synced.pop(first, 0)
        for source, target in under_way.items():
            if source in synced and not Path(source).exists():  # killed between the rename and its line
                synced[target] = synced.pop(source)
        # Killed between a link and its line: both names are there.
        lengths = {Path(p).stat().st_ino: size for p, size in synced.items() if Path(p).exists()}
        for path in self.directory.glob("**/*"):
            if path.is_file() and str(path) not in synced and path.stat().st_ino in lengths:
                synced[str(path)] = lengths[path.stat().st_ino]
        return synced

    def settle(self) -> None:
        """Record the present contents as synced."""
        files = [p for p in self.directory.glob("**/*") if p.is_file() and not p.is_symlink()]
        self._diary.write_text("".join(f"sync {p.stat().st_size} {p}\n" for p in files))
