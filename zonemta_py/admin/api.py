"""The operations over HTTP: ``/api/v1/PATH``, and what they are in OpenAPI 3.1.

What reads is a GET with its arguments in the query, what changes (and ``classify``) a POST with a JSON object. The answer is
``{"rows": [...]}``, or the rows as JSON lines for ``Accept: application/x-ndjson``. A token of a tenant is for the mail
of that tenant: what belongs to others does not exist for it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, get_origin

from aiohttp import web

from zonemta_py.admin.connections import Shares, owner_of
from zonemta_py.admin.http_server import HttpRoute, problem
from zonemta_py.admin.operation import Operation, Operations
from zonemta_py.admin.registry import OPERATIONS, execute, restrict
from zonemta_py.admin.requests import ListRequest, Request
from zonemta_py.admin.tokens import Role, Token
from zonemta_py.core.codec import (
    fields_of,
    from_json,
    from_plain,
    from_query,
    replace,
    schemas_of,
    to_json,
)
from zonemta_py.core.errors import LocalError, NotFound

PREFIX = "/api/v1/"
SCHEMA_PATH = "/api/openapi.json"
REFERENCE = "#/components/schemas/{name}"
ROWS_MAX = 10_000  # in one JSON document
LIST_LIMIT = 1000  # of `list` without a limit
BODY_MAX = 65_536
BODY_S = 30.0
LOOK_S = 1.0  # between two looks whether a client is still there
LINES = "application/x-ndjson"


class Api:
    """Serves ``operations``."""

    def __init__(self, operations: Operations, version: str) -> None:
        self._operations = operations
        self._schema = to_json(open_api(version))
        # The relay has places for a few more watchers, on the control socket.
        self._watchers = {
            each.name: Shares(*each.watchers)
            for each in OPERATIONS.values()
            if each.watchers is not None
        }

    def routes(self) -> list[HttpRoute]:
        """A route for each operation, and the schema."""
        routes = [
            HttpRoute(each.method, PREFIX + each.path, self._handler(each), each.permission)
            for each in OPERATIONS.values()
        ]
        return [*routes, HttpRoute("GET", SCHEMA_PATH, self._open_api, Role.READ, is_local=True)]

    async def _open_api(self, request: web.Request, token: Token | None) -> web.Response:
        return web.Response(body=self._schema, content_type="application/json")

    def _handler(self, operation: Operation) -> Any:
        async def handle(request: web.Request, token: Token | None) -> web.StreamResponse:
            assert token is not None
            try:
                asked = await _read(request, operation)
                asked = restrict(self._operations, asked, token.tenant)
                as_lines = LINES in request.headers.get("Accept", "")
                if operation.watchers is not None and not as_lines:
                    return problem(406, f"its rows have no end: ask with Accept: {LINES}")
                if operation.name in self._watchers:
                    return await self._watch(request, operation.name, asked, token)
                rows = execute(self._operations, asked)
                return await (_stream(request, rows, at_once=False) if as_lines else _document(rows))
            except NotFound as exc:
                return problem(404, str(exc))
            except LocalError as exc:
                return problem(409, str(exc))
            except ValueError as exc:
                return problem(400, f"{operation.name}: {exc}")
            except PermissionError as exc:
                return problem(403, str(exc))

        return handle

    async def _watch(
        self, request: web.Request, name: str, asked: Request, token: Token
    ) -> web.StreamResponse:
        """Rows without end, unless their owner has its share of the places."""
        shares, owner = self._watchers[name], owner_of(token, None)
        if not shares.take(owner):
            return problem(429, f"too many clients of the {owner} have a {name} already")
        try:
            return await _stream(request, execute(self._operations, asked), at_once=True)
        finally:
            shares.give_back(owner)


async def _read(request: web.Request, operation: Operation) -> Request:
    """The arguments of an operation. Raises ValueError."""
    if operation.method == "GET":
        given: dict[str, Any] = dict(request.query)
        for name, values in ((name, request.query.getall(name)) for name in given):
            if name in _lists(operation):
                given[name] = values
            elif len(values) > 1:
                raise ValueError(f"{name} is given twice")
        asked = from_query(given, operation.request)
    else:
        body = await _body(request)
        if not body:
            raise ValueError("expected a JSON object, {} without arguments")
        asked = from_plain(from_json(body), operation.request)
    if isinstance(asked, ListRequest) and asked.limit is None:
        asked = replace(asked, limit=LIST_LIMIT)
    return asked


async def _body(request: web.Request) -> bytes:
    """The whole body. Raises ValueError."""
    found = b""
    try:
        async with asyncio.timeout(BODY_S):
            while block := await request.content.readany():
                found += block
                if len(found) > BODY_MAX:
                    raise ValueError(f"more than {BODY_MAX} bytes")
    except TimeoutError as exc:
        raise ValueError(f"the body did not come within {BODY_S:.0f} s") from exc
    return found


def _lists(operation: Operation) -> set[str]:
    """The arguments that may be given several times."""
    return {each.name for each in fields_of(operation.request) if get_origin(each.type) in (tuple, list)}


async def _document(rows: AsyncIterator[Any]) -> web.Response:
    found: list[Any] = []
    async for row in rows:
        found.append(row)
        if len(found) > ROWS_MAX:
            return problem(413, f"more than {ROWS_MAX} rows: ask for fewer, or with Accept: {LINES}")
    return web.Response(body=to_json({"rows": found}), content_type="application/json")


async def _stream(
    request: web.Request, rows: AsyncIterator[Any], *, at_once: bool
) -> web.StreamResponse:
    """The rows as JSON lines; the last one has ``error`` if the operation fails after others.

    ``at_once``: the head of the response does not wait for the first row.
    """
    response = await _begin(request) if at_once else None
    try:
        async for row in _until_gone(request, rows):
            if response is None:
                response = await _begin(request)
            await response.write(to_json(row) + b"\n")
    except LocalError as exc:
        if response is None:
            raise
        await response.write(to_json({"error": str(exc)}) + b"\n")
    response = response or await _begin(request)
    await response.write_eof()
    return response


async def _until_gone(request: web.Request, rows: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """``rows`` as long as the client is there: one that left is not found by writing when there is no row."""
    following: asyncio.Future[Any] | None = None
    try:
        while True:
            following = asyncio.ensure_future(_next(rows))
            while not (await asyncio.wait([following], timeout=LOOK_S))[0]:
                if request.transport is None or request.transport.is_closing():
                    return
            row = following.result()
            if row is None:
                return
            yield row
    finally:
        if following is not None and not following.done():
            following.cancel()
            await asyncio.wait([following])


async def _next(rows: AsyncIterator[Any]) -> Any:
    return await anext(rows, None)


async def _begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": LINES})
    await response.prepare(request)
    return response


def open_api(version: str, operations: Mapping[str, Operation] = OPERATIONS) -> dict[str, Any]:
    """The document that describes ``operations``."""
    requests = [operation.request for operation in operations.values()]
    rows = dict.fromkeys(row for operation in operations.values() for row in operation.rows)
    components = schemas_of([*requests, *rows], REFERENCE)
    error = {
        "description": 'What is wrong, as {"error": text}',
        "content": {"application/json": {"schema": _ERROR}},
    }
    paths = {}
    for operation in operations.values():
        schema = components[operation.request.__name__]
        described: dict[str, Any] = {
            "operationId": operation.name,
            "summary": (operation.request.__doc__ or "").partition("\n")[0],
            "description": f"Needs a token with the role {operation.permission}.",
            "responses": {
                "200": {"description": "The rows", "content": _contents(operation)},
                **{str(status): error for status in (400, 401, 403, 404, 406, 409, 413, 429, 503)},
            },
        }
        if operation.method == "POST":
            content = {"application/json": {"schema": _reference(operation.request)}}
            described["requestBody"] = {"content": content, "required": True}
        else:
            described["parameters"] = [
                {
                    "name": name,
                    "in": "query",
                    "required": name in schema.get("required", ()),
                    "schema": kind,
                }
                for name, kind in schema.get("properties", {}).items()
            ]
        paths[PREFIX + operation.path] = {operation.method.lower(): described}
    return {
        "openapi": "3.1.0",
        "info": {"title": "zonemta", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _contents(operation: Operation) -> dict[str, Any]:
    """The schemas of the answer, by media type."""
    references = [_reference(each) for each in operation.rows]
    row = {"anyOf": references} if len(references) > 1 else references[0]
    found: dict[str, Any] = {LINES: {"schema": row}}
    if operation.watchers is None:
        rows = {"type": "array", "items": row}
        document = {"type": "object", "properties": {"rows": rows}, "required": ["rows"]}
        found["application/json"] = {"schema": document}
    return found


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": REFERENCE.format(name=kind.__name__)}


_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
