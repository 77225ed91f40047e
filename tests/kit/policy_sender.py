"""A sender process that asks the policy server of a test: its port is in the variable HTTPS_PORT."""

import os

from zonemta_py.delivery import sts_policies
from zonemta_py.processes.sender_process import run
from zonemta_py.processes.supervisor import child_main

if __name__ == "__main__":
    sts_policies.HTTPS_PORT = int(os.environ["HTTPS_PORT"])
    child_main(run)
