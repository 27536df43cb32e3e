"""Text to token ids and back, chat and gap templates included.

What a user writes is text, whatever it says: special tokens are recognised in a model's own template only.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from swarm.errors import BadRequest, ModelFileError

GAP = re.compile(r"\{\{\s*mask\s*:\s*(\d{1,5})\s*\}\}")
_LEFT_OPEN = re.compile(r"\{\{\s*mask\b")
_SENTINEL = "\ue000{}\ue001"
_SENTINEL_FORM = re.compile("\ue000([0-9]+)\ue001")


@dataclass(frozen=True, slots=True)
class Gaps:
    """ids: the canvas with the mask id in every gap. `gaps` are (start, stop) positions of each."""

    ids: tuple[int, ...]
    gaps: tuple[tuple[int, int], ...]


class TextTokenizer:
    """Reads tokenizer.json and, for chat, tokenizer_config.json of a model folder."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
            self._template_coder = Tokenizer.from_str(text)
            self._coder = Tokenizer.from_str(text)
        except Exception as error:  # the tokenizers library raises bare Exception
            raise ModelFileError(f"cannot read {path}: {error}; fetch the model again") from None
        self._coder.encode_special_tokens = True
        config = _config(folder / "tokenizer_config.json")
        self._bos = _content(config.get("bos_token"))
        self._eos = _content(config.get("eos_token"))
        self._adds_bos = config.get("add_bos_token") is True
        template = config.get("chat_template")
        self._chat_template = template if isinstance(template, str) else None

    @property
    def n_tokens(self) -> int:
        """Ids from here on name no token. Ids may have holes below; heads never learn those."""
        return max(self._coder.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def can_chat(self) -> bool:
        return self._chat_template is not None

    def encode(self, text: str) -> list[int]:
        return list(self._coder.encode(text, add_special_tokens=False).ids)

    def prompt(self, text: str) -> list[int]:
        """Raw text to continue, after the model's begin token where it wants one."""
        return [*self._begin(), *self.encode(text)]

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """(role, content) pairs, rendered by the model's chat template and ended where the answer begins."""
        if self._chat_template is None:
            raise BadRequest("this model has no chat template; send `prompt` or `template`", "messages")
        contents = [content for _, content in messages]
        if any(mark in content for content in contents for mark in "\ue000\ue001"):
            raise BadRequest("message content must not hold the characters U+E000 and U+E001", "messages")
        marked = [{"role": role, "content": _SENTINEL.format(i)} for i, (role, _) in enumerate(messages)]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _template_refuses
        try:
            rendered = environment.from_string(self._chat_template).render(
                messages=marked, add_generation_prompt=True, bos_token=self._bos, eos_token=self._eos
            )
        except TemplateError as error:
            raise BadRequest(f"the model's chat template refuses these messages: {error}", "messages") from None
        ids: list[int] = []
        for i, piece in enumerate(_SENTINEL_FORM.split(rendered)):
            if i % 2:
                ids += self.encode(contents[int(piece)].strip())
            elif piece:
                ids += self._template_coder.encode(piece, add_special_tokens=False).ids
        return ids

    def gaps(self, template: str, mask_id: int, limit: int) -> Gaps:
        """Text with `{{mask:N}}` gaps of N tokens; `limit` bounds the canvas."""
        ids, gaps = self._begin(), []
        pieces = GAP.split(template)
        if len(pieces) == 1:
            raise BadRequest("the template has no gap; write {{mask:8}} where eight tokens are to be found", "template")
        if any(_LEFT_OPEN.search(text) for text in pieces[::2]):
            raise BadRequest("a gap is written {{mask:N}} with N tokens, for example {{mask:8}}", "template")
        for i, piece in enumerate(pieces):
            if i % 2 == 0:
                ids += self.encode(piece)
                continue
            size = int(piece)
            if size < 1 or len(ids) + size > limit:
                raise BadRequest(f"a gap of {size} tokens does not fit a canvas of {limit}", "template")
            gaps.append((len(ids), len(ids) + size))
            ids += [mask_id] * size
        return Gaps(tuple(ids), tuple(gaps))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._coder.decode(list(ids), skip_special_tokens=True))

    def _begin(self) -> list[int]:
        begin = self._coder.token_to_id(self._bos) if self._adds_bos and self._bos else None
        return [] if begin is None else [begin]


def _config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {path}: {error}; fetch the model again") from None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path} must hold a JSON object")
    return config


def _content(token: object) -> str:
    """Token settings are strings, or objects with a `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _template_refuses(message: str) -> str:
    raise TemplateError(message)
