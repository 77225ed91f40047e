"""The micro-benchmarks still do what they say: each asserts it, and here nothing is timed."""

import subprocess
import sys
from pathlib import Path

from tests.kit.deadlines import scaled

ROOT = Path(__file__).resolve().parents[2]


def test_the_micro_benchmarks() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-disable", "benchmarks/micro"]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(300), check=False
    )
    assert ended.returncode == 0, ended.stdout
