"""A word list that keeps the project in plain technical English: code, configuration, documentation, tests."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "zonemta_py").rglob("*.py"))
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/examples").glob("*.py")),
    *sorted((ROOT / "config").glob("*.yaml")),
    ROOT / "benchmarks/README.md",
]
PLAIN_TOKENS = {tokenize.COMMENT, tokenize.STRING}
# A part of an f-string is a token of its own from Python 3.12 on; before, the whole string is one.
if hasattr(tokenize, "FSTRING_MIDDLE"):
    PLAIN_TOKENS.add(tokenize.FSTRING_MIDDLE)

WORDS = re.compile(
    r"""\b(?:
    nobody | somebody | everybody | anybody | whoever | whomever | whom | whosoever
    | octets?(?!-stream) | facts? | folders? | mend(?:s|ed|ing)? | told
    | so\ (?:many|often) | so\ (?:long|large|much)\ as
    | (?:it|that|this|what|which)\ is\ (?:nothing|wanted|(?-i:none)) | which\ is\ no | for\ ever
    | (?:came|come|comes|become)\ of\ (?:it|them) | at\ hand
    | (?<!mail\ )exchangers? | address(?:es)?\ of\ ours | counts?\ no\ more | counts\ on(?!\ )
    | (?:earlier|next|last)\ li(?:fe|ves)
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)

# (end of the file's path, word, reason)
ALLOWED = [
    ("intake/message.py", "octets", "the text of a reply, which clients have seen for long"),
    ("sink/server.py", "octets", "the former name of a count, kept for programs that read it"),
    ("pipeline/feedback/reports.py", "octets", "a column of the input of the pipeline"),
    ("pipeline/feedback/reports.py", "octets", "the same column"),
    ("pipeline/plan/request.py", "octets", "a column of the files of a plan"),
    ("cli/pipeline/analyse.py", "octets", "the same column"),
    ("docs/pipeline.md", "octets", "the same column"),
    ("docs/pipeline_schema.md", "octets", "the same column"),
    ("docs/commands.md", "octets", "the same column"),
    ("config/classify.yaml", "exchanger", "a word of the servers whose replies it classifies"),
    ("docs/decisions.md", "", "a record of decisions, in the words of their time"),
]


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Each line of prose with its number: of a module only comments and strings.

    The strings of a test are often mail of others, so only comments and docstrings count there.
    """
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    is_test = path.is_relative_to(ROOT / "tests")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if is_test and token.type != tokenize.COMMENT and not token.string.startswith('"""'):
            continue
        if token.type in PLAIN_TOKENS:
            yield from enumerate(token.string.splitlines(), token.start[0])


def _allowed(path: Path, word: str) -> bool:
    return any(
        str(path).endswith(end) and (not allowed or word.lower() == allowed)
        for end, allowed, _ in ALLOWED
    )


def found_in(path: Path) -> list[str]:
    """``file:line: word`` for each word of the list."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for number, text in _texts(path)
        for match in WORDS.finditer(text)
        if not _allowed(path, match[0])
    ]


def test_words() -> None:
    """Use *bytes*, *event*, *directory*, *repair*, a subject instead of *nobody*: see CONTRIBUTING.md."""
    found = [line for path in [*SOURCES, *TESTS, *PAGES] if path.exists() for line in found_in(path)]
    assert found == [], "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the peer told us", "told"), ("So many times as many", "so many"), ("100 octets", "octets"),
        ("application/octet-stream", None), ("factor", None), ("a manifold", None), ("it is nothing", "it is nothing"),
        ("recommended", None), ("so much as one", "so much as"), ("as long as it waits", None),
    ],
)  # fmt: skip
def test_the_list_itself(text: str, word: str | None) -> None:
    match = WORDS.search(text)
    assert (match[0].lower() if match else None) == word
