"""Rules of the project: layers, adapters of libraries, complete documentation."""

import dataclasses
import re
import subprocess
import sys
import typing
from pathlib import Path

import click
import pytest

from tests.cli.commands_page import commands
from zonemta_py.config.schema import Config
from zonemta_py.core.codec import fields_of
from zonemta_py.events.schema import EVENTS

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "zonemta_py").rglob("*.py"))


def test_layers_and_adapters() -> None:
    """Imports point down, and only the adapter of a third-party package imports it."""
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [str(lint), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def _keys(kind: type, prefix: str = "") -> list[str]:
    found = []
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.metadata.get("hidden"):
            continue
        name = f"{prefix}{field.name.rstrip('_')}"
        inner = _inner(hints[field.name])
        keys = _keys(inner, f"{name}.") if inner else [name]
        if inner and "overrides" in field.metadata:  # the others are those of the section itself
            keys = [key for key in keys if key.rpartition(".")[2] in inner.__annotations__]
        found += keys
    return found


def _inner(hint: object) -> type | None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    for argument in typing.get_args(hint):
        found = _inner(argument)
        if found:
            return found
    return None


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    missing = [key for key in _keys(Config) if f"`{key}`" not in text]
    assert missing == []


def test_every_event_and_field_is_documented() -> None:
    text = (ROOT / "docs/events.md").read_text()
    missing = []
    for event in EVENTS:
        if f"## {event.name}" not in text:
            missing.append(event.name)
        missing += [
            f"{event.name}.{field.encode_name}"
            for field in fields_of(event)
            if f"`{field.encode_name}`" not in text
        ]
    assert missing == []


def _options(path: str, command: click.Command) -> list[tuple[str, str]]:
    names = [
        name
        for p in command.params
        if isinstance(p, click.Option) and not p.hidden
        for name in p.opts
        if name.startswith("--")
    ]
    return [(path, name) for name in names]


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs/commands.md").read_text()
    sections = {part.split("\n", 1)[0].strip(): part for part in text.split("\n## ")}
    missing = []
    for path, option in (
        pair
        for name, command in commands()
        if not isinstance(command, click.Group)
        for pair in _options(name, command)
    ):
        if f"`{option}" not in sections.get(path, ""):
            missing.append(f"{path} {option}")
    assert missing == []


def _decisions() -> dict[int, str]:
    """The number of each decision that is on a page of a topic, with its status."""
    found = re.findall(
        r"^## (\d+)\. .+\n\nStatus: (.+)\.$",
        "".join(page.read_text() for page in sorted((ROOT / "docs/decisions").glob("*.md"))),
        re.MULTILINE,
    )
    assert len(found) == len(dict(found)), "a number twice"
    return {int(number): status for number, status in found}


def test_decisions_that_are_named_exist() -> None:
    """ "decision N" in a docstring names a row of docs/decisions.md."""
    listed = set(re.findall(r"^\| (\d+) \|", (ROOT / "docs/decisions.md").read_text(), re.MULTILINE))
    named = {n for path in SOURCES for n in re.findall(r"decision (\d+)", path.read_text())}
    assert named
    assert sorted(named - listed, key=int) == []


def test_the_index_of_decisions_has_each_with_its_status() -> None:
    """In a row whose link leads to the page of its topic. One that has moved into others has no link."""
    index = (ROOT / "docs/decisions.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+) \| (\w*) ?\| (.+) \|$", index, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    entries = _decisions()
    for number, title, topic, status in rows:
        if status.startswith("moved into "):
            assert int(number) not in entries
            continue
        assert re.fullmatch(
            r"accepted|withdrawn|superseded (in part )?by \d+((, \d+)* and \d+)?", status
        ), number
        assert entries.pop(int(number)).startswith(status), number
        assert f"](decisions/{topic}.md#{number}-" in title
        page = (ROOT / f"docs/decisions/{topic}.md").read_text()
        assert re.search(rf"^## {number}\. ", page, re.MULTILINE), number
    assert entries == {}


def test_only_the_clock_asks_for_the_time() -> None:
    """Benchmarks measure time themselves."""
    calls = re.compile(r"\btime\.(time|monotonic|sleep|time_ns|perf_counter)\(|datetime\.now\(")
    found = [
        str(p)
        for p in SOURCES
        if p.name != "clock.py" and "bench" not in p.parts and calls.search(p.read_text())
    ]
    assert found == []


def test_readme_names_what_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_links_in_the_docs_are_valid() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        broken += [f"{page.name}: {target}" for target in targets if not (page.parent / target).exists()]
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Those that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings}


def test_links_to_sections_are_valid() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target, section in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
            to = page.parent / target if target else page
            if section not in _anchors(to):
                broken.append(f"{page.name}: {target}#{section}")
    assert broken == []


@pytest.mark.parametrize("name", [".rdd", "sparkContext", "._jvm", "._jdf", "._jsparkSession"])
def test_the_pipeline_works_with_spark_connect(name: str) -> None:
    """Spark Connect does not have these attributes; ``spark.files`` asks whether they are there."""
    found = [
        path
        for path in SOURCES
        if "pipeline" in path.parts and path.name != "files.py" and name in path.read_text()
    ]
    assert found == []


def test_commands_load_no_web_library() -> None:
    """aiohttp takes a quarter of a second to load."""
    code = "import sys, zonemta_py.cli.queue.group, zonemta_py.cli.serve; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
