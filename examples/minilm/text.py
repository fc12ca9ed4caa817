"""Sentences, their tokens, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import breakgraph as bg

from .weights import Folder

__all__ = ["LONGEST", "SENTENCES", "Batch", "HostArray", "batches", "read_sentences", "tokenize"]

SENTENCES = Path(__file__).parent / "sentences.txt"

LONGEST = 256  # tokens of a sentence, with those that begin and end it; what comes after is cut off, as in training

HostArray = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Batch:
    """The forward context: the tokens of some sentences, one sentence after the other, with nothing in between."""

    ids: HostArray  #: (tokens,), int32
    lengths: tuple[int, ...]  #: tokens of each sentence

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def positions(self) -> HostArray:
        """(tokens,), int32: each token's place in its sentence."""
        return np.concatenate([np.arange(length, dtype=np.int32) for length in self.lengths])

    @property
    def starts(self) -> HostArray:
        """(sentences + 1,), int32: the first token of each sentence, and the end of the last."""
        return np.cumsum([0, *self.lengths], dtype=np.int32)


def read_sentences(path: Path = SENTENCES) -> list[str]:
    """One sentence a line; empty lines are there for the reader."""
    return [line for line in path.read_text().splitlines() if line]


def tokenize(folder: Folder, sentences: Sequence[str]) -> list[HostArray]:
    """The token ids of each sentence, int32.

    Raises `BreakgraphError` where tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise bg.errors.BreakgraphError(
            "sentences cannot be split into tokens", why=str(error), remedy="pip install 'breakgraph[minilm]'"
        ) from error
    tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return [np.asarray(encoding.ids, np.int32) for encoding in tokenizer.encode_batch(list(sentences))]


def batches(tokens: Sequence[HostArray], size: int) -> Iterator[Batch]:
    """Batches of ``size`` sentences, in order; the last may be smaller."""
    for start in range(0, len(tokens), size):
        some = tokens[start : start + size]
        yield Batch(np.concatenate(some), tuple(map(len, some)))
