"""tmp"""
import click
@click.command()
def queue() -> None:
    """tmp."""
