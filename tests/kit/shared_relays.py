"""Relays that share a Redis or a bucket."""

from pathlib import Path
from typing import Any

from tests.kit.deadlines import time_limit
from tests.kit.relay import ONE_PROCESS, Stage
from tests.kit.servers import object_endpoint, part_of, redis_url
from zonemta_py.config.schema import Config


def shared_storage(directory: Path, kind: str) -> dict[str, Any]:
    """The settings of the Redis or bucket that the relays of a test share."""
    if kind == "redis":
        return {"store": "redis", "redis": {"url": redis_url(), "prefix": part_of(directory)}}
    return {
        "store": "s3",
        "s3": {"bucket": "queues", "prefix": part_of(directory), "endpoint": object_endpoint()},
    }


def shared_settings(stage: Stage, kind: str, name: str, **changes: Any) -> Config:
    """The configuration of one relay; its partition is ``name``."""
    queue = {
        "directory": name,
        "min_free_disk": "1MiB",
        "shared": {"name": name, "lease": time_limit(2), "poll": "200ms"},
        **shared_storage(stage.directory, kind),
    }
    return stage.config(queue=queue, processes=ONE_PROCESS, **changes)
