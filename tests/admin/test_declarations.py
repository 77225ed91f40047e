"""The declarations of operations: what is derived from them, and that nothing else is needed."""

from collections.abc import AsyncIterator
from types import ModuleType

import pytest

from tests.admin.api_page import PAGE, page
from zonemta_py.admin.api import PREFIX, open_api
from zonemta_py.admin.operation import Answer, Operation, Operations, operation
from zonemta_py.admin.registry import OPERATIONS, table
from zonemta_py.admin.requests import ChangeRequest
from zonemta_py.admin.tokens import Role
from zonemta_py.core.codec import fields_of


class GreetRequest(ChangeRequest, frozen=True):
    """Greet someone."""

    name: str


class GreetRow(Answer, frozen=True):
    """A greeting."""

    text: str


@operation("greet/now")
async def greet(on: Operations, request: GreetRequest) -> AsyncIterator[GreetRow]:
    """Yield one row."""
    yield GreetRow(f"hello {request.name}")


@pytest.mark.parametrize("declared", OPERATIONS.values(), ids=str)
def test_an_operation_has_structs_for_its_rows(declared: Operation) -> None:
    """Each with fields and a text for the page."""
    assert declared.rows
    for row in declared.rows:
        assert issubclass(row, Answer)
        assert fields_of(row), row
        assert row.__doc__ != Answer.__doc__, row
    assert declared.request.__doc__


def test_the_page_is_generated() -> None:
    """``python -m tests.admin.api_page`` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_answer_has_a_schema() -> None:
    document = open_api("1")
    for declared in OPERATIONS.values():
        described = document["paths"][PREFIX + declared.path][declared.method.lower()]
        row = described["responses"]["200"]["content"]["application/x-ndjson"]["schema"]
        names = [each["$ref"].rpartition("/")[2] for each in row.get("anyOf", [row])]
        assert names == [each.__name__ for each in declared.rows]
        assert all(document["components"]["schemas"][name]["properties"] for name in names)


def test_an_operation_is_one_declaration() -> None:
    """A request in ``requests``, a row and a handler in a topic file: path, method, permission, schemas and page follow."""
    topic = ModuleType("topic")
    vars(topic)["greet"] = greet
    found = table([topic])
    assert list(found) == ["greet"]
    assert (greet.method, greet.permission, greet.changes) == ("POST", Role.OPERATE, True)
    document = open_api("1", found)
    assert list(document["paths"]) == ["/api/v1/greet/now"]
    assert document["components"]["schemas"]["GreetRow"]["properties"] == {"text": {"type": "string"}}
    assert "`POST /api/v1/greet/now`, role operate." in page(found)
    assert "**GreetRow**: `text` string." in page(found)
