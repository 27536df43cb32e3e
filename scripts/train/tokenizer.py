"""Build the embedded model's tokenizer: single bytes plus the whole words of the tasks, no merges.

Its normaliser lays prompts out the way the model learnt them, so that nobody has to: operands are padded to width
three with a fill token that decodes to nothing, grids become six rows of six, words to be spelt are split in letters.
"""

import json
import re
import string
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from scripts.train.tasks import stories

EOS, BOS, MASK, USER, ASSISTANT, FILL = (
    "<|endoftext|>", "<|startoftext|>", "<|mask|>", "<|user|>", "<|assistant|>", "<|fill|>",
)  # fmt: skip
SPECIALS = (EOS, BOS, MASK, USER, ASSISTANT, FILL)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'assistant' %}<|assistant|>{{ message.content }}{{ eos_token }}"
    "{% else %}<|user|>{{ message.content | trim }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _words() -> list[str]:
    story_text = " ".join(
        (*stories.OPENINGS, *stories.FINDS, *stories.ENDINGS, *stories.ANIMALS, *stories.TRAITS, *stories.PLACES,
         *stories.THINGS)
    )  # fmt: skip
    inner = sorted(set(re.findall(r"[a-zA-Z]+", re.sub(r"\{\w+\}", "", story_text))))
    prompts = [
        "What",
        "is",
        "How",
        "much",
        "Compute",
        "Solve",
        "this",
        "sudoku",
        "Sudoku",
        "Sort",
        "Reverse",
        "Uppercase",
        "Lowercase",
        "Tell",
    ]
    words = [w for w in prompts if w[0].isupper()]
    words += [" " + w for w in (*prompts, "a", "story", "about", "and")]
    words += [" " + w for w in inner] + [w for w in inner if w[0].isupper()]
    words += [f" {d}" for d in string.digits]
    return sorted(set(words))


def _layout() -> list[normalizers.Normalizer]:
    cell = "[1-6.]"
    rules: list[tuple[str, str]] = [
        # Sudoku: a heading of its own line, zeros and underscores as blanks, six rows of six.
        (r"Solve (this|the) (6x6 )?[Ss]udoku:?\s*", "Solve this 6x6 sudoku:\n"),
        ("|".join(rf"(?<=[0-6._]{{{k}}})[0_](?=[0-6._]{{{5 - k}}})" for k in range(6)), "."),
        (rf"(?<={cell}{{6}})\s*[/|,\s]\s*(?={cell}{{6}})", "\n"),
        *((rf"(?<=\n{cell}{{6}})(?={cell}{{{left}}}(?!{cell}))", "\n") for left in (30, 24, 18, 12, 6)),
        # Arithmetic: one space around the sign, operands right-aligned in three columns.
        (r"(?<=[0-9])\s*\+\s*(?=[0-9])", " + "),
        (r"(?<=[0-9])\s*[-−]\s*(?=[0-9])", " - "),
        (r"(?<![0-9])(?=[0-9](?![0-9]) [+-] )", FILL * 2),
        (r"(?<![0-9])(?=[0-9]{2}(?![0-9]) [+-] )", FILL),
        (r"(?<=[0-9] [+-] )(?=[0-9](?![0-9]))", FILL * 2),
        (r"(?<=[0-9] [+-] )(?=[0-9]{2}(?![0-9]))", FILL),
        # Words to be spelt: no space in front, so that they split in letters.
        (r"Reverse( the word)?[ :\"']+(?=[a-zA-Z])", "Reverse:"),
        (r"(Uppercase|Upper-case)( the word)?[ :\"']+(?=[a-zA-Z])", "Uppercase:"),
        (r"(Lowercase|Lower-case)( the word)?[ :\"']+(?=[a-zA-Z])", "Lowercase:"),
        # Lists of digits: single spaces.
        (r"Sort( the numbers)?:?\s*(?=[0-9])", "Sort: "),
        (r"(?<=[0-9]),\s*(?=[0-9])", " "),
    ]
    return [normalizers.Replace(Regex(pattern), text) for pattern, text in rules]


def build() -> Tokenizer:
    vocab = {token: i for i, token in enumerate(SPECIALS)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[symbol] = len(vocab)
    for word in _words():
        vocab.setdefault(word.replace(" ", "Ġ"), len(vocab))
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.normalizer = normalizers.Sequence(_layout())
    pieces = Regex(r" [0-9](?![0-9])| ?[A-Za-z]+|[0-9]|\s|[^\sA-Za-z0-9]")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS[:-1]])
    tokenizer.add_tokens([AddedToken(FILL, special=False, normalized=True)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(FILL, ""), decoders.ByteLevel()])
    return tokenizer


def write(folder: Path) -> Tokenizer:
    """Write tokenizer.json and tokenizer_config.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_bos_token": True,
        "bos_token": BOS,
        "eos_token": EOS,
        "mask_token": MASK,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer
