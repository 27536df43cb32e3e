"""6x6 Sudoku (boxes of 2 rows by 3 columns): generator of minimal puzzles, symmetries, checker.

Minimal puzzles (removing any given makes the solution ambiguous) are slow to make, so a fixed pool is built once and
varied by the symmetries of the grid. Puzzles are held out by their canonical form, so that no variation of a held-out
puzzle is ever trained on.
"""

import functools
import itertools
import zlib

import numpy as np

from scripts.train.tasks.base import Example, Task

SIZE, CELLS = 6, 36
MINIMAL = 0
POOL_SIZE = 12000
_PEERS = [
    [
        other
        for other in range(CELLS)
        if other != cell
        and (
            other // SIZE == cell // SIZE
            or other % SIZE == cell % SIZE
            or (other // 12 == cell // 12 and other % SIZE // 3 == cell % SIZE // 3)
        )
    ]
    for cell in range(CELLS)
]


def solutions(cells: list[int], limit: int) -> list[list[int]]:
    """Up to `limit` completions of a puzzle (0 = empty), by the most constrained cell first."""
    candidates = [0b1111110] * CELLS
    board = list(cells)
    for cell, digit in enumerate(board):
        if digit:
            for peer in _PEERS[cell]:
                candidates[peer] &= ~(1 << digit)
    found: list[list[int]] = []

    def search() -> None:
        best, fewest = -1, 9
        for cell in range(CELLS):
            if not board[cell]:
                count = candidates[cell].bit_count()
                if count < fewest:
                    best, fewest = cell, count
                    if count <= 1:
                        break
        if best < 0:
            found.append(list(board))
            return
        for digit in range(1, SIZE + 1):
            if candidates[best] >> digit & 1:
                board[best] = digit
                changed = [p for p in _PEERS[best] if candidates[p] >> digit & 1]
                for peer in changed:
                    candidates[peer] &= ~(1 << digit)
                search()
                for peer in changed:
                    candidates[peer] |= 1 << digit
                board[best] = 0
                if len(found) >= limit:
                    return

    search()
    return found


def _random_grid(rng: np.random.Generator) -> list[int]:
    cells = [0] * CELLS
    first = [int(d) for d in rng.permutation(SIZE) + 1]
    cells[:SIZE] = first
    while True:
        trial = list(cells)
        for cell in rng.permutation(np.arange(SIZE, CELLS))[:5]:
            trial[int(cell)] = int(rng.integers(1, SIZE + 1))
        if all(trial[c] == 0 or all(trial[c] != trial[p] for p in _PEERS[c]) for c in range(CELLS)):
            found = solutions(trial, 1)
            if found:
                return found[0]


def _minimal(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    grid = _random_grid(rng)
    puzzle = list(grid)
    for cell in rng.permutation(CELLS):
        kept, puzzle[cell] = puzzle[cell], 0
        if len(solutions(puzzle, 2)) > 1:
            puzzle[cell] = kept
    return puzzle, grid


def _line_orders(groups: int, width: int) -> list[list[int]]:
    inner = list(itertools.permutations(range(width)))
    return [
        [group * width + i for group, order in zip(outer, orders, strict=True) for i in order]
        for outer in itertools.permutations(range(groups))
        for orders in itertools.product(inner, repeat=groups)
    ]


@functools.cache
def _symmetries() -> np.ndarray:
    """Cell permutations that keep rows, columns and boxes: [3456, 36]."""
    return np.array(
        [
            [row * SIZE + column for row in rows for column in columns]
            for rows in _line_orders(3, 2)
            for columns in _line_orders(2, 3)
        ]
    )


def canonical(puzzle: list[int]) -> bytes:
    """The least relabelled form of a puzzle over all symmetries."""
    forms = np.array(puzzle)[_symmetries()]
    shown = forms > 0
    shown = shown[:, :]
    ranks = np.lexsort(np.packbits(shown, axis=1).T[::-1])
    packed = np.packbits(shown, axis=1)
    same = forms[(packed == packed[ranks[0]]).all(1)]
    best = b""
    for form in same:
        label: dict[int, int] = {0: 0}
        text = bytes(label.setdefault(int(d), len(label)) for d in form)
        best = min(best, text) if best else text
    return best


@functools.cache
def pool() -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """(puzzle, solution, held out): a tenth, chosen by canonical form, is held out."""
    rng = np.random.default_rng(20261130)
    made = []
    for _ in range(POOL_SIZE):
        puzzle, grid = _minimal(rng)
        made.append((np.array(puzzle), np.array(grid), zlib.crc32(canonical(puzzle)) % 10 == 0))
    return made


def puzzle(rng: np.random.Generator, *, held_out: bool, givens: int = MINIMAL) -> tuple[np.ndarray, np.ndarray]:
    """A puzzle and its solution; `givens` > 0 reveals further cells of a minimal puzzle up to that count."""
    chosen = [entry for entry in pool() if entry[2] is held_out]
    cells, grid, _ = chosen[int(rng.integers(len(chosen)))]
    order = _symmetries()[int(rng.integers(len(_symmetries())))]
    digits = np.concatenate(([0], rng.permutation(SIZE) + 1))
    cells, grid = digits[cells[order]], digits[grid[order]]
    hidden = np.flatnonzero(cells == 0)
    extra = max(0, givens - int((cells > 0).sum()))
    shown = rng.permutation(hidden)[:extra]
    cells[shown] = grid[shown]
    return cells, grid


def rows(cells: np.ndarray) -> str:
    return "\n".join("".join(str(d) if d else "." for d in cells[r * SIZE : (r + 1) * SIZE]) for r in range(SIZE))


def _givens(rng: np.random.Generator) -> int:
    return MINIMAL if rng.random() < 0.5 else int(rng.integers(11, 25))


def _given_marks(cells: np.ndarray) -> tuple[bool, ...]:
    return tuple(ch != "." for ch in rows(cells))


def template(cells: np.ndarray, grid: np.ndarray) -> Example:
    return Example(answer=rows(grid), key="", given=_given_marks(cells), prefix="Sudoku:\n")


def text(cells: np.ndarray, grid: np.ndarray) -> Example:
    return Example(answer=rows(grid), key="", prompt="Solve this 6x6 sudoku:\n" + rows(cells))


def check(example: Example, answer: str) -> bool:
    return answer.strip() == example.answer


class SudokuTask(Task):
    """Held out by canonical puzzle rather than by a hash of the text."""

    __slots__ = ()

    def example(self, rng: np.random.Generator, *, held_out: bool, givens: int | None = None) -> Example:
        cells, grid = puzzle(rng, held_out=held_out, givens=_givens(rng) if givens is None else givens)
        return template(cells, grid) if self.name == "sudoku_template" else text(cells, grid)


def _unused(rng: np.random.Generator) -> Example:
    raise NotImplementedError


TEMPLATE = SudokuTask("sudoku_template", _unused, check)
TEXT = SudokuTask("sudoku_text", _unused, check)
