"""The public API: its names, and that importing the package loads nothing else."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import zonemta_py
from zonemta_py import dequeue, policies
from zonemta_py.queue import kannader

SOURCE = Path(zonemta_py.__file__)
LIBRARY = SOURCE.parents[1] / "docs" / "library.md"


def imported_for_type_checkers() -> dict[str, set[str]]:
    """The names under ``if TYPE_CHECKING``, by module."""
    found: dict[str, set[str]] = {}
    for block in ast.parse(SOURCE.read_text()).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                assert isinstance(line, ast.ImportFrom) and line.module
                (name,) = line.names
                assert name.asname == name.name, f"{name.name} is not re-exported"
                found.setdefault(line.module, set()).add(name.name)
    return found


def test_the_tables_of_names_agree() -> None:
    """What type checkers see, what is imported on use, and ``__all__``."""
    names = {module: set(of_it) for module, of_it in zonemta_py._NAMES_OF.items()}
    assert imported_for_type_checkers() == names
    assert set(zonemta_py.__all__) == set().union(*names.values())
    assert set(zonemta_py.__all__) <= set(dir(zonemta_py))


@pytest.mark.parametrize("name", zonemta_py.__all__)
def test_every_name_exists(name: str) -> None:
    module = importlib.import_module(zonemta_py._MODULE_OF[name])
    assert getattr(zonemta_py, name) is getattr(module, name)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Daemon'"):
        zonemta_py.Daemon


@pytest.mark.parametrize("module", [zonemta_py, dequeue, policies, kannader], ids=lambda m: m.__name__)
def test_every_name_is_documented(module: object) -> None:
    """In docs/library.md, as code."""
    text = LIBRARY.read_text()
    names = vars(module)["__all__"]
    assert [name for name in names if f"`{name}" not in text and f"import {name}" not in text] == []


def test_every_public_error_can_be_imported() -> None:
    """The errors that docs/library.md names are public."""
    errors = importlib.import_module("zonemta_py.core.errors")
    text = LIBRARY.read_text()
    named = {name for name in vars(errors) if isinstance(getattr(errors, name), type) and name in text}
    assert {"QueueLocked", "QueueUnavailable", "QueueCorrupt", "NotAccepted"} <= named
    assert named <= set(zonemta_py.__all__)


def test_importing_the_package_loads_no_relay() -> None:
    code = (
        "import sys, zonemta_py; zonemta_py.QueueLocked; "
        "sys.exit(any(m.startswith('zonemta_py.') and not m.startswith('zonemta_py.core') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert SOURCE.with_name("py.typed").exists()
