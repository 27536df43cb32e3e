"""OpenAI's answers, made from our events. Steps and plans have no place in them; only final text is sent."""

import json
import time
from typing import Any

from glossd.api.errors import as_error, openai_error
from glossd.events import Done, Error, HaltedEvent, RequestEvent, Text, Usage


class _Names:
    """How the chat and the completion route call the same things."""

    def __init__(self, request: str, model: str, chat: bool) -> None:
        self.chat = chat
        self._head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{request}", "created": int(time.time()), "model": model}

    def whole(self, done: Done) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": done.text}} if self.chat else {"text": done.text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": done.reason}
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": [choice], "usage": done.usage.model_dump()}

    def chunk(self, choices: list[dict[str, Any]], usage: Usage | None, with_usage: bool) -> dict[str, Any]:
        chunk = {
            **self._head,
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "choices": choices,
        }
        return {**chunk, "usage": usage.model_dump() if usage else None} if with_usage else chunk

    def choice(self, text: str | None, reason: str | None = None, first: bool = False) -> dict[str, Any]:
        if not self.chat:
            return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": reason}
        delta: dict[str, str] = {"role": "assistant"} if first else {}
        if text is not None:
            delta["content"] = text
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


class WholeShape:
    """One JSON object at the end."""

    media_type = "application/json"

    def __init__(self, request: str, model: str, chat: bool) -> None:
        self._names = _Names(request, model, chat)

    def render(self, event: RequestEvent) -> bytes:
        return json.dumps(self._names.whole(event)).encode() if isinstance(event, Done) else b""


class StreamShape:
    """Server-sent events: content in append-only pieces, the finish reason, the usage if asked for, [DONE]."""

    media_type = "text/event-stream"

    def __init__(self, request: str, model: str, chat: bool, with_usage: bool) -> None:
        self._names = _Names(request, model, chat)
        self._with_usage = with_usage
        self._opened = False

    def render(self, event: RequestEvent) -> bytes:
        if isinstance(event, Text):
            return self._opening() + self._line([self._names.choice(event.text)])
        if isinstance(event, Done):
            closing = self._opening() + self._line([self._names.choice(None, event.reason)])
            usage = self._line([], event.usage) if self._with_usage else b""
            return closing + usage + b"data: [DONE]\n\n"
        if isinstance(event, Error | HaltedEvent):
            return _sse(openai_error(as_error(event)))
        return b""

    def _opening(self) -> bytes:
        if self._opened or not self._names.chat:
            return b""
        self._opened = True
        return self._line([self._names.choice("", first=True)])

    def _line(self, choices: list[dict[str, Any]], usage: Usage | None = None) -> bytes:
        return _sse(self._names.chunk(choices, usage, self._with_usage))


def _sse(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"
