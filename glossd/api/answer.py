"""The response that follows one running request, in whatever shape a route gives it.

The status line waits for the first bytes to send, so that a request that fails before has an honest status. A client
that goes away cancels its request at once, also while nothing has been sent yet.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from glossd.api.errors import as_error, error_event, error_response, http_error, internal_error
from glossd.api.service import Running
from glossd.events import Done, Error, HaltedEvent, RequestEvent
from glossd.observe import Log
from swarm.errors import GlossError

log = Log("glossd.api")


class Shape(Protocol):
    media_type: str

    def render(self, event: RequestEvent) -> bytes:
        """Bytes to send for `event`; none when it says nothing in this shape. The last event always says something
        once bytes were sent."""
        ...


class NdjsonShape:
    """The native stream: one event a line."""

    media_type = "application/x-ndjson"

    def render(self, event: RequestEvent) -> bytes:
        return event.model_dump_json().encode() + b"\n"


class Answer(Response):
    """Call it with the request's body read to its end: what comes after can only be the client leaving."""

    def __init__(self, running: Running, shape: Shape) -> None:
        self.status_code = 200
        self.media_type = shape.media_type
        self.background = None
        self.init_headers({"Cache-Control": "no-store"})
        self._running = running
        self._shape = shape
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                leaving = group.create_task(_disconnected(receive))
                talking = group.create_task(self._talk(scope, receive, send))
                leaving.add_done_callback(lambda _: talking.cancel())
                talking.add_done_callback(lambda _: leaving.cancel())
        except asyncio.CancelledError:
            # Only the server cancels us, when its drain time is over. The client learns why its answer ends.
            await self._say(http_error(503, "stopping", "the daemon is stopping"), scope, receive, send)
        finally:
            self._running.cancel()

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events()) as events:
            async for event in events:
                await self._say(event, scope, receive, send)

    async def _say(self, event: RequestEvent, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started and isinstance(event, Error | HaltedEvent):
            await error_response(scope["path"], as_error(event))(scope, receive, send)
            return
        data = self._shape.render(event)
        if data and not self._started:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._started = True
        if data:
            last = isinstance(event, Done | Error | HaltedEvent)
            await send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _events(self) -> AsyncGenerator[RequestEvent, None]:
        """The events up to the terminal one. There always is one: a crash becomes an error event."""
        try:
            async for event in self._running.events():
                yield event
                if isinstance(event, Done | Error | HaltedEvent):
                    return
            log.error("events ended without a last one", request=self._running.id)
        except GlossError as error:
            yield error_event(error)
            return
        except Exception:
            log.exception("request crashed", request=self._running.id)
        yield internal_error()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
