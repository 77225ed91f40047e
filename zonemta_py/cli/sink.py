"""tmp"""
import click
@click.command()
def sink() -> None:
    """tmp."""
