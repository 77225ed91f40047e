"""A standalone Spark cluster on loopback: a master, and a worker at each of two addresses."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kit.deadlines import until
from zonemta_py.bench.process import free_port, process_tree

HOSTS = ("127.0.0.1", "127.0.0.2")
START_S = 60.0
HIDE = 'mount -t tmpfs none "$0" && exec "$@"'
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class Cluster:
    """The address of the cluster, and its processes."""

    def __init__(self, address: str, workers: list[subprocess.Popen[bytes]]) -> None:
        self.address = address
        self.workers = workers

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        return [
            pid
            for worker in self.workers
            for pid in process_tree(worker.pid)
            if "CoarseGrainedExecutorBackend" in _command(pid)
        ]

    def kill_executor(self) -> int:
        """Kill an executor; returns its process id."""
        pid = self.executors()[0]
        os.kill(pid, signal.SIGKILL)
        return pid


def can_hide() -> bool:
    """Whether a process may have a file system of its own here: that of root may."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-m", "true"], check=False).returncode == 0


@asynccontextmanager
async def cluster(directory: Path, hidden: Path | None = None) -> AsyncIterator[Cluster]:
    """Start a cluster from the installed package; kill it at the end of the block.

    ``hidden``: a directory that is empty for each worker, as if it were another machine.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    port = free_port()
    address = f"spark://{HOSTS[0]}:{port}"
    started = [
        _start(directory, home, "master.Master", "--host", HOSTS[0], "--port", str(port), "--webui-port", "0")
    ]  # fmt: skip
    try:
        await until(
            lambda: "I have been elected leader" in _log(directory, "master.Master"), "a master", START_S
        )
        small = ("--webui-port", "0", "--cores", "1", "--memory", "1g", address)
        started += [
            _start(
                directory,
                home,
                "worker.Worker",
                "--host",
                host,
                "--work-dir",
                str(directory / host),
                *small,
                hidden=hidden,
            )
            for host in HOSTS
        ]
        await until(
            lambda: (
                len(re.findall("Registering worker", _log(directory, "master.Master"))) == len(HOSTS)
            ),
            "its workers",
            START_S,
        )
        yield Cluster(address, started[1:])
    finally:
        for process in reversed(started):
            _end(process)


def _start(
    directory: Path, home: Path, what: str, *arguments: str, hidden: Path | None = None
) -> subprocess.Popen[bytes]:
    from zonemta_py.pipeline.spark.session import find_java

    environment = {
        **os.environ, "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(directory), "SPARK_LOCAL_IP": HOSTS[0],
        "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA,
        "JAVA_HOME": str(find_java().resolve().parents[1]),
    }  # fmt: skip
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
    if hidden is not None:
        command = ["unshare", "-m", "sh", "-c", HIDE, str(hidden), *command]
    with (directory / f"{what}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env=environment,
        )


def _log(directory: Path, what: str) -> str:
    return (directory / f"{what}.log").read_text(errors="replace")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""  # the process has ended


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants."""
    for pid in process_tree(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
