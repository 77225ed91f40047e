"""Settings that the events speak for, as YAML with the evidence beside each line; never applied by itself."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from pyspark.sql import SparkSession

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config, Zone
from zonemta_py.core import clock
from zonemta_py.pipeline.rules.advice import Line, Observed, advise, as_yaml
from zonemta_py.pipeline.spark.errors import told
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.transforms.provider_stats import observed
from zonemta_py.pipeline.transforms.rates import attempts

PROVIDERS_MAX = 200  # those with most transactions

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """From which events, beside which configuration, into which file."""

    events: str
    output: Path
    config: Config | None = None


def recommend(spark: SparkSession, request: Request, step: Step) -> dict[str, list[Line]]:
    """Write the file; the lines for each provider. Raises LocalError."""
    step("looking at every provider's minutes")
    with told(request.events):
        rows = (
            read_events(spark, request.events)
            .transform(attempts(None))
            .transform(observed)
            .limit(PROVIDERS_MAX)
            .collect()
        )
    providers = [Observed(**{each.name: row[each.name] for each in fields(Observed)}) for row in rows]
    advice = [
        (seen, lines) for seen in providers if (lines := advise(seen, _zone_of(seen, request.config)))
    ]
    title = f"made by zonemta pipeline recommend from {request.events}, {clock.utc(clock.now_ms()):%Y-%m-%d %H:%M} UTC"
    text = as_yaml(advice, title)
    parse_config(text, request.output)  # the relay must understand what is recommended
    request.output.write_text(text, encoding="utf-8")
    return {seen.provider: list(lines) for seen, lines in advice}


def _zone_of(seen: Observed, config: Config | None) -> Zone | None:
    """The settings that were in force, where all its mail was in one zone."""
    if config is None or len(seen.zones) != 1:
        return None
    return config.zones.get(seen.zones[0])
