"""Pages for those who change the code name what is there: each path exists, and no directory of the package is left out.

How many files a message passes is measured by ``test_message_path``.
"""

import re
from pathlib import Path

import pytest

from zonemta_py.queue.format import keys

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "zonemta_py"
INTERNALS = ROOT / "docs/internals.md"
PAGES = (
    "CONTRIBUTING.md",
    "docs/internals.md",
    "docs/library.md",
    "docs/reliability.md",
    "docs/benchmarks.md",
)
PATH = re.compile(
    r"`((?:[\w.-]+/)+(?:[\w-]+\.\w+)?|\w+\.py)`"
)  # of a directory, with a slash at its end


def paths_in(text: str) -> set[str]:
    """The paths in code spans, without keys of the queue. One with a word in capitals stands for any name."""
    found = {
        path for path in PATH.findall(text) if not re.search(r"\b[A-Z]{2,}", path.removesuffix(".md"))
    }
    return {path for path in found if path.encode() not in _prefixes()}


def _prefixes() -> set[bytes]:
    """The prefixes of keys, and the keys that are alone."""
    return {value for name, value in vars(keys).items() if name.isupper() and isinstance(value, bytes)}


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    """Below the package, the repository or its tests."""
    paths = paths_in((ROOT / page).read_text(encoding="utf-8"))
    assert paths
    missing = [
        path
        for path in paths
        if not any((base / path).exists() for base in (PACKAGE, ROOT, ROOT / "tests"))
    ]
    assert sorted(missing) == []


def test_every_directory_of_the_package_is_named() -> None:
    named = paths_in(INTERNALS.read_text(encoding="utf-8"))
    directories = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("__init__.py")} - {
        "./"
    }
    assert directories - named == set()


def test_every_prefix_of_the_keys_is_named() -> None:
    text = INTERNALS.read_text(encoding="utf-8")
    assert sorted(prefix for prefix in _prefixes() if f"`{prefix.decode()}" not in text) == []
