"""Recommends settings for zones of single providers, as YAML with evidence; nothing is applied."""

from dataclasses import dataclass, fields
from pathlib import Path

from pyspark.sql import SparkSession

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.pipeline.rules.advice import ProviderStats, Recommendation, advise, as_yaml
from zonemta_py.pipeline.spark.event_log import EventLog
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.storage import write_text
from zonemta_py.pipeline.transforms.provider_stats import provider_stats
from zonemta_py.pipeline.transforms.rates import attempt_rows

PROVIDERS_MAX = 200  # the ones with most transactions


@dataclass(frozen=True, slots=True)
class RecommendRequest:
    """``output``: the YAML file. ``config``: the configuration that was in force, or None."""

    log: EventLog
    output: str
    config: Config | None = None


def recommend(
    spark: SparkSession, request: RecommendRequest, progress: Progress
) -> dict[str, list[Recommendation]]:
    """Write the file; returns the recommendations for each provider. Raises LocalError."""
    progress("computing statistics of providers")
    with spark_errors(request.log.path):
        rows = (
            read_events(spark, request.log)
            .transform(attempt_rows(None))
            .transform(provider_stats)
            .limit(PROVIDERS_MAX)
            .collect()
        )
    names = [each.name for each in fields(ProviderStats)]
    providers = [ProviderStats(**{name: row[name] for name in names}) for row in rows]
    advice = [
        (stats, found)
        for stats in providers
        if (found := advise(stats, _zone_of(stats, request.config)))
    ]
    title = f"made by zonemta pipeline recommend from {request.log.path}, {clock.utc(clock.now_ms()):%Y-%m-%d %H:%M} UTC"
    text = as_yaml(advice, title)
    parse_config(text, Path(request.output))  # the relay must accept it
    write_text(spark, request.output, text)
    return {stats.provider: found for stats, found in advice}


def _zone_of(stats: ProviderStats, config: Config | None) -> Zone | None:
    """The settings that were in force, if all mail of the provider was in one zone."""
    if config is None or len(stats.zones) != 1:
        return None
    return config.zones.get(stats.zones[0])
