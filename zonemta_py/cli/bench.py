"""tmp"""

import click


@click.command()
def bench() -> None:
    """tmp."""
