"""The declaration of an operation: a handler with ``@operation``, whose annotations name its request and its rows.

A topic file (``views``, ``mail``, …) has the handlers next to the structs of their rows. From a declaration follow the name at the
control socket, the path and the method over HTTP, the permission that it needs, its schemas in OpenAPI, and its section of
``docs/api.md``. The structs of requests are in ``requests``, which imports nothing else: every command begins with it. Example::

    class UsageRow(Answer, frozen=True):
        tenant: str
        queued: int

    @operation("usage")
    async def usage(on: Operations, request: UsageRequest) -> AsyncIterator[UsageRow]:
        yield UsageRow(request.tenant, 7)

Adding an operation touches ``requests.py`` and its topic file, adding a field to its answer the topic file; ``docs/api.md`` is
generated. A handler is an async generator. It raises LocalError when it fails, and lets other tasks run between slices of its work.
Rows that another part of the relay makes stay plain dicts, and the decorator names their struct with ``rows``.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, NamedTuple, get_args, get_type_hints

from zonemta_py.admin.relay_port import DOWN, RunningRelay
from zonemta_py.admin.requests import ChangeRequest, Request, name_of_type
from zonemta_py.admin.tokens import Role
from zonemta_py.core.codec import Struct
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.held_mail import HeldMail
from zonemta_py.queue.upkeep.operator import Operator

SEARCHES_MAX = 2  # of the event log at the same time


class Answer(Struct, frozen=True):
    """A row of an answer. ``open_fields``: it has other fields, too."""

    open_fields: ClassVar[bool] = False


class Operations:
    """The operations on ``queue``, and on the ``relay`` that runs on it."""

    def __init__(self, queue: Queue, relay: RunningRelay = DOWN) -> None:
        self.queue = queue
        self.operator = Operator(queue)
        self.held_mail = HeldMail(queue, self.operator)
        self.relay = relay
        self.searches = asyncio.Semaphore(SEARCHES_MAX)
        self.searches_of_tenants = asyncio.Semaphore(SEARCHES_MAX - 1)  # the others are for operators


Handler = Callable[[Operations, Any], AsyncIterator[Any]]


class Watchers(NamedTuple):
    """How many HTTP clients may ask for rows without end, and how many of these places are for operators."""

    most: int
    reserved: int


class Operation(NamedTuple):
    """An operation. ``path`` over HTTP; ``permission``: the role of the token that it needs there.

    ``in_body``: its arguments hold addresses, which do not belong into a URL. ``limit_max``: the largest ``limit`` that it takes;
    None: any from 1 on. ``watchers``: of rows without end, else None.
    """

    path: str
    request: type[Request]
    rows: tuple[type[Answer], ...]
    handler: Handler
    permission: Role
    in_body: bool
    limit_max: int | None
    watchers: Watchers | None

    @property
    def name(self) -> str:
        """The name at the control socket."""
        return name_of_type(self.request)

    @property
    def changes(self) -> bool:
        """True if it changes something."""
        return self.permission is not Role.READ

    @property
    def method(self) -> str:
        """The method of its HTTP request."""
        return "POST" if self.changes or self.in_body else "GET"


def operation(
    path: str,
    *,
    permission: Role | None = None,
    rows: tuple[type[Answer], ...] = (),
    in_body: bool = False,
    limit_max: int | None = None,
    watchers: Watchers | None = None,
) -> Callable[[Handler], Operation]:
    """Declare a handler; see ``Operation``. Without ``permission`` a ChangeRequest needs OPERATE, another one READ."""

    def declare(handler: Handler) -> Operation:
        hints = get_type_hints(handler)
        request: type[Request] = hints["request"]
        (made,) = get_args(hints["return"])
        changes = issubclass(request, ChangeRequest)
        return Operation(
            path=path,
            request=request,
            rows=rows or get_args(made) or (made,),
            handler=handler,
            permission=permission or (Role.OPERATE if changes else Role.READ),
            in_body=in_body,
            limit_max=limit_max,
            watchers=watchers,
        )

    return declare
