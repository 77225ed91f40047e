"""``tests.kit.parallel``: no part outlives the first process, and each failure is reported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled
from tests.kit.parallel import AT_ONCE

ROOT = Path(__file__).parents[2]
SLOW = "import time\n\ndef test_slow():\n    time.sleep(60)\n    open('written', 'w').close()\n"


def run(directory: Path, own: str, parts: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a suite of the first process and these parts."""
    for name, text in {"own": own, **parts}.items():
        (directory / name).mkdir()
        (directory / name / f"test_{name}.py").write_text(text)
    options = [word for name in parts for word in ("--in-parallel", name)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.kit.parallel", "-c", os.devnull]
    return subprocess.run(
        [*command, "--rootdir", str(directory), *options, "own"],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True, text=True,
        timeout=scaled(50),
    )  # fmt: skip


def test_the_parts_of_the_suite() -> None:
    """Each is a directory with tests, or a file, and is named once; the last words differ, as they name the reports."""
    found = re.search("for part in (.*); do", (ROOT / "run-tests").read_text(encoding="utf-8"))
    parts = found[1].split() if found else []
    assert parts
    paths = [ROOT / "tests" / part for part in parts]
    assert all(path.is_file() or any(path.rglob("test_*.py")) for path in paths)
    assert len({Path(part).name for part in parts}) == len(parts)


def test_the_results_of_all(tmp_path: Path) -> None:
    parts = {f"part{n}": f"def test_{n}():\n    assert {n} != 3\n" for n in range(AT_ONCE + 2)}
    found = run(tmp_path, "def test_own():\n    pass\n", parts)
    assert found.returncode == pytest.ExitCode.TESTS_FAILED
    assert "part3/test_part3.py::test_3" in found.stdout
    assert f"1 failed, {AT_ONCE + 2} passed" in found.stdout


def test_no_part_is_left(tmp_path: Path) -> None:
    """The first process ends at once; of the parts some run, some are being started, some wait."""
    found = run(tmp_path, "import no_such_module\n", {f"part{n}": SLOW for n in range(AT_ONCE + 2)})
    assert "no_such_module" in found.stdout
    assert not (tmp_path / "written").exists()
