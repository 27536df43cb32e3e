"""The checkable tasks that the embedded model learns.

A task draws examples from a numpy generator and checks answers; it knows nothing of tokens, models or training.
Prompts are drawn in the words a person would type; the tokenizer does the padding (see `tokenizer.py`).
"""

from scripts.train.tasks import arithmetic, sorting, stories, strings, sudoku
from scripts.train.tasks.base import Example, Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (sudoku.TEMPLATE, sudoku.TEXT, arithmetic.TASK, strings.TASK, sorting.TASK, stories.TASK)
}

__all__ = ["TASKS", "Example", "Task"]
