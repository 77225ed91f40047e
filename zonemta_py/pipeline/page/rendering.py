"""The page as one HTML file that loads nothing and runs no script. Jinja2 escapes every value."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from zonemta_py.core.text import on_page
from zonemta_py.pipeline.page import formats
from zonemta_py.pipeline.page.content import PageContent


def make_environment() -> Environment:
    """The templates, with what they use."""
    environment = Environment(
        loader=PackageLoader("zonemta_py.pipeline.page"),
        autoescape=True,
        finalize=on_page,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = formats.number
    return environment


def render(content: PageContent) -> str:
    """The complete file."""
    return make_environment().get_template("report.html.j2").render(page=content)
