"""What a plan is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zonemta_py.config.schema import Config
from zonemta_py.pipeline.rules.selection import Selection
from zonemta_py.pipeline.spark.plan_manifest import PLAN

BY_TASKS_BYTES_MIN = 1 << 20  # of a list; tables of a shorter one are written by Spark: it has few slots


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """``source``: the list. ``output``: a directory without a plan, or with one that ``overwrite`` replaces.

    ``suppress``: sources of entries (``spark.suppression``); ``scopes``: of those that apply. ``once_per``: PLAN, or CAMPAIGN: then no
    other plan of that campaign sends to the same recipient either. ``case_sensitive``: addresses that differ in case only are planned,
    each. ``recipients_per_message`` applies to a message without merge fields. ``reader_options``: of Spark's reader, for the list;
    ``suppress_options`` for the sources of entries. ``tables``: a schema of the session's catalogs that gets the rows of the plan, too.
    """

    source: str
    output: str
    campaign: str
    sender: str
    message: bytes
    config: Config
    suppress: Sequence[str] = ()
    scopes: Sequence[str] = ()
    selection: Selection | None = None
    email_column: str | None = None
    send_at_column: str | None = None
    recipients_per_message: int = 50
    slots: int = 16
    case_sensitive: bool = False
    once_per: str = PLAN
    overwrite: bool = False
    tables: str | None = None
    reader_options: Mapping[str, str] = field(default_factory=dict)
    suppress_options: Mapping[str, str] = field(default_factory=dict)
