"""docs/api.md, made from the declarations of the operations: ``python -m tests.admin.api_page`` writes it."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zonemta_py.admin.api import PREFIX, open_api
from zonemta_py.admin.operation import Operation
from zonemta_py.admin.registry import OPERATIONS

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HEAD = """\
# Operations: their arguments and the fields of their answers

Generated from the declarations in `zonemta_py/admin`. [http.md](http.md) says how to ask, which tokens there are, and what the statuses mean;
`GET /api/openapi.json` has the same for programs. At the control socket an operation has the name of its heading without `/` and `-`, but `shapingend`
for `shaping/clear`. Times that end in `_ms` are unix milliseconds. A field with a `?` is left out where it has no value.
"""


def page(operations: Mapping[str, Operation] = OPERATIONS) -> str:
    """The whole page."""
    schemas = open_api("", operations)["components"]["schemas"]
    sections = [_section(each, schemas) for each in operations.values()]
    used = {
        name
        for each in operations.values()
        for row in each.rows
        for name in _used(row.__name__, schemas)
    }
    own = {row.__name__ for each in operations.values() for row in each.rows}
    parts = [_struct(name, schemas[name]) for name in schemas if name in used - own]
    return "\n".join([HEAD, *sections, "# Parts of rows\n", *parts])


def _section(operation: Operation, schemas: dict[str, Any]) -> str:
    request = operation.request
    arguments = _fields(schemas[request.__name__])
    lines = [
        f"## {operation.path}",
        "",
        f"`{operation.method} {PREFIX}{operation.path}`, role {operation.permission}.",
        _text(request.__doc__),
        "",
        f"Arguments: {arguments or 'none'}.",
        "",
    ]
    rows = [_struct(row.__name__, schemas[row.__name__]) for row in operation.rows]
    return "\n".join([*lines, *rows])


def _struct(name: str, schema: dict[str, Any]) -> str:
    return f"**{name}**: {_fields(schema)}.\n\n{_text(schema['description'])}\n"


def _text(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "").replace("``", "`")


def _fields(schema: dict[str, Any]) -> str:
    """The names and types of the fields."""
    required = schema.get("required", ())
    found = []
    for name, kind in schema.get("properties", {}).items():
        optional = "" if name in required or "default" in kind else "?"
        default = f" = {json.dumps(kind['default'])}" if kind.get("default") not in (None, "") else ""
        found.append(f"`{name}`{optional} {_kind(kind)}{default}")
    return ", ".join(found)


def _kind(schema: dict[str, Any]) -> str:
    """A type in words."""
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_kind(schema.get('items') or {})}"
    if kind == "object" and "additionalProperties" in schema:
        return f"{_kind(schema['additionalProperties'])} by name"
    return {"integer": "int", "boolean": "bool"}.get(str(kind), str(kind))


def _used(name: str, schemas: dict[str, Any]) -> set[str]:
    """``name``, and what its fields refer to."""
    found = {name}
    for other in schemas:
        if f"/{other}'" in str(schemas[name]) and other not in found:
            found |= _used(other, schemas)
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
