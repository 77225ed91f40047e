"""What a process uses, as the kernel counts it (proc(5))."""

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_use(pid: int) -> tuple[int, float] | None:
    """Anonymous memory (bytes) and CPU time (s) of a process; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    except (OSError, ValueError, IndexError):
        return None
    return (resident - shared) * PAGE_BYTES, (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def open_descriptors() -> int | None:
    """How many file descriptors this process has; None where that is not known."""
    try:
        with os.scandir("/proc/self/fd") as entries:
            return sum(1 for _ in entries)
    except OSError:
        return None
