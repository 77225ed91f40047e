"""SASL exchanges, played by hand: challenges, responses, result."""

from base64 import b64encode

import pytest

from zonemta_py.smtp.auth import MECHANISMS, Credentials


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def played(mechanism: str, initial: str, *responses: str) -> tuple[list[str], Credentials | None]:
    """The challenges of the server and the result."""
    exchange = MECHANISMS[mechanism](initial)
    challenges: list[str] = []
    sent = iter([None, *responses])
    try:
        while True:
            challenges.append(exchange.send(next(sent)))
    except StopIteration as done:
        return challenges, done.value


def test_plain() -> None:
    """With an initial response, or after an empty challenge. Another authorisation identity gets no password."""
    assert played("PLAIN", encoded("\0me\0secret")) == ([], ("me", "secret"))
    assert played("PLAIN", "", encoded("other\0zoë\0geheim")) == ([""], ("zoë", ""))
    assert played("PLAIN", "", encoded("zoë\0zoë\0geheim")) == ([""], ("zoë", "geheim"))


def test_login() -> None:
    both = [encoded("Username:"), encoded("Password:")]
    assert played("LOGIN", "", encoded("me"), encoded("secret")) == (both, ("me", "secret"))
    assert played("LOGIN", encoded("me"), encoded("secret")) == (both[1:], ("me", "secret"))


@pytest.mark.parametrize(
    ("mechanism", "initial", "responses"),
    [
        ("PLAIN", "", ["*"]),
        ("PLAIN", "", ["not base64!"]),
        ("PLAIN", "=", []),
        ("PLAIN", encoded("me\0secret"), []),
        ("LOGIN", "", ["*"]),
        ("LOGIN", encoded("me"), ["*"]),
        ("LOGIN", encoded("me"), ["é"]),
    ],
)
def test_no_credentials(mechanism: str, initial: str, responses: list[str]) -> None:
    """Cancelled, malformed, or without its fields."""
    assert played(mechanism, initial, *responses)[1] is None


def test_an_empty_initial_response_is_a_response() -> None:
    """RFC 4954 section 4: ``=`` stands for zero bytes."""
    assert played("LOGIN", "=", encoded("secret"))[1] == ("", "secret")
