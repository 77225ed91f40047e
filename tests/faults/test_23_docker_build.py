"""23. The image can be built: what the Dockerfile copies is all that the package is built from."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ["classify.yaml", "providers.yaml", "shaping.yaml"]


def _instructions() -> list[tuple[str, list[str]]]:
    """Name and words of each instruction of the Dockerfile, comments and continued lines taken away."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(name, shlex.split(rest)) for name, rest in found]


def _ignored() -> list[str]:
    return (ROOT / ".dockerignore").read_text().split()


def _is_sent(path: Path) -> bool:
    """Whether the path is in the build context: no line of .dockerignore names it or a directory above it."""
    relative = PurePosixPath(path.relative_to(ROOT))
    every = [relative, *relative.parents]
    return not any(
        each.match(pattern.removeprefix("**/")) if pattern.startswith("**/") else str(each) == pattern
        for pattern in _ignored()
        for each in every
    )


def _not_sent(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not _is_sent(Path(folder) / name)]


def _copied() -> list[tuple[str, str, str]]:
    """Stage, source and target of each COPY from the build context."""
    stage, found = "", []
    for name, words in _instructions():
        if name == "FROM":
            stage = words[-1]
        elif name == "COPY" and not words[0].startswith("--from="):
            found += [(stage, source, words[-1]) for source in words[:-1]]
    return found


def _replay(stage: str, workdir: Path) -> None:
    """Copy into ``workdir`` what the COPY lines of a stage copy into its working directory."""
    for where, source, target in _copied():
        if where != stage:
            continue
        path, to = ROOT / source, workdir / target
        if path.is_dir():  # Docker copies the content of a directory
            shutil.copytree(path, to, ignore=_not_sent, dirs_exist_ok=True)
        else:
            shutil.copy(path, to / path.name if target.endswith("/") else to)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the package was installed from the files that the image's build has, and no others."""
    workdir = tmp_path_factory.mktemp("src")
    _replay("build", workdir)
    target = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    built = subprocess.run(
        [*pip, "--target", str(target), "."], cwd=workdir, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return target


def test_every_source_is_in_the_build_context() -> None:
    assert _copied()
    for _, source, _ in _copied():
        assert (ROOT / source).exists(), source
        assert _is_sent(ROOT / source), f"{source} is in .dockerignore"


def test_every_stage_that_is_named_exists() -> None:
    stages: list[str] = []
    for name, words in _instructions():
        if name == "FROM":
            assert "/" in words[0] or ":" in words[0] or words[0] in stages
            stages.append(words[-1])
        elif name == "COPY" and words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages


def test_the_package_is_complete(installed: Path) -> None:
    """It has the shipped files, and the command reads the image's configuration with them."""
    shipped = installed / "zonemta_py" / "config" / "shipped"
    assert sorted(path.name for path in shipped.iterdir()) == SHIPPED
    for module in (ROOT / "zonemta_py").rglob("*"):
        if module.is_file() and _is_sent(module):
            assert (installed / module.relative_to(ROOT)).exists(), module
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import zonemta_py, zonemta_py.cli.main as m\n"
        f"assert zonemta_py.__file__.startswith({str(installed)!r})\n"
        f"sys.argv = ['zonemta', 'config', 'show', '--config', {str(ROOT / 'config/docker.yaml')!r}]\n"
        "m.main()\n"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=installed, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "0.0.0.0:2525" in run.stdout
