"""Docstrings: none begins with a question word or says nothing, and modules with state begin with their theory of operation."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "zonemta_py"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in SOURCES}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

QUESTION = re.compile(r"(?:What|Which|Whether|Where|From which|At which)\b")
LABEL = re.compile(r"See ``[^`]+``[^.]*\.?\Z|Go on\.\Z")
THEORY_LINES = 8
MODULE_LINES = 200  # a module with state and more lines begins with its theory: states, invariants, callers, an example


def _docstrings() -> Iterator[tuple[str, str]]:
    """``file:line`` and text of each docstring."""
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                yield f"{name}:{getattr(node, 'lineno', 1)}", text


def _found(kind: re.Pattern[str]) -> list[str]:
    return [f"{where}: {text[:60]!r}" for where, text in _docstrings() if kind.match(text)]


@pytest.mark.parametrize(("name", "kind"), [("question", QUESTION), ("label", LABEL)])
def test_docstrings_begin_with_a_noun_or_a_verb(name: str, kind: re.Pattern[str]) -> None:
    """*True if X*, *The X that …*, *Do X* instead of *Whether X* and *What …*; a pointer elsewhere says nothing."""
    found = _found(kind)
    assert found == [], "\n" + "\n".join(found)


def _has_state(tree: ast.Module) -> bool:
    """True if a class changes its attributes after its construction."""
    methods = [
        method
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for method in each.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and method.name not in ("__init__", "__post_init__", "__new__")
    ]
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for method in methods
        for node in ast.walk(method)
    )


def test_modules_with_state_begin_with_their_theory() -> None:
    without = [
        name
        for name, tree in TREES.items()
        if (PACKAGE / name).read_text("utf-8").count("\n") > MODULE_LINES
        and _has_state(tree)
        and len((ast.get_docstring(tree) or "").splitlines()) < THEORY_LINES
    ]
    assert without == [], f"a theory of at least {THEORY_LINES} lines is needed: {without}"


def test_methods_of_interfaces_have_docstrings() -> None:
    """Elsewhere a docstring is needed only where it says more than the name; ruff requires those of modules and classes."""
    without = [
        f"{name}:{method.lineno}: {each.name}.{method.name}"
        for name, tree in TREES.items()
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        and not each.name.startswith("_")
        and any(ast.unparse(base).partition("[")[0] == "Protocol" for base in each.bases)
        for method in each.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and not method.name.startswith("_")
        and ast.get_docstring(method) is None
    ]
    assert without == [], "\n" + "\n".join(without)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Whether it is open.", QUESTION), ("Whatever the size.", None), ("From which it comes.", QUESTION),
        ("See ``Store``.", LABEL), ("See ``Store``; there is nothing to release.", LABEL), ("Go on.", LABEL),
        ("The value, see ``Store``.", None), ("True if it is open.", None), ("When it was sent.", None),
    ],
)  # fmt: skip
def test_the_patterns_themselves(text: str, kind: re.Pattern[str] | None) -> None:
    assert [each for each in (QUESTION, LABEL) if each.match(text)] == ([kind] if kind else [])
