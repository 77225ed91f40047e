"""Sizes and names: files, functions, parameters, classes. Every failure lists what is too large or used twice."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "zonemta_py"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 50
PARAMETERS_MAX = 7  # without self
POSITIONAL_MAX = 5  # arguments of a struct; more of them are given by name

Function = ast.FunctionDef | ast.AsyncFunctionDef

# function: why it takes more parameters; commands of click take one for each option and are not counted
MANY_PARAMETERS: dict[str, str] = {}
# class: why several have this name
SEVERAL_CLASSES: dict[str, str] = {
    "Abort": "what a channel program returns, and a frame of the receivers' protocol",
    "Configure": "a frame of the receivers' protocol and one of the senders'",
    "Queue": "the class of the library, and the queue that it opens",
}


def _functions() -> Iterator[tuple[Path, Function]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                yield path, node


def _is_command(function: Function) -> bool:
    """Whether click calls it: its length is mostly help text, its parameters are options."""
    return any(
        "command" in ast.unparse(each) or "group" in ast.unparse(each)
        for each in function.decorator_list
    )


def _where(path: Path, node: ast.stmt | ast.expr) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def _code_lines(function: Function) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_a_concept(path: Path) -> None:
    """It has a docstring that says what it is for, and it is not too long."""
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "no module docstring"
    assert text.count("\n") <= FILE_LINES_MAX


def test_functions_are_short() -> None:
    long = [
        f"{_where(path, node)}: {node.name}: {_code_lines(node)} lines"
        for path, node in _functions()
        if _code_lines(node) > FUNCTION_LINES_MAX
    ]
    assert long == [], "\n" + "\n".join(long)


def test_functions_take_few_parameters() -> None:
    """More belong into a frozen dataclass."""
    many = []
    for path, node in _functions():
        arguments = node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > PARAMETERS_MAX and node.name not in MANY_PARAMETERS and not _is_command(node):
            many.append(f"{_where(path, node)}: {node.name}: {count} parameters")
    assert many == [], "\n" + "\n".join(many)


def test_no_class_name_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(_where(path, node))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    problems = [
        f"{name}: {', '.join(found)}" for name, found in twice.items() if name not in SEVERAL_CLASSES
    ]
    assert problems == [], "\n" + "\n".join(problems)
    assert set(SEVERAL_CLASSES) <= set(twice), "an exception that is not needed any more"


def _last_name(node: ast.expr) -> str:
    """``Struct`` of ``codec.Struct``, ``dataclass`` of ``dataclass(frozen=True)``, ``Sequence`` of ``Sequence[T]``."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return (
        node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    )


def _struct_names(trees: Iterable[ast.Module]) -> set[str]:
    """The classes that are NamedTuple, Struct or dataclass, or extend one."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = {"NamedTuple", "Struct"}
    names |= {node.name for node in classes if "dataclass" in map(_last_name, node.decorator_list)}
    while (
        more := {node.name for node in classes if names.intersection(map(_last_name, node.bases))}
        - names
    ):
        names |= more
    return names


def test_structs_with_many_fields_are_made_by_name() -> None:
    """Two fields of one type that change places are no error of types."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    structs = _struct_names(trees.values())
    problems = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) > POSITIONAL_MAX:
                name = _last_name(node.func)
                if name in structs:
                    problems.append(f"{_where(path, node)}: {name}: {len(node.args)} by position")
    assert problems == [], "\n" + "\n".join(problems)
