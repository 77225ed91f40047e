"""A Spark Connect server on loopback, and commands of the pipeline that are its clients."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.pipeline.cluster import JAVA, _end
from zonemta_py.bench.process import free_port
from zonemta_py.cli.main import main

ROOT = Path(__file__).parents[2]  # its tasks run the code of the client
HOST = "127.0.0.1"
START_S = 60.0
LINE_BYTES = 1 << 24  # the output of a command
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.connect.grpc.binding.address": HOST,
    "spark.driver.host": HOST,
    "spark.driver.extraJavaOptions": f"{JAVA} -XX:ReservedCodeCacheSize=256m -Xss4m",
    "spark.sql.shuffle.partitions": "2",
}


@asynccontextmanager
async def connect_server(directory: Path) -> AsyncIterator[str]:
    """The address (``sc://…``) of a server from the installed package; it is killed at the end of the block.

    Its working directory is not that of its clients.
    """
    import pyspark

    from zonemta_py.pipeline.spark.session import find_java

    (directory / "server").mkdir()
    home, port, log = Path(pyspark.__file__).parent, free_port(), directory / "connect.log"
    settings = {
        **SETTINGS,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
    }
    options = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
    environment = {
        **os.environ, "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(directory), "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": _python_path(),
        "JAVA_HOME": str(find_java().resolve().parents[1]),
    }  # fmt: skip
    with log.open("ab") as file:
        server = subprocess.Popen(
            [home / "bin" / "spark-submit", "--class", CLASS, "--master", "local[2,4]", "--driver-memory", "512m", *options,
             "spark-internal"],
            stdout=file, stderr=file, env=environment, cwd=directory / "server",
        )  # fmt: skip

    def started() -> bool:
        assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    try:
        await until(started, "a Spark Connect server", START_S)
        yield f"sc://{HOST}:{port}"
    finally:
        _end(server)


class Client:
    """A process that runs commands of the pipeline in ``directory`` as a client of ``address``, without a Java of its own.

    It is started once: most of the time of a short command is that of importing Spark.
    """

    def __init__(self, directory: Path, address: str) -> None:
        self.directory = directory
        self._address = address
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, *arguments: str, exit_code: int = 0) -> tuple[list[dict[str, Any]], str]:
        """Run ``zonemta pipeline ARGUMENTS``; returns its rows of JSON, and its stderr."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.directory, limit=LINE_BYTES,
                env={**os.environ, "PYTHONPATH": _python_path(), "JAVA_HOME": str(self.directory / "no-java")},
            )  # fmt: skip
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        words = ["pipeline", *arguments, "--master", self._address, "--json"]
        stdin.write(json.dumps(words).encode() + b"\n")
        code, output, errors = json.loads(await stdout.readline())
        assert code == exit_code, (arguments, output, errors[-3000:])
        return [json.loads(line) for line in output.splitlines()], errors

    async def aclose(self) -> None:
        """End the process, which would wait for threads of Spark's client."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()


def _python_path() -> str:
    return f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"


def _run_commands() -> None:
    """Run the command of each line of standard input; print its exit code, output and errors."""
    for line in sys.stdin:
        result = CliRunner().invoke(main, json.loads(line))
        print(json.dumps([result.exit_code, result.stdout, result.stderr]), flush=True)


if __name__ == "__main__":
    _run_commands()
