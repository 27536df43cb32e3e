"""Make an encoder from the form that a model folder has: tokenizer.json, vocab.json + merges.txt, tokenizer.model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from swarm.errors import ModelFileError
from swarm.model.sentencepiece import read_pieces, sentencepiece_coder

MAX_FILE = 256 * 1024 * 1024
FORMS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer.model",))

# How Qwen2 cuts text in words before it merges bytes.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Two encoders of one vocabulary: for what users write, and for a model's own templates, with special tokens.

    Some models call a few of their marks ordinary, such as those around a tool call; in what users write they are
    text all the same. Added tokens that are matched after normalisation are words of the language and stay.
    `template` decodes, because it knows which tokens are really special.
    `space_first`: a text is encoded as if a space stood before it.
    """

    text: Tokenizer
    template: Tokenizer
    space_first: bool = False


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    """The files that define the token ids of the model in `folder`; empty when it has none that glossd can read."""
    for form in FORMS:
        paths = tuple(folder / name for name in form)
        if all(path.exists() for path in paths):
            settings = folder / "tokenizer_config.json"
            # The added tokens of the older forms are written there.
            return paths if form == FORMS[0] or not settings.exists() else (*paths, settings)
    return ()


def read_vocabulary(folder: Path, added: dict[int, dict[str, Any]]) -> Vocabulary:
    """`added` are the tokens of tokenizer_config.json by id, for the forms that lack them. Raises ModelFileError."""
    paths = tokenizer_files(folder)
    if not paths:
        names = ", ".join(" with ".join(form) for form in FORMS)
        raise ModelFileError(f"{folder} has no tokenizer; it needs one of: {names}")
    space_first = False
    if paths[0].name == "tokenizer.json":
        serialised = read_text(paths[0])
    elif paths[0].name == "vocab.json":
        coder = _byte_level(*paths[:2])
        serialised = _with_added(coder, added, paths[0]).to_str()
    else:
        pieces = read_pieces(paths[0])
        space_first = pieces.adds_space
        serialised = _with_added(sentencepiece_coder(pieces), added, paths[0]).to_str()
    try:
        text, template = Tokenizer.from_str(_all_marks_special(serialised)), Tokenizer.from_str(serialised)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelFileError(f"cannot read {paths[0]}: {error}; fetch the model again") from None
    text.encode_special_tokens = True
    return Vocabulary(text, template, space_first)


def _all_marks_special(serialised: str) -> str:
    raw = json.loads(serialised)
    for token in raw.get("added_tokens") or ():
        token["special"] = token["special"] or not token["normalized"]
    return json.dumps(raw)


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError(f"it is larger than {MAX_FILE} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {path}: {error}; fetch the model again") from None


def _byte_level(vocab_path: Path, merges_path: Path) -> Tokenizer:
    """Qwen2's byte-level BPE, which Dream ships in its two-file form."""
    try:
        vocab = json.loads(read_text(vocab_path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{vocab_path} is not valid JSON: {error}; fetch it again") from None
    if not isinstance(vocab, dict) or not all(type(i) is int and 0 <= i < 2**31 for i in vocab.values()):
        raise ModelFileError(f"{vocab_path} must map tokens to ids; fetch it again")
    merges = []
    for line in read_text(merges_path).split("\n"):
        if line and not line.startswith("#version"):
            left, _, right = line.rstrip("\r").partition(" ")
            merges.append((left, right))
    try:
        coder = Tokenizer(BPE(vocab, merges))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelFileError(f"{merges_path} does not fit {vocab_path.name}: {error}; fetch both again") from None
    coder.normalizer = normalizers.NFC()
    coder.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    coder.decoder = decoders.ByteLevel()
    return coder


def _with_added(coder: Tokenizer, added: dict[int, dict[str, Any]], path: Path) -> Tokenizer:
    for wanted in sorted(added):
        token = added[wanted]
        flags = {name: token.get(name) is True for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        new = AddedToken(str(token.get("content", "")), **flags)
        (coder.add_special_tokens if flags["special"] else coder.add_tokens)([new])
        found = coder.token_to_id(new.content)
        if found != wanted:
            raise ModelFileError(
                f"tokenizer_config.json puts {new.content!r} at id {wanted}, but {path.name} gives it {found}; "
                "fetch both again"
            )
    return coder
