"""Functions and secrets that a configuration names."""

from pathlib import Path

import pytest

from zonemta_py.config.hooks import named_function, plain_function, read_token
from zonemta_py.core.errors import ConfigError


def plain() -> None:
    pass


async def coroutine() -> None:
    pass


NOT_CALLABLE = 1


def test_functions() -> None:
    assert named_function(f"{__name__}.plain") is plain
    assert named_function(plain) is plain
    assert named_function(f"{__name__}.coroutine") is coroutine
    assert plain_function(f"{__name__}.plain") is plain


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("plain", "expected package.module.function"),
        ("nowhere.at_all", "no function 'nowhere.at_all': No module named 'nowhere'; Python searches"),
        (f"{__name__}.missing", "has no attribute 'missing'"),
        (f"{__name__}.NOT_CALLABLE", "is not a function"),
    ],
)
def test_names_of_no_function(name: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        named_function(name)
    assert problem in str(caught.value)


def test_functions_that_the_loop_cannot_call() -> None:
    with pytest.raises(ConfigError, match="is a coroutine function"):
        plain_function(f"{__name__}.coroutine")
    with pytest.raises(ConfigError, match="is a class"):
        plain_function("pathlib.Path")


def test_tokens(directory: Path) -> None:
    """The first line of a file, without white space."""
    (directory / "token").write_text(" secret \na comment\n")
    assert read_token(directory / "token") == "secret"
    assert read_token(None) == ""
    (directory / "empty").write_text("\nsecret\n")
    for name, problem in (("empty", "the first line is empty"), ("missing", "No such file")):
        with pytest.raises(ConfigError, match=problem):
            read_token(directory / name)
