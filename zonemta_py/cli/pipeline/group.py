"""The group ``zonemta pipeline`` with all its commands."""

import click

from zonemta_py.cli.pipeline.analyse import anomaly, compact, dsn, recommend, reconcile, report, suppress
from zonemta_py.cli.pipeline.demo import demo
from zonemta_py.cli.pipeline.plan import plan, segment
from zonemta_py.cli.pipeline.send import send
from zonemta_py.cli.pipeline.simulate import simulate


@click.group()
def pipeline() -> None:
    """Prepare and submit lists, and analyse their delivery, on Spark.

    Every job runs on this machine by default, and unchanged on a cluster with --master.

    \b
    Plan:    zonemta pipeline plan list.csv --message letter.eml --from news@example.com \\
                 --campaign june --output plans/june
    Send:    zonemta pipeline send plans/june --relay 127.0.0.1:2525
    Analyse: zonemta pipeline report events --plan plans/june --output reports/june
    """


for _command in (
    plan, send, report, compact, reconcile, dsn, suppress, segment, anomaly, recommend, simulate, demo,
):  # fmt: skip
    pipeline.add_command(_command)
