"""The page as one HTML file that loads nothing and runs no script. Jinja2 escapes every value."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from zonemta_py.pipeline.page import formats
from zonemta_py.pipeline.page.content import PageContent


def render(content: PageContent) -> str:
    """The complete file."""
    environment = Environment(
        loader=PackageLoader("zonemta_py.pipeline.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = formats.number
    return environment.get_template("report.html.j2").render(page=content)
