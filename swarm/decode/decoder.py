"""The decoder of one request. It owns the canvas and says what it wants scored; it never waits and never calls out.

while work := decoder.wanted():
    events = decoder.apply(work[0].step, rows_for(work[0]))
"""

import numpy as np
import numpy.typing as npt

from swarm.decode.choose import Choice, choose
from swarm.decode.commit import committed, idle
from swarm.decode.epochs import Epochs
from swarm.decode.events import Event, Finished, Stepped, Token, Work
from swarm.decode.schedule import Block, blocks
from swarm.decode.settings import DecodeSettings
from swarm.errors import BadAnswer, BadRequest
from swarm.mixture.rows import ScoreRows


class Decoder:
    """canvas: int32 [length], prompt and committed tokens, `mask_id` where a token is to be found.

    The canvas, the seed and the step number are the whole state. `lead` is 1 for models with logits shifted by one.
    """

    def __init__(
        self, canvas: npt.NDArray[np.int32], settings: DecodeSettings, mask_id: int, eos_id: int, lead: int = 0
    ) -> None:
        self.settings = settings
        self.canvas = canvas.astype(np.int32)
        self.step = 0
        self._mask_id, self._eos_id = mask_id, eos_id
        self._given = self.canvas != mask_id
        if self._given.all():
            raise BadRequest("the canvas has no masked position; ask for at least one token")
        settings.check_pair()
        self.blocks = blocks(np.flatnonzero(~self._given).astype(np.int32), settings)
        self._block = 0
        self._step_in_block = 0
        self._finished: Finished | None = None
        self._epochs = Epochs(settings.cache, settings.refresh_steps, lead)
        self._skip_idle()

    @property
    def finished(self) -> bool:
        return self._finished is not None

    @property
    def masks_left(self) -> int:
        return int((self.canvas == self._mask_id).sum())

    def wanted(self) -> list[Work]:
        """The pass to run next; empty when the request is finished."""
        if self._finished is not None:
            return []
        ids = self._ids()
        epoch = self._epochs.at(self._block, self._current, self._step_in_block, self.step, ids)
        return [Work(self.step, ids, self._open_positions(), self.settings.cfg_scale, epoch)]

    def apply(self, step: int, rows: ScoreRows) -> list[Event]:
        """Commit from the score rows of `step`. Raises BadAnswer when they are not the rows that were wanted."""
        positions = self._open_positions()
        if self._finished is not None or step != self.step or not np.array_equal(rows.positions, positions):
            raise BadAnswer(f"score rows for step {step} do not belong to step {self.step}")
        choice = choose(rows, self.settings, self.step, self._eos_id)
        fixed = committed(self.settings, self._current, self._step_in_block, self.step, choice.rank, positions)
        self.canvas[positions[fixed]] = choice.ids[fixed]
        stepped = Stepped(
            step=self.step,
            block=self._block,
            committed=_tokens(positions, choice, fixed),
            guessed=_tokens(positions, choice, ~fixed),
            masks_left=self.masks_left,
        )
        self._advance()
        return [stepped] if self._finished is None else [stepped, self._finished]

    def _ids(self) -> npt.NDArray[np.int32]:
        """The canvas rows of a pass, int32 [rows, length]: with guidance, the second has the given tokens masked."""
        if self.settings.cfg_scale == 0:
            return self.canvas[None, :].astype(np.int32)
        unconditional = np.where(self._given, self._mask_id, self.canvas)
        return np.stack((self.canvas, unconditional)).astype(np.int32)

    def _open_positions(self) -> npt.NDArray[np.int32]:
        block = self._current
        masked = np.flatnonzero(self.canvas[block.start : block.stop] == self._mask_id) + block.start
        return masked.astype(np.int32)

    @property
    def _current(self) -> Block:
        return self.blocks[min(self._block, len(self.blocks) - 1)]

    def _advance(self) -> None:
        self.step += 1
        self._step_in_block += 1
        self._close_blocks()
        if self._finished is None:
            self._skip_idle()

    def _close_blocks(self) -> None:
        """Go on to the first block with an open position; finish when there is none, or the answer has ended."""
        while self._block < len(self.blocks) and len(self._open_positions()) == 0:
            self._block += 1
            self._step_in_block = 0
        if self._block == len(self.blocks):
            self._finished = Finished("stop" if self._answer_end() is not None else "length", self.step)
        elif self.settings.stop_at_eos and self._answer_end() is not None:
            self._finished = Finished("stop", self.step)

    def _skip_idle(self) -> None:
        """Steps that fix nothing keep their number, and so their noise, but need no pass."""
        positions = self._open_positions()
        while idle(self.settings, self._current, self._step_in_block, self.step, positions):
            self.step += 1
            self._step_in_block += 1

    def _answer_end(self) -> int | None:
        """The position of the first generated end token, if nothing before it is masked."""
        if not self.settings.stop_at_eos:
            return None
        ends = np.flatnonzero((self.canvas == self._eos_id) & ~self._given)
        if len(ends) == 0 or (self.canvas[: ends[0]] == self._mask_id).any():
            return None
        return int(ends[0])


def _tokens(positions: npt.NDArray[np.int32], choice: Choice, which: npt.NDArray[np.bool_]) -> tuple[Token, ...]:
    columns = (positions, choice.ids, choice.confidence)
    return tuple(map(Token, *(column[which].tolist() for column in columns)))
