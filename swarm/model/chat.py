"""Chat templates: (role, content) pairs to the pieces of a prompt, without trusting the template or the content.

The template sees a stand-in for each message's content, so what it renders depends on the roles alone: it is rendered
once per sequence of roles, in a process with limits (see `render.py`), and kept.
"""

import functools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import BadRequest, ModelFileError

MAX_TEMPLATE, MAX_RENDERED = 64 * 1024, 1024 * 1024
WALL_SECONDS = 20.0
_KEPT = 256

_RENDER = Path(__file__).with_name("render.py")
_SENTINEL = "\ue000{}\ue001"
_SENTINEL_FORM = re.compile("\ue000([0-9]{1,6})\ue001")


@dataclass(frozen=True, slots=True)
class Piece:
    """`text` of the template, or the content of message number `message`."""

    text: str = ""
    message: int | None = None


class ChatTemplate:
    """`begin` and `end` are the texts of the model's begin and end tokens, which templates print."""

    def __init__(self, source: str, begin: str, end: str) -> None:
        if len(source) > MAX_TEMPLATE:
            raise ModelFileError(
                f"the chat template has {len(source)} characters; the limit is {MAX_TEMPLATE}: shorten or remove it"
            )
        self._source = source
        self._begin, self._end = begin, end
        self._render = functools.lru_cache(maxsize=_KEPT)(self._render_roles)

    def pieces(self, roles: Sequence[str]) -> tuple[Piece, ...]:
        """The prompt for messages of these roles, up to where the answer begins. Raises BadRequest."""
        rendered = self._render(tuple(roles))
        if isinstance(rendered, str):
            raise BadRequest(f"the model's chat template refuses these messages: {rendered}", "messages")
        return rendered

    def _render_roles(self, roles: tuple[str, ...]) -> tuple[Piece, ...] | str:
        """Pieces, or why there are none: a refusal is kept too, so that a template bomb costs its time once."""
        messages = [{"role": role, "content": _SENTINEL.format(i)} for i, role in enumerate(roles)]
        values = {
            "messages": messages,
            "add_generation_prompt": True,
            "bos_token": self._begin,
            "eos_token": self._end,
        }
        answer = _in_child(json.dumps({"template": self._source, "values": values, "limit": MAX_RENDERED}))
        if "text" not in answer:
            return str(answer.get("error", "it takes too much time or memory"))
        pieces = []
        for i, text in enumerate(_SENTINEL_FORM.split(str(answer["text"]))):
            if i % 2 == 0:
                pieces.append(Piece(text=text))
            elif int(text) < len(roles):
                pieces.append(Piece(message=int(text)))
        if {piece.message for piece in pieces} - {None} != set(range(len(roles))):
            return "it leaves out one of them; send other roles, or `prompt`"
        return tuple(piece for piece in pieces if piece.message is not None or piece.text)


def _in_child(work: str) -> dict[str, object]:
    """What the child answered; empty when it was ended by a limit."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_RENDER)], input=work.encode(), capture_output=True, timeout=WALL_SECONDS
        )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}
    except subprocess.TimeoutExpired:
        return {}
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot render the chat template: {error}; send `prompt` instead") from None
