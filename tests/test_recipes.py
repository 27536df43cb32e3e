"""Recipes are found and complete; what a client names goes over them; prompts make sound canvases."""

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glossd import recipes
from glossd.models import Recipe, read_recipe
from glossd.recipes import RECIPES, recipe_path
from glossd.resolve import resolve
from glossd.tasks import Message, Overrides, Task
from swarm.decode.settings import Commit, DecodeSettings, Order
from swarm.errors import BadRequest, ModelFileError
from swarm.model.families import FAMILIES

FILES = sorted(RECIPES[0].glob("*.toml"))
KNOWN = [path for path in FILES if path.stem != "gloss-tiny"]
PARAMETERS = {"LLaDA": 218_112_000, "iLLaDA": 218_112_000, "Dream": 233_057_792, "DiffuLLaMA": 202_383_360}


def test_the_models_that_people_come_for_have_recipes() -> None:
    names = {path.stem for path in KNOWN}
    assert names >= {
        "LLaDA-8B-Base",
        "LLaDA-8B-Instruct",
        "LLaDA-1.5",
        "iLLaDA-8B-Base",
        "iLLaDA-8B-Instruct",
        "Dream-v0-Base-7B",
        "Dream-v0-Instruct-7B",
        "DiffuLLaMA",
    }


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_a_recipe_says_what_people_need(path: Path) -> None:
    recipe = read_recipe(path.stem)
    about = recipe.about
    families = {"llada": "llada", "dream": "Dream", "diffullama": "llama"}
    assert families[about["family"]] in FAMILIES
    assert Path(about["source"]).name.casefold() == path.stem.casefold()
    assert about["licence"]
    assert about.get("mask_id") not in about.get("stop_ids", [])
    layer = about["layer_bytes"]
    parameters = PARAMETERS[path.stem.partition("-")[0]]
    assert layer == {"bfloat16": 2 * parameters, "int8": parameters, "nf4": parameters * 4.5 / 8}
    assert about["head_bytes"]["bfloat16"] > about["embedding_bytes"]["bfloat16"] > 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recipe_decodes(path: Path) -> None:
    recipe = read_recipe(path.stem)
    assert 1 <= recipe.max_tokens <= 4096
    raw = tomllib.loads(path.read_text())
    for name in raw.keys() - {"about", "max_tokens"}:
        assert getattr(recipe.settings, name) == raw[name]


@pytest.mark.parametrize("name", ["dream-v0-base-7b", "Dream-org/Dream-v0-Base-7B", "/models/DREAM-V0-BASE-7B/"])
def test_a_recipe_is_found_by_the_last_component_whatever_its_case(name: str) -> None:
    path = recipe_path(name)
    assert path is not None
    assert path.stem == "Dream-v0-Base-7B"
    assert read_recipe(name).settings.order is Order.ENTROPY


def test_an_unknown_model_gets_the_defaults() -> None:
    assert read_recipe("my-own-model") == Recipe()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("steps = 0", "steps"),
        ("stepz = 4", "stepz"),
        ('commit = "all"', "commit"),
        ('commit = "threshold"\norder = "entropy"', "order"),
        ("steps =", "TOML|value|Invalid"),
    ],
)
def test_a_bad_recipe_names_file_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "bad.toml").write_text(text)
    monkeypatch.setattr(recipes, "RECIPES", (tmp_path,))
    with pytest.raises(ModelFileError, match=rf"bad\.toml.*({reason})"):
        read_recipe("bad")


MASK = 7


class Letters:
    """Every letter is its code point; "\\x07" is the mask of this vocabulary."""

    def prompt(self, text: str) -> list[int]:
        return [1, *map(ord, text)]

    def chat(self, messages: list[tuple[str, str]]) -> list[int]:
        return [ord(c) for _, content in messages for c in content]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def model(recipe: Recipe = Recipe()) -> Any:  # noqa: B008
    config = SimpleNamespace(mask_id=MASK, max_length=40)
    return SimpleNamespace(checkpoint=SimpleNamespace(config=config), tokenizer=Letters(), recipe=recipe)


@pytest.mark.parametrize("task", [Task(prompt="a\x07b"), Task(messages=(Message("user", "\x07"),))])
def test_a_prompt_that_holds_the_mask_is_refused(task: Task) -> None:
    with pytest.raises(BadRequest, match="reads as a token to be found") as caught:
        resolve(task, model())
    assert caught.value.field == ("prompt" if task.prompt else "messages")


def test_an_order_without_confidences_turns_a_recipes_threshold_off() -> None:
    fast = Recipe(4, DecodeSettings(commit=Commit.THRESHOLD))
    for order in ("random", "entropy"):
        resolved = resolve(Task(prompt="x", overrides=Overrides(order=order)), model(fast))
        assert resolved.settings.commit is Commit.QUOTA
        with pytest.raises(BadRequest, match=order):
            resolve(Task(prompt="x", overrides=Overrides(order=order, commit="factor")), model(fast))


def test_a_seed_is_drawn_where_it_matters() -> None:
    plain = DecodeSettings()
    for settings in (
        replace(plain, temperature=0.5),
        replace(plain, order=Order.RANDOM),
        replace(plain, commit=Commit.ORIGIN),
        replace(plain, order=Order.ENTROPY, alg_temp=0.2),
    ):
        seeds = {resolve(Task(prompt="x"), model(Recipe(4, settings))).settings.seed for _ in range(3)}
        assert len(seeds) == 3
    assert resolve(Task(prompt="x"), model(Recipe(4, plain))).settings.seed == 0
