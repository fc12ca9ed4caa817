"""Sentences, their tokens, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import breakgraph as bg

from .weights import Folder

__all__ = ["SENTENCES", "Batch", "HostArray", "batches", "read_sentences", "tokenize"]

SENTENCES = Path(__file__).parent / "sentences.txt"

_LONGEST = 256  # tokens of a sentence, with those that begin and end it; what comes after is cut off, as in training

HostArray = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Batch:
    """The forward context: some sentences, one after the other, with nothing in between."""

    words: HostArray  #: (tokens,), int32
    lengths: tuple[int, ...]  #: tokens of each sentence

    @property
    def tokens(self) -> HostArray:
        """(tokens, 2), int32: each token's word, and its place in its sentence."""
        return np.stack([self.words, np.concatenate([*map(np.arange, self.lengths)])], axis=1, dtype=np.int32)

    @property
    def starts(self) -> HostArray:
        """(sentences + 1,), int32: the first token of each sentence, and the end of the last."""
        return np.cumsum([0, *self.lengths], dtype=np.int32)


def read_sentences() -> list[str]:
    """One sentence a line; empty lines are there for the reader."""
    return [line for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line]


def tokenize(folder: Folder, sentences: Sequence[str]) -> list[HostArray]:
    """The words of each sentence as the model numbers them, int32.

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
    tokenizer.enable_truncation(_LONGEST)
    return [np.asarray(encoding.ids, np.int32) for encoding in tokenizer.encode_batch(list(sentences))]


def batches(sentences: Sequence[HostArray], size: int) -> Iterator[Batch]:
    """Batches of ``size`` tokenized sentences, in order; the last may be smaller."""
    for start in range(0, len(sentences), size):
        some = sentences[start : start + size]
        yield Batch(np.concatenate(some), tuple(map(len, some)))
