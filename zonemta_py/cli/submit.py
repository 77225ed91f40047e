"""tmp"""
import click
@click.command()
def submit() -> None:
    """tmp."""
