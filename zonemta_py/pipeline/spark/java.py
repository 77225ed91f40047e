"""Which Java runs Spark: JAVA_HOME, else the one in PATH, at least version 17."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from zonemta_py.core.errors import LocalError

LEAST = 17
REMEDY = f"Spark needs Java {LEAST} or newer (Debian: apt-get install openjdk-17-jre-headless)"


def find_java() -> Path:
    """The java command to use. Raises LocalError with what to install."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).is_file():
        raise LocalError(f"no Java found{f' in JAVA_HOME {home}' if home else ''}: {REMEDY}")
    version = java_version(Path(found))
    if version < LEAST:
        raise LocalError(f"{found} is Java {version}: {REMEDY}")
    return Path(found)


def java_version(java: Path) -> int:
    """The major version of a java command. Raises LocalError when it does not say."""
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if match is None:
        raise LocalError(f"{java} does not say its version: {REMEDY}")
    return int(match[1])
