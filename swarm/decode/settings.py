"""How one request is to be decoded. Frozen; checked once, when made."""

from dataclasses import dataclass
from enum import StrEnum

from swarm.errors import BadRequest

MAX_PATCHES = 64
MAX_STALENESS = 3


class Commit(StrEnum):
    """Which scored positions of a step are fixed. See `commit.py`."""

    QUOTA = "quota"
    THRESHOLD = "threshold"
    FACTOR = "factor"
    TIMESTEPS = "timesteps"
    ORIGIN = "origin"


class Order(StrEnum):
    """What ranks the positions of a step. See `choose.py`."""

    LOW_CONFIDENCE = "low_confidence"
    RANDOM = "random"
    MASKGIT_PLUS = "maskgit_plus"
    TOPK_MARGIN = "topk_margin"
    ENTROPY = "entropy"


class Cache(StrEnum):
    """Which positions a step computes: all of the canvas, those from the block's start on, or the block alone."""

    NONE = "none"
    PREFIX = "prefix"
    DUAL = "dual"


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """`steps` bounds the denoising steps of the whole canvas (None: one a token); threshold and factor take as many as
    they need.

    `block_length` is in canvas positions (None: one block). `temperature` 0 takes the most probable token; above it,
    `top_p` (1: off) and `top_k` (0: off) leave out improbable ones. `alg_temp` > 0 draws the positions to fix by their
    rank instead of taking the best. `cfg_scale` > 0 guides away from the prompt-less canvas:
    logits = un + (cfg_scale + 1) * (cond - un). `stop_at_eos` ends when an end token and everything before it are
    committed. `suppress_eos` never predicts it; `suppress_eos_confidence` predicts it but fixes it last.
    `cache` keeps keys and values of the other positions, made anew for each block and after every `refresh_steps` steps
    (None: never within a block); see `epochs.py` for what that costs in exactness. `patches` > 1 sends the masked
    positions of a block in so many patches, one behind the other, whose keys and values of each other may be
    `staleness` rounds old; see `patches.py`.
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
    factor: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    alg_temp: float = 0.0
    suppress_eos_confidence: bool = False
    cache: Cache = Cache.NONE
    refresh_steps: int | None = None
    patches: int = 1
    staleness: int = 1

    def __post_init__(self) -> None:
        for field, fine, want in (
            ("seed", 0 <= self.seed < 2**64, "an integer from 0 to 2^64 - 1"),
            ("temperature", 0 <= self.temperature <= 10, "a number from 0 to 10"),
            ("block_length", self.block_length is None or self.block_length >= 1, "at least 1"),
            ("steps", self.steps is None or self.steps >= 1, "at least 1"),
            ("threshold", 0 < self.threshold <= 1, "a probability above 0 and up to 1"),
            ("cfg_scale", 0 <= self.cfg_scale <= 100, "a number from 0 to 100"),
            ("factor", 0 < self.factor <= 100, "a number above 0 and up to 100"),
            ("top_p", 0 < self.top_p <= 1, "a probability above 0 and up to 1"),
            ("top_k", 0 <= self.top_k < 2**31, "a whole number, 0 for off"),
            ("refresh_steps", self.refresh_steps is None or self.refresh_steps >= 1, "at least 1"),
            ("patches", 1 <= self.patches <= MAX_PATCHES, f"from 1 to {MAX_PATCHES}"),
            ("staleness", 0 <= self.staleness <= MAX_STALENESS, f"from 0 (synchronous) to {MAX_STALENESS}"),
            ("alg_temp", 0 <= self.alg_temp <= 100, "a number from 0 to 100"),
        ):
            if not fine:
                raise BadRequest(f"{field} is {getattr(self, field)}; it must be {want}", field)

    @property
    def is_displaced(self) -> bool:
        return self.patches > 1 and self.staleness > 0

    @property
    def compares_confidences(self) -> bool:
        """Whether the commit policy reads ranks as probabilities, which not every order gives."""
        return self.commit in (Commit.THRESHOLD, Commit.FACTOR)

    @property
    def ranks_are_confidences(self) -> bool:
        return self.order not in (Order.RANDOM, Order.ENTROPY)

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return (
            self.temperature > 0
            or self.commit is Commit.ORIGIN
            or self.order is Order.RANDOM
            or (self.alg_temp > 0 and not self.compares_confidences)
        )

    def check_pair(self) -> None:
        """Raise BadRequest when order and commit do not go together."""
        if self.compares_confidences and not self.ranks_are_confidences:
            raise BadRequest(
                f"commit '{self.commit}' needs confidences, which order '{self.order}' does not give; "
                "take commit 'quota' or 'timesteps'",
                "order",
            )
        if self.is_displaced and (self.commit is not Commit.THRESHOLD or self.cache is not Cache.DUAL):
            raise BadRequest(
                "patches are decoded with commit 'threshold' and cache 'dual'; take those, or patches 1", "patches"
            )
