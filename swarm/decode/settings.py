"""How one request is to be decoded. Frozen; checked once, when made."""

from dataclasses import dataclass
from enum import StrEnum

from swarm.errors import BadRequest


class Commit(StrEnum):
    """Which scored positions of a step are fixed.

    QUOTA fixes an even share of the block's masks a step; THRESHOLD fixes all whose confidence reaches the threshold,
    and always the best one.
    """

    QUOTA = "quota"
    THRESHOLD = "threshold"


class Order(StrEnum):
    """What ranks positions: the probability of the chosen token, or a uniform draw."""

    LOW_CONFIDENCE = "low_confidence"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """`steps` bounds the denoising steps of the whole canvas under QUOTA (None: one token a step).

    `block_length` is in canvas positions (None: one block). `temperature` 0 takes the most probable token.
    `cfg_scale` > 0 guides away from the prompt-less canvas: logits = un + (cfg_scale + 1) * (cond - un).
    `stop_at_eos` ends when an end token and everything before it are committed. `suppress_eos` never predicts it.
    """

    seed: int = 0
    temperature: float = 0.0
    block_length: int | None = None
    steps: int | None = None
    commit: Commit = Commit.QUOTA
    order: Order = Order.LOW_CONFIDENCE
    threshold: float = 0.9
    cfg_scale: float = 0.0
    stop_at_eos: bool = True
    suppress_eos: bool = False

    def __post_init__(self) -> None:
        for field, fine, want in (
            ("seed", 0 <= self.seed < 2**64, "an integer from 0 to 2^64 - 1"),
            ("temperature", 0 <= self.temperature <= 10, "a number from 0 to 10"),
            ("block_length", self.block_length is None or self.block_length >= 1, "at least 1"),
            ("steps", self.steps is None or self.steps >= 1, "at least 1"),
            ("threshold", 0 < self.threshold <= 1, "a probability above 0 and up to 1"),
            ("cfg_scale", 0 <= self.cfg_scale <= 100, "a number from 0 to 100"),
        ):
            if not fine:
                raise BadRequest(f"{field} is {getattr(self, field)}; it must be {want}", field)
