"""``reaper COMMAND…``: run a command, and inherit what it leaves behind, so that its CPU is counted.

A relay that forks twice for each delivery would otherwise lose those processes, and the time they
took, to init. Ends with the command's exit code; SIGTERM goes on to the command.
"""

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """The command line."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    process = subprocess.Popen(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = 0
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            sys.exit(code)
        if pid == process.pid:
            code = os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
