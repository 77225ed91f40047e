"""``reaper COMMAND…``: run a command and adopt its orphaned processes, so that their CPU time is counted.

The processes of a relay that forks twice for each delivery would otherwise be adopted by init. Exits with the
code of the command; SIGTERM is passed on to it.
"""

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Run the command of the command line."""
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
