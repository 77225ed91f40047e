"""The command line: ``main`` and one file per command."""

import sys

from zonemta_py.core import runtime

if sys.argv[1:2] == [
    "serve"
]:  # importing its modules takes a tenth of a second, in which a signal would end it
    runtime.block()
