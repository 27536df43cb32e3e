"""Commands about the models on this machine: pull, models, show, rm. They need no daemon."""

import json as json_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from glossd.cli.options import JsonOption, columns, note, printable
from swarm.errors import ModelFileError
from swarm.store.sizes import size_text

if TYPE_CHECKING:
    from glossd.library import Entry
    from glossd.pulling import Plan
    from swarm.store.sizes import Fit

ModelsDirOption = Annotated[
    Path | None,
    typer.Option("--models-dir", metavar="FOLDER", help="Where pulled models are kept.", show_default=False),
]
DTypeOption = Annotated[
    Literal["float32", "bfloat16", "float16", "auto"], typer.Option(help="Numbers that the model will compute with.")
]
QuantOption = Annotated[Literal["none", "int8", "nf4"], typer.Option(help="How the layers' weights will be stored.")]


def pull(
    model: Annotated[str, typer.Argument(metavar="REPOSITORY|NAME", help="OWNER/NAME on the hub, or a known model.")],
    parts: Annotated[
        str | None, typer.Option(metavar="A:B", help="Parts to fetch, such as 0:8 [all].", show_default=False)
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit [main].", show_default=False)] = None,
    origin: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="A local copy to take it from.", show_default=False)
    ] = None,
    dtype: DTypeOption = "auto",
    quant: QuantOption = "none",
    force: Annotated[bool, typer.Option("--force", help="Pull even what exceeds the free memory.")] = False,
    models_dir: ModelsDirOption = None,
) -> None:
    """Fetch the weights of the parts that this machine will host, and no others. A broken pull goes on when repeated.

    HF_ENDPOINT names another hub, HF_TOKEN opens gated models.
    """
    from glossd.pulling import Wanted, carry_out, make_plan, open_source
    from swarm.store.sizes import Verdict

    folder = _models_dir(models_dir)
    wanted = Wanted(model, parts, revision, origin, dtype, quant)
    name, source = open_source(wanted, folder)
    try:
        plan = make_plan(wanted, name, source, folder)
        note(printable(_plan_text(plan, name, source.name)))
        if not (force and plan.disk.verdict is not Verdict.DOES_NOT_FIT):
            plan.check()
        with _progress(name) as progress:
            carry_out(plan, source, progress)
    finally:
        source.close()
    note(f"run it with `glossd run {' '.join(_run_flags(plan, name, models_dir))}`")


def models(json: JsonOption = False, models_dir: ModelsDirOption = None) -> None:
    """List the models on this machine, their size and the parts that are here."""
    from glossd.library import model_folders, open_entry

    rows: list[dict[str, Any]] = []
    for folder in model_folders(_models_dir(models_dir)):
        try:
            entry = open_entry(folder)
            facts: dict[str, Any] = {
                "name": entry.name, "family": entry.shape.config.family, "disk_bytes": entry.disk_bytes,
                "parts": entry.shape.config.n_parts, "held": [str(span) for span in entry.held], "source": entry.source,
            }  # fmt: skip
        except ModelFileError as error:
            facts = {"name": folder.name, "error": str(error)}
        rows.append(facts)
    if json:
        typer.echo(json_module.dumps(rows))
        return
    table = [("name", "family", "disk", "parts here", "source"), *map(_model_row, rows)]
    typer.echo(printable(columns(table)))


def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FOLDER", help="A model on this machine.")],
    json: JsonOption = False,
    dtype: DTypeOption = "auto",
    quant: QuantOption = "none",
    models_dir: ModelsDirOption = None,
) -> None:
    """Show a model's shape, the memory that each part takes, and its decoding defaults."""
    from glossd.library import auto_dtype, find_folder, open_entry, recipe

    entry = open_entry(find_folder(name, _models_dir(models_dir)))
    chosen = auto_dtype(entry.tensors.values()) if dtype == "auto" else dtype
    facts = _facts(entry, chosen, quant) | {"recipe": recipe(entry.name)}
    typer.echo(json_module.dumps(facts) if json else printable(_facts_text(facts)))


def remove(name: Annotated[str, typer.Argument(help="A pulled model.")], models_dir: ModelsDirOption = None) -> None:
    """Delete a pulled model from the disk."""
    from glossd import library

    note(f"removed {name}, {size_text(library.remove(name, _models_dir(models_dir)))}")


def _models_dir(given: Path | None) -> Path:
    from glossd.config import resolve

    return resolve({"models_dir": given}).settings.models_dir


def _run_flags(plan: "Plan", name: str, models_dir: Path | None) -> list[str]:
    whole = len(plan.span) == plan.shape.config.n_parts
    return [
        f"--model {name}",
        *([] if whole else [f"--layers {plan.span}"]),
        *([] if plan.dtype == plan.auto_dtype else [f"--dtype {plan.dtype}"]),
        *([] if plan.quant == "none" else [f"--quant {plan.quant}"]),
        *([] if models_dir is None else [f"--models-dir {models_dir}"]),
    ]


def _plan_text(plan: "Plan", name: str, source: str) -> str:
    rows = [("disk", *_fit_cells(plan.disk)), ("memory", *_fit_cells(plan.memory))]
    quant = "" if plan.quant == "none" else f" with {plan.quant} layers"
    todo = f"{size_text(plan.fetch_bytes)} to fetch" if plan.fetch_bytes else "all there"
    head = f"{name} from {source}: parts {plan.span} of 0:{plan.shape.config.n_parts} as {plan.dtype}{quant}, {todo}"
    return f"{head}\n{columns(rows)}"


def _fit_cells(fit: "Fit") -> tuple[str, str, str]:
    return f"needs {size_text(fit.needed)}", f"free {size_text(fit.free)}", str(fit.verdict)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    shown = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*shown, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _facts(entry: "Entry", dtype: str, quant: str) -> dict[str, Any]:
    from swarm.ids import Span

    config = entry.shape.config
    shape = {
        "family": config.family, "layers": config.n_layers, "hidden_size": config.hidden_size,
        "heads": config.n_heads, "kv_heads": config.n_kv_heads, "vocabulary": config.vocab_size,
        "max_length": config.max_length, "mask_id": config.mask_id, "eos_id": config.eos_id,
        "tied_head": config.tied_head,
    }  # fmt: skip

    def memory(start: int, stop: int) -> int:
        return entry.shape.memory_bytes(Span(start, stop), entry.tensors, dtype, quant)

    return {
        "name": entry.name,
        "folder": str(entry.folder),
        "source": entry.source,
        "revision": entry.revision,
        "model_id": entry.model_id,
        "held": [str(span) for span in entry.held],
        "disk_bytes": entry.disk_bytes,
        "config": shape,
        "dtype": dtype,
        "quant": quant,
        "memory_bytes": {
            "embedding": memory(0, 1),
            "layer": memory(1, 2),
            "head": memory(config.head_part, config.n_parts),
            "whole": memory(0, config.n_parts),
        },
    }


def _facts_text(facts: dict[str, Any]) -> str:
    config, memory = facts["config"], facts["memory_bytes"]
    last = config["layers"] + 1
    quant = "" if facts["quant"] == "none" else f" with {facts['quant']} layers"
    rows = [
        ("model", f"{facts['name']} ({config['family']})"),
        ("folder", f"{facts['folder']}, {size_text(facts['disk_bytes'])}"),
        ("source", f"{facts['source']} {facts['revision'][:12]}".strip()),
        ("shape", f"{config['layers']} layers of {config['hidden_size']}, {config['heads']} heads "
                  f"({config['kv_heads']} for keys and values), {config['vocabulary']} tokens"),
        ("context", f"{config['max_length']} positions"),
        ("parts", f"0:{last + 1}; here: {', '.join(facts['held']) or 'none'}"),
        ("memory", f"as {facts['dtype']}{quant}: {size_text(memory['whole'])} in all"),
        ("", f"part 0 (embedding) {size_text(memory['embedding'])}"),
        ("", f"parts 1 to {last - 1} (layers) {size_text(memory['layer'])} each"),
        ("", f"part {last} (head) {size_text(memory['head'])}"),
        *_recipe_rows(facts["recipe"]),
    ]  # fmt: skip
    return columns([row for row in rows if row[1]])


def _recipe_rows(recipe: dict[str, Any]) -> list[tuple[str, str]]:
    flat = {key: value for key, value in recipe.items() if not isinstance(value, dict)}
    flat |= {key: value for table in recipe.values() if isinstance(table, dict) for key, value in table.items()}
    lines = [f"{key} = {value}" for key, value in flat.items()]
    return [("recipe" if i == 0 else "", line) for i, line in enumerate(lines)]


def _model_row(facts: dict[str, Any]) -> tuple[str, str, str, str, str]:
    if "error" in facts:
        return (facts["name"], "damaged", "", "", facts["error"])
    held = ", ".join(facts["held"]) or "none"
    whole = facts["held"] == [f"0:{facts['parts']}"]
    size = size_text(facts["disk_bytes"])
    return (facts["name"], facts["family"], size, "all" if whole else f"{held} of 0:{facts['parts']}", facts["source"])
