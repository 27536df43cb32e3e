"""Who may speak over TCP: programs of this machine, never a web page in its browser.

A page can send requests to 127.0.0.1, under the name of a host it controls. So the Host header must be a loopback name
with our port, and a request with an Origin, which browsers add and programs do not, is refused.
"""

import hmac

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from glossd.api.errors import error_response, http_error
from glossd.events import Error


class Guard:
    """ASGI middleware around the app. `token` None leaves the bearer token out."""

    def __init__(self, app: ASGIApp, port: int, token: str | None) -> None:
        self._app = app
        names = ("localhost", "127.0.0.1", "[::1]")
        self._hosts = {f"{name}:{port}".encode() for name in names}
        if port == 80:
            self._hosts |= {name.encode() for name in names}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await PlainTextResponse("not here", 403)(scope, receive, send)
            return
        refusal = self._refusal(scope["headers"])
        if refusal is None:
            await self._app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer"} if refusal.http_status == 401 else {}
        await error_response(scope["path"], refusal, headers)(scope, receive, send)

    def _refusal(self, headers: list[tuple[bytes, bytes]]) -> Error | None:
        """`headers` as ASGI gives them: names in lower case."""
        hosts = [value.lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return http_error(403, "forbidden_host", "the Host header must be localhost or 127.0.0.1 with the port")
        if any(name == b"origin" for name, _ in headers):
            return http_error(403, "forbidden_origin", "web pages may not speak to glossd")
        if self._token is None:
            return None
        given = [value for name, value in headers if name == b"authorization"]
        want = b"Bearer " + self._token.encode()
        if len(given) == 1 and hmac.compare_digest(given[0], want):
            return None
        return http_error(401, "unauthorized", "send the header Authorization: Bearer TOKEN with the http_token")
