"""config/zonemta.yaml and docs/configuration.md say of every key what the loader does."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.config.values import PROCESSES_MAX, ProcessCount
from zonemta_py.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "config/zonemta.yaml"
DOCS = ROOT / "docs/configuration.md"

WORD = r"[a-z0-9-]+(?: \([^)|]*\))?"
CHOICES = re.compile(rf"{WORD}(?: \| {WORD})+")
RANGE = re.compile(r"(\d+)%? to (\d+)(%|/| or auto)?")
LATER = re.compile(r"([a-z-]+(?:(?:, | and )[a-z-]+)*): in a later version")
UNBOUNDED = 10**9


def compose(text: str) -> yaml.Node:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert node is not None
    return node


def specifications(kind: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(dotted key, field, type) of every key; names of zones and pools and list indexes are left out."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.metadata.get("hidden"):
            continue
        key, hint = f"{prefix}{field.name.rstrip('_')}", hints[field.name]
        inner = settings_in(hint)
        if inner is None:
            yield key, field, hint
        else:
            overrides = "overrides" in field.metadata  # its other keys are those of the section itself
            for below in specifications(inner, f"{key}."):
                if not overrides or below[1].name in inner.__annotations__:
                    yield below


def settings_in(hint: object) -> type | None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next(filter(None, map(settings_in, typing.get_args(hint))), None)


SPECIFICATIONS = {key: (field, hint) for key, field, hint in specifications(Config)}


def reference_values(node: yaml.Node, key: str = "") -> Iterator[tuple[str, yaml.Node]]:
    """(dotted key, node of its value) of the reference file."""
    if key in SPECIFICATIONS or isinstance(node, yaml.ScalarNode):
        yield key, node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from reference_values(item, key)
    else:
        for name, value in node.value:
            left_out = key in ("zones", "pools") and name.value == "default"
            yield from reference_values(value, key if left_out else f"{key}.{name.value}".lstrip("."))


EMPTY_BY_DEFAULT = {"dkim.keys", "peers", "tenants", "tenants.limits", "zones.destinations"}


def reference_comments() -> dict[str, str]:
    """By key, the comment behind its value."""
    text = REFERENCE.read_text()
    lines = text.split("\n")
    found = {}
    for key, node in reference_values(compose(text)):
        after = lines[node.end_mark.line][node.end_mark.column :]
        found[key] = after.partition("#")[2].strip()
    return found


def documented() -> dict[str, tuple[str, str]]:
    """By key, the default and the meaning in the tables of the page."""
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \| (.*?) \| (.*) ?\|$", DOCS.read_text(), re.MULTILINE)
    return {
        key: (default, meaning.replace(r"\|", "|"))
        for key, default, meaning in rows
        if key in SPECIFICATIONS
    }


COMMENTS = reference_comments()
MEANINGS = {key: meaning for key, (_, meaning) in documented().items()}


def problems(key: str, comment: str) -> Iterator[str]:
    """What ``comment`` says about the key that is not so."""
    field, hint = SPECIFICATIONS[key]
    limits = field.metadata
    named = [
        {re.sub(r" \(.*", "", word) for word in m[0].split(" | ")} for m in CHOICES.finditer(comment)
    ]
    if named != ([set(limits["choices"])] if "choices" in limits else []):
        yield f"allowed: {limits.get('choices')}, the comment names {named}"
    ranges = [(int(m[1]), int(m[2])) for m in RANGE.finditer(comment)]
    if hint is ProcessCount:
        expected = [(0, PROCESSES_MAX)]
    elif limits.get("most", UNBOUNDED) < UNBOUNDED:
        expected = [(limits["least"], limits["most"])]
    else:
        expected = []
    if ranges != expected:
        yield f"range: {expected}, the comment names {ranges}"
    later = {word for m in LATER.finditer(comment) for word in re.split(", | and ", m[1])}
    if later != set(limits.get("later", ())) or comment.count("later version") != bool(later):
        yield f"refused in this version: {limits.get('later')}, the comment names {later}"


def test_the_reference_file_has_every_key() -> None:
    """But those of items of lists and mappings that are empty by default."""
    missing = {
        "dkim.keys.domain", "dkim.keys.selector", "dkim.keys.key_file", "peers.pipelining",
        "peers.starttls", "tenants.users", "tenants.networks", "tenants.domains", "tenants.zones",
        "tenants.weight", "tenants.limits.sessions", "tenants.limits.messages", "tenants.limits.recipients",
        "tenants.limits.bytes", "tenants.limits.open_sessions", "tenants.scan", "tenants.pool", "tenants.verify",
        "zones.destinations.domains", "zones.destinations.connections",
    }  # fmt: skip
    assert set(COMMENTS) == set(SPECIFICATIONS) - missing
    assert {key.rpartition(".")[0] for key in missing} == EMPTY_BY_DEFAULT


@pytest.mark.parametrize("key", SPECIFICATIONS)
def test_a_comment_names_what_is_allowed(key: str) -> None:
    """Choices, ranges and values of later versions, in the reference file and on the page."""
    if key.rpartition(".")[0] not in EMPTY_BY_DEFAULT:
        assert list(problems(key, COMMENTS.get(key, ""))) == []
    assert list(problems(key, MEANINGS[key])) == []


def test_words_of_later_versions_are_refused() -> None:
    """The loader refuses what the comments say it refuses, and nothing else waits for a version."""
    text, page = REFERENCE.read_text(), DOCS.read_text()
    later = [
        (key, word)
        for key, (field, _) in SPECIFICATIONS.items()
        for word in field.metadata.get("later", ())
    ]
    for key, word in later:
        section, _, name = key.partition(".")
        assert section == "zones", "say here how to set it"
        with pytest.raises(ConfigError, match="not available in this version"):
            parse_config(f"zones: {{default: {{{name}: {word}}}}}", REFERENCE)
    for each in (text, page):
        assert each.count("later version") == len({key for key, _ in later})
        assert "only 0 is allowed" not in each


@pytest.mark.parametrize(
    ("key", "comment"),
    [
        ("processes.receivers", "arrives with a later version: only 0 is allowed"),
        ("processes.receivers", "0 to 32 or auto"),
        ("zones.port", "of MX hosts"),
        ("zones.connections", "0 to 10000"),
        ("queue.durability", "sync | none | maybe"),
        ("zones.tls", "off | opportunistic | required; dane: in a later version"),
        ("zones.pool", "default | other"),
    ],
)
def test_a_false_comment_is_found(key: str, comment: str) -> None:
    assert list(problems(key, comment))


def test_the_page_has_the_defaults() -> None:
    """The second column is the value in the reference file."""
    values = dict(reference_values(compose(REFERENCE.read_text())))
    wrong = []
    for key, (default, _) in documented().items():
        if default.startswith("`") and key.rpartition(".")[0] not in EMPTY_BY_DEFAULT:
            loaded = yaml.safe_load(default.strip("`"))
            if loaded != yaml.SafeLoader("").construct_document(values[key]):
                wrong.append(key)
    assert wrong == []
