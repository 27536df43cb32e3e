"""Requests that the tests of this folder send."""

from typing import Any

Body = dict[str, Any]

LONG: Body = {
    "prompt": "Sort: 3 1 2",
    "max_tokens": 80,
    "commit": "quota",
    "suppress_eos": True,
    "temperature": 0.8,
    "seed": 3,
}
"""One token a step, so that there is time for things to happen."""

SHORT: tuple[Body, ...] = (
    {"chat": "What is 234 + 87?"},
    {"chat": "Sort: 5 3 9 1"},
    {"chat": "Solve this 6x6 sudoku: 1....6/..6.1./2..5../..5..2/.1.6../5....1"},
    {"chat": "Tell a story about a fox.", "max_tokens": 24, "seed": 1, "temperature": 0.8},
    {
        "prompt": "Once upon",
        "max_tokens": 16,
        "commit": "quota",
        "block_length": 5,
        "temperature": 0.8,
        "seed": 9,
    },
    {"chat": "What is 9 + 8?", "cfg_scale": 1.5, "max_tokens": 8, "commit": "quota"},
    {"template": "The {{mask:8}} jumped over {{mask:12}}.", "temperature": 0.8, "seed": 4},
    {"template": "12 + {{mask:2}} = 20, é {{mask:3}}"},
)
