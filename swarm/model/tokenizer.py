"""Text to token ids and back, chat and gap templates included.

What a user writes is text, whatever it says: special tokens are recognised in a model's own template only.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.errors import BadRequest, ModelFileError
from swarm.model.chat import ChatTemplate
from swarm.model.vocabulary import read_text, read_vocabulary

GAP = re.compile(r"\{\{\s*mask\s*:\s*(\d{1,5})\s*\}\}")
_LEFT_OPEN = re.compile(r"\{\{\s*mask\b")


@dataclass(frozen=True, slots=True)
class Gaps:
    """ids: the canvas with the mask id in every gap. `gaps` are (start, stop) positions of each."""

    ids: tuple[int, ...]
    gaps: tuple[tuple[int, int], ...]


class TextTokenizer:
    """Reads the vocabulary of a model folder in any of its forms and, for chat, tokenizer_config.json."""

    def __init__(self, folder: Path) -> None:
        config = _config(folder / "tokenizer_config.json")
        vocabulary = read_vocabulary(folder, _added(config))
        self._coder, self._template_coder = vocabulary.text, vocabulary.template
        self._space_first = vocabulary.space_first
        self._bos = _content(config.get("bos_token"))
        self._adds_bos = config.get("add_bos_token", vocabulary.space_first) is True
        template = _template(config, folder / "chat_template.jinja")
        self._chat = ChatTemplate(template, self._bos, _content(config.get("eos_token"))) if template else None

    @property
    def n_tokens(self) -> int:
        """Ids from here on name no token. Ids may have holes below; heads never learn those."""
        return max(self._coder.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def can_chat(self) -> bool:
        return self._chat is not None

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        """`first`: nothing stands before this text, where some models expect a space."""
        if first and text and self._space_first:
            text = " " + text
        return list(self._coder.encode(text, add_special_tokens=False).ids)

    def prompt(self, text: str) -> list[int]:
        """Raw text to continue, after the model's begin token where it wants one."""
        return [*self._begin(), *self.encode(text, first=True)]

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """(role, content) pairs, rendered by the model's chat template and ended where the answer begins."""
        if self._chat is None:
            raise BadRequest("this model has no chat template; send `prompt` or `template`", "messages")
        ids: list[int] = []
        for piece in self._chat.pieces([role for role, _ in messages]):
            if piece.message is not None:
                ids += self.encode(messages[piece.message][1].strip())
            else:
                ids += self._template_coder.encode(piece.text, add_special_tokens=False).ids
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
                ids += self._without_mask(piece, mask_id, first=i == 0)
                continue
            size = int(piece)
            if size < 1 or len(ids) + size > limit:
                raise BadRequest(f"a gap of {size} tokens does not fit a canvas of {limit}", "template")
            gaps.append((len(ids), len(ids) + size))
            ids += [mask_id] * size
        return Gaps(tuple(ids), tuple(gaps))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._template_coder.decode(list(ids), skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact text, special ones included."""
        found = self._template_coder.token_to_id(token)
        return None if found is None else int(found)

    def _without_mask(self, text: str, mask_id: int, *, first: bool) -> list[int]:
        ids = self.encode(text, first=first)
        if mask_id in ids:
            raise BadRequest(f"the text holds {self.decode([mask_id])!r}, which this model reads as a gap", "template")
        return ids

    def _begin(self) -> list[int]:
        begin = self.token_id(self._bos) if self._adds_bos and self._bos else None
        return [] if begin is None else [begin]


def mask_token_id(folder: Path) -> int | None:
    """The id of the `mask_token` in tokenizer_config.json, for checkpoints whose config.json names none."""
    token = _content(_config(folder / "tokenizer_config.json").get("mask_token"))
    return TextTokenizer(folder).token_id(token) if token else None


def _config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"cannot read {path}: {error}; fetch the model again") from None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path} must hold a JSON object")
    return config


def _added(config: dict[str, Any]) -> dict[int, dict[str, Any]]:
    added = config.get("added_tokens_decoder", {})
    if not isinstance(added, dict) or not all(
        re.fullmatch("[0-9]{1,9}", key) and isinstance(token, dict) for key, token in added.items()
    ):
        raise ModelFileError("tokenizer_config.json: added_tokens_decoder must map ids to tokens; fetch it again")
    return {int(key): value for key, value in added.items()}


def _template(config: dict[str, Any], path: Path) -> str:
    """The chat template: in the config, as one of several there, or in a file of its own. "" when there is none."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    if isinstance(template, str):
        return template
    return read_text(path) if path.exists() else ""


def _content(token: object) -> str:
    """Token settings are strings, or objects with a `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
