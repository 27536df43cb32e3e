"""Errors as the API tells them: an error event on the native routes, OpenAI's shape below /v1."""

from starlette.responses import JSONResponse, Response

from glossd.events import Error, HaltedEvent
from swarm.errors import BadRequest, CoverageLost, GlossError, Halted, Overloaded

RETRY_AFTER_S = 2


def error_event(error: GlossError) -> Error:
    return Error(
        code=error.code,
        message=str(error),
        exit_code=error.exit_code,
        http_status=error.http_status,
        field=error.field if isinstance(error, BadRequest) else None,
        parts=error.parts if isinstance(error, CoverageLost) else (),
    )


def internal_error() -> Error:
    """What a client learns of a defect; the log has the rest."""
    return error_event(GlossError("glossd failed inside; its log says more"))


def as_error(event: Error | HaltedEvent) -> Error:
    return event if isinstance(event, Error) else error_event(Halted(event.message))


def http_error(status: int, code: str, message: str, field: str | None = None) -> Error:
    """An error that only HTTP knows."""
    return Error(code=code, message=message, exit_code=2 if status < 500 else 1, http_status=status, field=field)


def openai_error(error: Error) -> dict[str, object]:
    kind = "invalid_request_error" if error.http_status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": error.code}}


def error_response(path: str, error: Error, headers: dict[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if error.code == Overloaded.code:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    content = openai_error(error) if path.startswith("/v1/") else error.model_dump(mode="json")
    return JSONResponse(content, error.http_status, headers)
