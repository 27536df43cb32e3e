"""A request's canvas as text: cells for display, the growing answer for streams, the filled gaps of a template.

Pure: token ids and decoder events in, text out.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from glossd.events import Cell, Committed
from glossd.tasks import Resolved
from swarm.decode.events import Stepped

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\ufffd"
_MASKED = Cell(state="masked")


class CanvasText:
    """`shown_from` is the first position that people see; `answer_from` the first that belongs to the answer."""

    def __init__(self, resolved: Resolved, decode: Decode, mask_id: int, eos_id: int) -> None:
        self._decode = decode
        self._mask_id, self._eos_id = mask_id, eos_id
        self._gaps = resolved.gaps
        self._given = [token != mask_id for token in resolved.canvas]
        self._start = resolved.answer_from
        self._sent = ""
        self._pieces: dict[int, str] = {}
        self._cells: dict[tuple[str, int], Cell] = {}

    def cells(self, canvas: npt.NDArray[np.int32], stepped: Stepped | None = None) -> tuple[Cell, ...]:
        """One cell per position from the answer's start on."""
        guessed = {} if stepped is None else {token.position: token.id for token in stepped.guessed}
        made = []
        for position, token in enumerate(canvas[self._start :].tolist(), self._start):
            if self._given[position]:
                made.append(self._cell("given", token))
            elif token != self._mask_id:
                made.append(self._cell("committed", token))
            elif position in guessed:
                made.append(self._cell("guessed", guessed[position]))
            else:
                made.append(_MASKED)
        return tuple(made)

    def committed(self, stepped: Stepped) -> tuple[Committed, ...]:
        return tuple(
            Committed(position=t.position - self._start, text=self._piece(t.id), confidence=round(t.confidence, 6))
            for t in stepped.committed
        )

    def answer_ids(self, canvas: npt.NDArray[np.int32]) -> list[int]:
        """The answer's tokens up to its end token, or up to the first mask."""
        ids = []
        for position in range(self._start, len(canvas)):
            token = int(canvas[position])
            if token == self._mask_id or (token == self._eos_id and not self._given[position]):
                break
            ids.append(token)
        return ids

    def grown(self, canvas: npt.NDArray[np.int32], *, finished: bool) -> str:
        """What the committed prefix adds to the text sent so far; never takes anything back."""
        text = self._decode(self.answer_ids(canvas))
        if not finished:
            # A character whose bytes are not all there decodes to a stand-in that a later byte replaces.
            text = text.rstrip(_UNFINISHED)
        if not text.startswith(self._sent):
            return ""
        new = text[len(self._sent) :]
        self._sent = text
        return new

    @property
    def text(self) -> str:
        """All that was sent."""
        return self._sent

    def gaps(self, canvas: npt.NDArray[np.int32]) -> tuple[str, ...]:
        return tuple(self._decode([int(t) for t in canvas[start:stop]]) for start, stop in self._gaps)

    def new_tokens(self, canvas: npt.NDArray[np.int32]) -> list[int]:
        """The tokens that were found, without those after the end token."""
        end = self._start + len(self.answer_ids(canvas))
        return [int(canvas[p]) for p in range(self._start, end) if not self._given[p]]

    def _cell(self, state: Literal["given", "committed", "guessed"], token: int) -> Cell:
        """Cells are frozen, and the same few come in every step: each is made once."""
        cell = self._cells.get((state, token))
        if cell is None:
            cell = self._cells[state, token] = Cell(state=state, text=self._piece(token))
        return cell

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._decode([token])
        return self._pieces[token]
