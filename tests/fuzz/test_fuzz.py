"""A bounded run of every fuzz target: by Hypothesis everywhere, coverage-guided where atheris is."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS
from tests.kit.deadlines import scaled

PIECES = [b"\r\n", b".", b"\r", b"\n", b"250", b"-", b" ", b"<", b">", b"@", b"a", b"=", b"FROM:", b"TO:",
          b"SIZE", b"NOTIFY=", b"5.1.1", b":", b"\xff", b"\0", b"[", b"\"", b"\\", b"{", b"- ", b"x" * 70]  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
@given(
    data=st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join))
)
def test_by_hypothesis(name: str, data: bytes) -> None:
    TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_by_coverage(name: str, directory: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this interpreter")
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz",
            name,
            "-runs=20000",
            "-max_len=400",
            f"-artifact_prefix={directory}/",
        ],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=scaled(100),
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
