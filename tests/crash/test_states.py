"""States that a kill or a power cut leaves, rebuilt from recorded calls; ``python -m tests.crash.states`` plays more."""

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.crash.disk import needs_compiler
from tests.crash.states import MODELS, STORES, Recorded, play, play_calls, record_in
from tests.kit.deadlines import scaled

IN_MEMORY = Path("/dev/shm")
STATES = 25  # of each store
UNRECORDED = ("LOG", "LOG.old", "LOCK", "lock")  # LevelDB's messages, and files without contents

pytestmark = [pytest.mark.crash, pytest.mark.timeout(scaled(120))]


@pytest.fixture(autouse=True)
def compiler() -> None:
    needs_compiler()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory, if there is a place: an fsync costs nothing there."""
    if not IN_MEMORY.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(prefix="zonemta-states-", dir=IN_MEMORY) as name:
        yield Path(name)


@pytest.mark.parametrize("store", STORES)
async def test_nothing_is_lost(directory: Path, store: str) -> None:
    seed = random.randrange(1 << 30)
    print(f"python -m tests.crash.states --store {store} --states {STATES} --seed {seed}")
    assert await play(directory, store, STATES, random.Random(seed)) == []


def contents(directory: Path) -> dict[str, bytes | str]:
    """The files below ``directory``, and the targets of links."""
    return {
        str(path.relative_to(directory)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in directory.glob("**/*")
        if (path.is_symlink() or path.is_file()) and path.name not in UNRECORDED
    }


@pytest.mark.parametrize("store", STORES)
def test_all_calls_are_recorded(directory: Path, store: str) -> None:
    """What is rebuilt from them is what the relay has left."""
    place, made = record_in(directory, store)
    recorded = Recorded(place)
    for call in made:
        recorded.follow(call)
    recorded.leave(directory / "left", "killed", random.Random(1))
    assert contents(directory / "left") == contents(place)


@pytest.mark.parametrize("model", ["ordered", "strict"])
async def test_a_store_without_syncs(directory: Path, model: str) -> None:
    """It loses mail, which is found."""
    place, made = record_in(directory, "leveldb")
    unsynced = [call for call in made if call.what != "sync"]
    states = [(model, random.Random(n)) for n in range(4)]
    assert model in MODELS
    assert await play_calls(place, "leveldb", unsynced, states) != []
