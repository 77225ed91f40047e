"""``zonemta token``: a token that cannot be printed is not added."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("output", [">&-", "> /dev/full"])
def test_a_token_that_cannot_be_printed(tmp_path: Path, output: str) -> None:
    (tmp_path / "z.yaml").write_text("admin: {tokens_file: tokens}\n")
    command = f"{sys.executable} -m zonemta_py token add a -c {tmp_path}/z.yaml {output}"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr[:7]) == (1, "error: "), found.stderr
    assert (tmp_path / "tokens").read_text() == ""
