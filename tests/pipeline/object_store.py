"""The S3 server of the tests as a file system of Spark: ``s3a://``, by Hadoop's own client."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.servers import BUCKET, object_endpoint, part_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = Path(sys.prefix) / "share" / "s3a"  # setup-tools writes them
ROOTS = ("path", "s3a" if JARS.is_dir() else "file")  # parameters of the fixture ``root``
# The client is that of Hadoop 3.3, and Spark's defaults are those of a newer one: times with a unit, and classes of
# another SDK. A region: else the client looks for that of the machine that it runs on.
SETTINGS = {
    "impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "path.style.access": "true",
    "access.key": "tests",
    "secret.key": "tests",
    "endpoint.region": "us-east-1",
    "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "threads.keepalivetime": "60",
    "connection.timeout": "60000",
    "connection.establish.timeout": "5000",
    "connection.ttl": "300000",
    "multipart.purge.age": "86400",
    "directory.marker.retention": "keep",  # as a newer client: no request for each directory above a file
}


def class_path() -> str:
    """What a session needs in ``spark.driver.extraClassPath`` to reach ``object_root``."""
    return f"{JARS}/*"


def settings() -> dict[str, str]:
    """Hadoop's settings for the S3 server of this run, which starts on first use."""
    found = {**SETTINGS, "endpoint": object_endpoint()}
    return {f"fs.s3a.{name}": value for name, value in found.items()}


def object_root(spark: "SparkSession", directory: Path) -> str:
    """A place in the bucket that only ``directory`` has."""
    for name, value in settings().items():
        spark.sparkContext._jsc.hadoopConfiguration().set(name, value)
    return f"s3a://{BUCKET}/{part_of(directory)}"
