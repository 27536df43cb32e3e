"""The routes. Knows the service only by its protocol, and nothing of sockets or of who may speak."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from glossd.api.answer import Answer, NdjsonShape, Shape
from glossd.api.errors import error_event, error_response, http_error, internal_error
from glossd.api.openai import StreamShape, WholeShape
from glossd.api.schemas import BanBody, ChatBody, CompletionBody, PromptBody, parse
from glossd.api.service import Service
from swarm.errors import BadRequest, GlossError, TooLarge

BODY_LIMIT = 1024 * 1024
BODY_TIMEOUT_S = 30.0

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(service: Service) -> Starlette:
    """The whole API over one service. On TCP it belongs behind `glossd.api.guard.Guard`."""
    app = Starlette(
        routes=[
            *_openai_routes(service),
            *_native_routes(service),
            *_admin_routes(service),
            *_ban_routes(service),
        ],
        exception_handlers={
            GlossError: _on_gloss_error,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: _on_crash,
        },
    )
    app.router.redirect_slashes = False
    return app


def _openai_routes(service: Service) -> list[Route]:
    def check_model(model: str) -> Response | None:
        known = service.models()
        if model in known:
            return None
        message = f"model {model[:80]!r} is not hosted here; this swarm hosts {', '.join(known)}"
        return error_response("/v1/", http_error(404, "model_not_found", message, "model"))

    def completions(schema: type[ChatBody] | type[CompletionBody]) -> Endpoint:
        chat = schema is ChatBody

        async def complete(request: Request) -> Response:
            body = parse(schema, await read_body(request))
            if (refusal := check_model(body.model)) is not None:
                return refusal
            running = await service.submit(body.task())
            shape: Shape
            if body.stream:
                shape = StreamShape(running.id, body.model, chat, body.wants_usage)
            else:
                shape = WholeShape(running.id, body.model, chat)
            return Answer(running, shape)

        return complete

    def card(model: str) -> dict[str, str | int]:
        return {"id": model, "object": "model", "created": 0, "owned_by": "glossd"}

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card(model) for model in service.models()]})

    async def model(request: Request) -> Response:
        name = request.path_params["model"]
        return check_model(name) or JSONResponse(card(name))

    return [
        Route("/v1/chat/completions", completions(ChatBody), methods=["POST"]),
        Route("/v1/completions", completions(CompletionBody), methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", model, methods=["GET"]),
    ]


def _native_routes(service: Service) -> list[Route]:
    async def prompt(request: Request) -> Response:
        body = parse(PromptBody, await read_body(request))
        return Answer(await service.submit(body.task()), NdjsonShape())

    return [Route("/api/prompt", prompt, methods=["POST"])]


def _admin_routes(service: Service) -> list[Route]:
    async def status(_: Request) -> Response:
        return JSONResponse((await service.status()).model_dump(mode="json"))

    async def peers(_: Request) -> Response:
        return JSONResponse([peer.model_dump(mode="json") for peer in await service.peers()])

    async def health(_: Request) -> Response:
        now = await service.status()
        content = {"status": "ok" if now.covered else "uncovered", "uncovered": list(now.uncovered)}
        return JSONResponse(content, 200 if now.covered else 503)

    async def metrics(_: Request) -> Response:
        return Response(service.metrics(), media_type="text/plain; version=0.0.4")

    async def pause(_: Request) -> Response:
        await service.pause()
        return JSONResponse({"state": (await service.status()).state})

    async def resume(_: Request) -> Response:
        await service.resume()
        return JSONResponse({"state": (await service.status()).state})

    async def stop(_: Request) -> Response:
        service.stop()
        return JSONResponse({"stopping": True}, 202)

    return [
        Route("/api/status", status, methods=["GET"]),
        Route("/api/peers", peers, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/api/pause", pause, methods=["POST"]),
        Route("/api/resume", resume, methods=["POST"]),
        Route("/api/stop", stop, methods=["POST"]),
    ]


def _ban_routes(service: Service) -> list[Route]:
    async def bans(_: Request) -> Response:
        return JSONResponse([ban.model_dump(mode="json") for ban in service.bans()])

    async def ban(request: Request) -> Response:
        body = parse(BanBody, await read_body(request))
        await service.ban(body.peer, body.reason)
        return await bans(request)

    async def unban(request: Request) -> Response:
        service.unban(parse(BanBody, await read_body(request)).peer)
        return await bans(request)

    return [
        Route("/api/bans", bans, methods=["GET"]),
        Route("/api/bans", ban, methods=["POST"]),
        Route("/api/unban", unban, methods=["POST"]),
    ]


async def read_body(request: Request) -> bytes:
    """The whole body, never more than BODY_LIMIT. Raises TooLarge, BadRequest, ClientDisconnect."""
    too_large = TooLarge(f"the body exceeds {BODY_LIMIT} bytes; send a shorter prompt")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > BODY_LIMIT:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_LIMIT:
                    raise too_large
    except TimeoutError:
        raise BadRequest(f"the body did not arrive within {BODY_TIMEOUT_S:g} s; send it again") from None
    return bytes(body)


def _on_gloss_error(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, error_event(error) if isinstance(error, GlossError) else internal_error())


def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return _on_crash(request, error)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path[:80]}: {error.detail}"
    headers = dict(error.headers or {})
    return error_response(request.url.path, http_error(error.status_code, code, message), headers)


def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


def _on_crash(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, internal_error())
