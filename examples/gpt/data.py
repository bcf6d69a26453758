"""The training text: characters, their ids, and random windows of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DEFAULT_TEXT = Path(__file__).with_name("gospels.txt")
HELD_OUT = 0.1


@dataclass(frozen=True)
class Corpus:
    """A text as character ids, cut into a part to train on and a part to validate on."""

    characters: str
    train: np.ndarray
    valid: np.ndarray

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def decode(self, ids: np.ndarray) -> str:
        return "".join(self.characters[i] for i in ids)


def load_corpus(path: str | Path = DEFAULT_TEXT) -> Corpus:
    """Read a text; its distinct characters, in order, are the vocabulary."""
    text = Path(path).read_text(encoding="utf-8")
    characters = "".join(sorted(set(text)))
    index = {character: i for i, character in enumerate(characters)}
    ids = np.array([index[character] for character in text], dtype=np.int32)
    cut = int(len(ids) * (1 - HELD_OUT))
    return Corpus(characters, ids[:cut], ids[cut:])


def windows(ids: np.ndarray, batch_size: int, context: int, seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches of random windows, for ever: `inputs` and `targets`, each of shape `(batch_size, context)`.

    The target of a character is the character after it.
    """
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(ids) - context, size=batch_size)
        rows = ids[starts[:, None] + np.arange(context + 1)]
        yield {"inputs": rows[:, :-1], "targets": rows[:, 1:]}
