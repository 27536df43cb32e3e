"""The shape of a backbone in words that all families share.

A family module (see `families/`) turns a published `config.json` into this object; the layers read nothing else.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes are counts of elements. Parts are 0 (embedding), 1..n_layers, n_layers + 1 (head).

    `qkv_bias`: the query, key and value projections add a bias.
    `rotates_in_weight_dtype`: rotary tables are cast to the weights' dtype first; else queries and keys go to float32.
    `logit_shift`: the prediction for position i is read at position i - 1, as in the autoregressive model that the
    weights come from; position 0 is read at itself.
    """

    family: str
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    intermediate_size: int
    vocab_size: int
    max_length: int
    norm_eps: float
    rope_theta: float
    mask_id: int
    eos_id: int
    tied_head: bool
    qkv_bias: bool = False
    rotates_in_weight_dtype: bool = False
    logit_shift: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.n_heads

    @property
    def n_parts(self) -> int:
        return self.n_layers + 2

    @property
    def head_part(self) -> int:
        return self.n_layers + 1
