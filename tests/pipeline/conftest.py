"""One Spark session for all tests of the pipeline; they are skipped without Java."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.object_store import ROOTS, class_path, object_root
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With one tier Java reserves 48 MiB for compiled code, which the code that Spark generates in all tests exceeds. Hadoop starts a
# chmod for each file of this machine: a fork starts it sooner than Java's helper program.
FAST_START = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xss4m"
    " -Djdk.lang.Process.launchMechanism=VFORK -Dderby.stream.error.file=/dev/null"
)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A session that starts fast; ``local[2,4]`` runs a failed task again, up to 4 times."""
    pytest.importorskip("pyspark")
    from zonemta_py.pipeline.spark.session import find_java, open_session

    try:
        find_java()
    except LocalError as exc:
        pytest.skip(str(exc))
    session = open_session(
        "local[2,4]",
        "1g",
        light=False,
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": FAST_START,
            "spark.driver.extraClassPath": class_path(),
            "spark.python.worker.reuse": "true",
        },
    )
    yield session
    session.stop()


@pytest.fixture(params=ROOTS)
def root(request: pytest.FixtureRequest, spark: "SparkSession", tmp_path: Path) -> str:
    """An empty place: a directory of this machine, or a URL: in an object store where the client of S3 is installed."""
    if request.param == "s3a":
        return object_root(spark, tmp_path)
    return str(tmp_path) if request.param == "path" else f"file://{tmp_path}"


class KeptSession:
    """The session of all tests, which a command must not stop."""

    def __init__(self, session: "SparkSession") -> None:
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def stop(self) -> None:
        pass


@pytest.fixture
def kept_session(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in the session of all tests."""
    from zonemta_py.pipeline.spark import session

    monkeypatch.setattr(session, "open_session", lambda *_, **__: KeptSession(spark))


@pytest.fixture(autouse=True)
def spark_is_noisy(request: pytest.FixtureRequest) -> None:
    """Spark's client closes its sockets and files late."""
    for category in (
        "ResourceWarning",
        "DeprecationWarning",
        "FutureWarning",
        "pytest.PytestUnraisableExceptionWarning",
    ):
        request.node.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))
