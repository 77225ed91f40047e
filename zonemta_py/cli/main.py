"""The command ``zonemta``."""

import click

from zonemta_py import __version__
from zonemta_py.cli.audit import audit
from zonemta_py.cli.bench import bench
from zonemta_py.cli.check import check
from zonemta_py.cli.credentials import dkim, password
from zonemta_py.cli.demo import demo
from zonemta_py.cli.pipeline.group import pipeline
from zonemta_py.cli.queue.group import queue
from zonemta_py.cli.serve import serve
from zonemta_py.cli.sink import sink
from zonemta_py.cli.submit import submit


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="zonemta")
def main() -> None:
    """An outbound SMTP relay for bulk mail.

    \b
    Start:   zonemta serve -c config/zonemta.yaml
    Submit:  zonemta submit list.csv --message letter.eml --from news@example.com
    Inspect: zonemta queue summary -c config/zonemta.yaml
    Try it:  zonemta demo

    Shell completion: eval "$(_ZONEMTA_COMPLETE=bash_source zonemta)" (or zsh_source, fish_source).
    """


for _command in (serve, check, submit, queue, audit, sink, bench, demo, dkim, password, pipeline):
    main.add_command(_command)
