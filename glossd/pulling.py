"""`glossd pull`: from a name to a source, a fit check with numbers, then the files. Imports neither torch nor hivemind.

HF_ENDPOINT and HF_TOKEN are read here, as every tool of the hub reads them.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from glossd.library import EMBEDDED, Shape, auto_dtype, read_shape, recipe
from swarm.errors import BadSpan, FetchFailed, ModelFileError
from swarm.ids import Span
from swarm.store.hub import ENDPOINT, HubSource, is_repo
from swarm.store.parts import PartFile, files_for, held_parts, plan_file
from swarm.store.published import Published, read_published
from swarm.store.pull import Progress, pull_files, remaining_bytes
from swarm.store.shelf import Shelf
from swarm.store.sizes import Fit, Verdict, size_text
from swarm.store.source import FolderSource, Source

MARGIN_BYTES = 16 * 1024 * 1024
"""Kept free on the disk besides the weights, for headers, tokenizer and journals."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for. `model` is a repository, or the name of a known or already pulled model."""

    model: str
    parts: str | None = None
    revision: str | None = None
    origin: Path | None = None
    dtype: str = "auto"
    quant: str = "none"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known before the first byte of a weight is fetched."""

    shelf: Shelf
    published: Published
    shape: Shape
    span: Span
    files: tuple[PartFile, ...]
    dtype: str
    auto_dtype: str
    quant: str
    fetch_bytes: int
    disk: Fit
    memory: Fit

    def check(self) -> None:
        """Raises FetchFailed when the disk or the memory is too small."""
        if self.fetch_bytes and self.disk.verdict is Verdict.DOES_NOT_FIT:
            raise FetchFailed(
                f"parts {self.span} need {size_text(self.disk.needed)} of disk, {size_text(self.disk.free)} are free; "
                f"free space below {self.shelf.folder.parent}, or set another --models-dir or fewer --parts"
            )
        if self.memory.verdict is Verdict.DOES_NOT_FIT:
            fitting = self.fitting_parts()
            fewer = f"take --parts {self.span.start}:{self.span.start + fitting}" if fitting else "take another machine"
            smaller = " or --quant nf4" if self.quant == "none" else ""
            raise FetchFailed(
                f"parts {self.span} need {size_text(self.memory.needed)} of memory as {self.dtype}, "
                f"{size_text(self.memory.free)} are free; {fewer}{smaller}, or pull anyway with --force"
            )

    def fitting_parts(self) -> int:
        """How many parts from the span's start fit into the free memory."""
        tensors = {name: spec for name, (_, spec) in self.published.tensors.items()}
        count = 0
        while count < len(self.span):
            tried = Span(self.span.start, self.span.start + count + 1)
            if self.shape.memory_bytes(tried, tensors, self.dtype, self.quant) > self.memory.free:
                break
            count += 1
        return count


def open_source(wanted: Wanted, models_dir: Path) -> tuple[str, Source]:
    """The name under which the model will be known, and where it comes from. Raises FetchFailed, ModelFileError."""
    name = wanted.model.rpartition("/")[2]
    if name in ("", ".", "..") or name.startswith("-"):
        raise FetchFailed(f"{wanted.model!r} is not a model; write OWNER/NAME or the name of a known one")
    if (EMBEDDED / name).is_dir():
        raise FetchFailed(f"{name} is part of glossd and needs no pull")
    if wanted.origin is not None:
        if not wanted.origin.is_dir():
            raise FetchFailed(f"there is no folder {wanted.origin}")
        return name, FolderSource(wanted.origin.expanduser().resolve())
    shelf = Shelf(models_dir / name)
    repo, revision = wanted.model, wanted.revision
    if "/" not in repo:
        repo = str(recipe(name).get("about", {}).get("source", ""))
    if shelf.exists and ("/" not in wanted.model or shelf.origin().source == wanted.model):
        # More parts of the same model come from the same commit.
        known = shelf.origin()
        repo, revision = known.source, revision or known.revision
    if not is_repo(repo):
        raise FetchFailed(f"no known model {wanted.model!r}; write OWNER/NAME of a repository, or use --from FOLDER")
    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    return name, HubSource(repo, revision or "main", endpoint, os.environ.get("HF_TOKEN") or None)


def make_plan(wanted: Wanted, name: str, source: Source, models_dir: Path) -> Plan:
    """Read the description of the checkpoint and measure this machine. Raises FetchFailed, ModelFileError, BadSpan."""
    published = read_published(source)
    tensors = {tensor: spec for tensor, (_, spec) in published.tensors.items()}
    with tempfile.TemporaryDirectory(prefix="glossd-") as folder:
        for file, data in published.files.items():
            (Path(folder) / file).write_bytes(data)
        shape = read_shape(Path(folder), tensors)
    span = _span(wanted.parts, shape)
    shelf = Shelf(models_dir / name)
    held = set(held_parts(shape.names, frozenset(shelf.tensors()))) if shelf.exists else set()
    parts = [part for part in files_for(shape.names, span) if part not in held]
    files = tuple(plan_file(published.shards, shape.names, part) for part in parts)
    auto = auto_dtype(tensors.values())
    dtype = auto if wanted.dtype == "auto" else wanted.dtype
    fetch = remaining_bytes(shelf, files)
    disk = Fit(fetch + (MARGIN_BYTES if fetch else 0), shutil.disk_usage(_existing(models_dir)).free)
    memory = Fit(shape.memory_bytes(span, tensors, dtype, wanted.quant), psutil.virtual_memory().available)
    return Plan(shelf, published, shape, span, files, dtype, auto, wanted.quant, fetch, disk, memory)


def carry_out(plan: Plan, source: Source, progress: Progress) -> None:
    """Raises FetchFailed, ModelFileError."""
    plan.shelf.describe(plan.published, source.name, source.revision)
    if plan.files:
        pull_files(source, plan.shelf, plan.published.shards, plan.files, progress)


def _span(parts: str | None, shape: Shape) -> Span:
    if parts is None:
        return Span(0, shape.config.n_parts)
    span = Span.parse(parts)
    try:
        span.check_within(shape.config.n_parts)
    except BadSpan as error:
        raise BadSpan(str(error), "parts") from None
    return span


def _existing(folder: Path) -> Path:
    """The nearest folder that exists, whose disk will take what is written below."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise ModelFileError(f"{folder} is not a folder; set --models-dir")
    return folder
