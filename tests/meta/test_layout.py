"""The layout of the package: sizes of directories, small modules, modules with one importer. The ceilings are only lowered."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "zonemta_py"
DIRECTORY_MODULES_MAX = 20
LINES_MIN = 100  # of a module with one importer in its own directory: it belongs to that
ONE_IMPORTER_MAX = 58
FILES_MAX = 303


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def _modules() -> dict[str, Path]:
    return {_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports(*, package: bool = False) -> dict[str, set[str]]:
    """The modules that each module imports: in functions and for type checkers, too. The package itself only with ``package``."""
    modules = _modules()
    found = defaultdict[str, set[str]](set)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                target = whole if whole in modules else node.module
                if target in modules and target != name and (package or target != PACKAGE.name):
                    found[name].add(target)
    return found


def _importers() -> dict[str, set[str]]:
    found = defaultdict[str, set[str]](set)
    for name, targets in imports().items():
        for target in targets:
            found[target].add(name)
    return found


def test_a_directory_has_few_modules() -> None:
    counts: dict[Path, int] = defaultdict(int)
    for path in _modules().values():
        counts[path.parent] += path.name != "__init__.py"
    assert {str(directory): n for directory, n in counts.items() if n > DIRECTORY_MODULES_MAX} == {}


def test_the_number_of_files() -> None:
    files = [path for path in _modules().values() if path.name != "__init__.py"]
    assert len(files) <= FILES_MAX


def test_no_small_module_belongs_to_its_only_importer() -> None:
    small = []
    for name, importers in _importers().items():
        (first, *others), path = sorted(importers), _modules()[name]
        lines = path.read_text(encoding="utf-8").count("\n")
        if not others and first.rpartition(".")[0] == name.rpartition(".")[0] and lines < LINES_MIN:
            small.append(f"{name}: {lines} lines, only {first} imports it")
    assert small == [], "\n" + "\n".join(small)


def test_modules_with_one_importer() -> None:
    single = [name for name, importers in _importers().items() if len(importers) == 1]
    assert len(single) <= ONE_IMPORTER_MAX, "\n" + "\n".join(sorted(single))


def test_no_circles() -> None:
    """No module imports itself through others: in functions, for type checkers, and through the package itself, too."""
    graph = dict(imports(package=True))
    while ends := {name for name, targets in graph.items() if not targets & graph.keys()}:
        graph = {name: targets for name, targets in graph.items() if name not in ends}
    while starts := graph.keys() - set().union(*graph.values()):
        graph = {name: targets for name, targets in graph.items() if name not in starts}
    assert {name: sorted(targets & graph.keys()) for name, targets in graph.items()} == {}
