"""What a client can ask for, after the API has decoded it. Frozen; the daemon turns it into a canvas."""

from dataclasses import dataclass, field

from swarm.decode.settings import DecodeSettings

MAX_NEW_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Message:
    """`role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Overrides:
    """Decoding settings that the client named; None leaves the model's recipe in force."""

    seed: int | None = None
    temperature: float | None = None
    block_length: int | None = None
    steps: int | None = None
    commit: str | None = None
    order: str | None = None
    threshold: float | None = None
    cfg_scale: float | None = None
    stop_at_eos: bool | None = None
    suppress_eos: bool | None = None
    factor: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    alg_temp: float | None = None
    suppress_eos_confidence: bool | None = None
    cache: str | None = None
    refresh_steps: int | None = None
    patches: int | None = None
    staleness: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """Exactly one of `messages` (chat), `prompt` (raw text to continue) and `template` (text with {{mask:N}} gaps).

    `max_tokens` None takes the recipe's length. `deadline_s` bounds queueing and decoding together.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    template: str | None = None
    max_tokens: int | None = None
    overrides: Overrides = field(default_factory=Overrides)
    deadline_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Resolved:
    """A task made concrete.

    `canvas` holds token ids, the mask id where one is to be found; what people see of it starts at `answer_from`;
    `masks` counts the open positions; `gaps` are the (start, stop) positions of a template's gaps.
    """

    settings: DecodeSettings
    canvas: tuple[int, ...]
    answer_from: int
    masks: int
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return len(self.canvas) - self.masks
