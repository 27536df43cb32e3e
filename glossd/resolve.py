"""From a task to a canvas: tokenizer, recipe and overrides, with the model's limits checked once."""

import secrets
from dataclasses import replace

from glossd.models import Model
from glossd.tasks import Resolved, Task
from swarm.decode.settings import Commit, DecodeSettings
from swarm.errors import BadRequest


def resolve(task: Task, model: Model) -> Resolved:
    """Raises BadRequest naming the field."""
    settings = model.recipe.with_overrides(task.overrides)
    if task.overrides.commit is None and not settings.ranks_are_confidences and settings.compares_confidences:
        settings = replace(settings, commit=Commit.QUOTA)
    settings.check_pair()
    settings = _seeded(settings, task)
    config, limit = model.checkpoint.config, model.checkpoint.config.max_length
    if task.template is not None:
        suppress = task.overrides.suppress_eos is not False
        found = model.tokenizer.gaps(task.template, config.mask_id, limit)
        settings = replace(settings, stop_at_eos=False, suppress_eos=suppress)
        _check_length(len(found.ids), limit, "template")
        start = len(model.tokenizer.prompt(""))
        masks = sum(stop - start for start, stop in found.gaps)
        return Resolved(settings, found.ids, start, masks, found.gaps)
    if task.messages:
        field, ids = "messages", model.tokenizer.chat([(m.role, m.content) for m in task.messages])
    else:
        field, ids = "prompt", model.tokenizer.prompt(task.prompt or "")
    if config.mask_id in ids:
        text = model.tokenizer.decode([config.mask_id])
        raise BadRequest(f"{field} holds {text!r}, which this model reads as a token to be found", field)
    masks = model.recipe.max_tokens if task.max_tokens is None else task.max_tokens
    if masks < 1:
        raise BadRequest(f"max_tokens is {masks}; it must be at least 1", "max_tokens")
    _check_length(len(ids) + 1, limit, field)
    if task.max_tokens is None:
        masks = min(masks, limit - len(ids))
    _check_length(len(ids) + masks, limit, "max_tokens")
    return Resolved(settings, (*ids, *[config.mask_id] * masks), len(ids), masks)


def _check_length(length: int, limit: int, field: str) -> None:
    if length > limit:
        raise BadRequest(f"{length} tokens exceed the model's context of {limit}; shorten {field}", field)


def _seeded(settings: DecodeSettings, task: Task) -> DecodeSettings:
    if task.overrides.seed is not None or not settings.draws:
        return settings
    # 53 bits survive every JSON reader, so that a client can ask for the same answer again.
    return replace(settings, seed=secrets.randbits(53))
