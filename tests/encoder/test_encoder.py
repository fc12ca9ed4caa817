"""The encoder of ``examples/minilm`` computes what a public implementation of the model does.

Proves that eager and replayed vectors are equal bit for bit and those of the reference, at lengths and counts that
the graph was not captured with; that attention is what splits the forward, and why; and that padding has no part in it.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
from minilm import model
from minilm.encoder import SENTENCES_AT_MOST, SIZES, Encoder, Inputs
from minilm.measure import both_ways, cosines, reference
from minilm.report import COSINE
from minilm.text import Batch, HostArray, batches
from minilm.weights import Weights
from support import every_schedule

import breakgraph as bg


def inputs_of(tokens: list[HostArray], *numbers: int) -> Inputs:
    """The sentences of these numbers, in one batch on the device."""
    (batch,) = batches([tokens[number] for number in numbers], len(numbers))
    return Inputs.of(batch)


def by_length(tokens: list[HostArray]) -> list[int]:
    """Numbers of sentences, the shortest first."""
    return sorted(range(len(tokens)), key=lambda number: len(tokens[number]))


# values -------------------------------------------------------------------------------------------------------------
@every_schedule
def test_eager_and_replayed_vectors_are_equal_and_those_of_the_reference(
    weights: Weights, tokens: list[HostArray]
) -> None:
    with closing(Encoder(weights)) as encoder:
        for numbers in ([0], [1, 2, 3], [295, 30, 9, 4]):
            eager, replayed = both_ways(encoder, inputs_of(tokens, *numbers))
            np.testing.assert_array_equal(eager.view(np.uint32), replayed.view(np.uint32))
            assert cosines(replayed, reference()[numbers]).min() >= COSINE
            np.testing.assert_allclose(np.linalg.norm(replayed, axis=1), 1, rtol=1e-6)


def test_a_graph_serves_other_counts_and_lengths_than_it_was_captured_with(
    weights: Weights, tokens: list[HostArray]
) -> None:
    order = by_length(tokens)
    many, one = order[:7], order[-11:-10]
    with closing(Encoder(weights)) as encoder:
        for numbers in (many, one, many):
            eager, replayed = both_ways(encoder, inputs_of(tokens, *numbers))
            np.testing.assert_array_equal(eager, replayed)
            assert cosines(replayed, reference()[numbers]).min() >= COSINE
        (graph,) = encoder.graphed.graphs
        assert graph.replays == 5, "of six calls the first was captured"


def test_without_the_break_a_graph_has_the_lengths_of_its_capture_and_no_others(
    weights: Weights, tokens: list[HostArray]
) -> None:
    order = by_length(tokens)
    with closing(Encoder(weights, break_on=())) as encoder:
        eager, replayed = both_ways(encoder, inputs_of(tokens, *order[:7]))
        np.testing.assert_array_equal(eager, replayed)
        longer = encoder(inputs_of(tokens, order[-11])).get()
        assert len(encoder.graphed.graphs) == 1
        (cosine,) = cosines(longer, reference()[order[-11:-10]])
        assert not cosine >= COSINE, "most of its tokens were given no attention"


def test_a_sentence_has_the_same_vector_alone_and_in_company(weights: Weights, tokens: list[HostArray]) -> None:
    with closing(Encoder(weights)) as encoder:
        _, alone = both_ways(encoder, inputs_of(tokens, 21))
        _, among = both_ways(encoder, inputs_of(tokens, 30, 21, 4))
    np.testing.assert_allclose(among[1], alone[0], rtol=0, atol=1e-6)


def test_padding_has_no_part_in_a_vector(weights: Weights, tokens: list[HostArray]) -> None:
    inputs = inputs_of(tokens, 1, 2)
    rows, padded = len(inputs.tokens), inputs.padded()
    assert rows < len(padded.tokens)
    encoder = Encoder(weights)
    before = encoder.eager(padded).get()
    padded.tokens[rows:] = 99
    np.testing.assert_array_equal(encoder.eager(padded).get(), before)


# what is captured ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("break_on", "decorated", "segments"), [(None, True, 7), ({"attention"}, True, 7), ((), True, 1), (None, False, 1)]
)
def test_attention_splits_the_forward_where_it_is_asked_to(
    weights: Weights,
    tokens: list[HostArray],
    monkeypatch: pytest.MonkeyPatch,
    break_on: Any,
    decorated: bool,
    segments: int,
) -> None:
    if not decorated:
        monkeypatch.setattr(model, "attention", model.attention.__wrapped__)
    with closing(Encoder(weights, break_on)) as encoder:
        eager, replayed = both_ways(encoder, inputs_of(tokens, 0, 3))
        np.testing.assert_array_equal(eager, replayed)
        (graph,) = encoder.graphed.graphs
        assert (len(graph.segments), len(graph.breaks)) == (segments, segments - 1)
        assert {one.tag for one in graph.breaks} <= {"attention"}
        assert not any(one.frozen for one in graph.breaks)


def test_each_size_is_captured_once_and_no_graph_serves_more_tokens_than_it_has(
    weights: Weights, tokens: list[HostArray]
) -> None:
    batches = [[0], [3], [0, 1], [0]]
    with closing(Encoder(weights)) as encoder:
        for numbers in batches:
            encoder(inputs_of(tokens, *numbers))
        sizes = {next(size for size in SIZES if size >= sum(len(tokens[n]) for n in numbers)) for numbers in batches}
        assert len(encoder.graphed.graphs) == encoder.graphed.stats.captures == len(sizes) == 3
        assert set(encoder.graphed.stats.by_size) == sizes


def test_a_batch_of_more_sentences_than_there_is_room_for_is_refused(driver: Any) -> None:
    with pytest.raises(bg.errors.BreakgraphError, match="129 sentences"):
        Inputs.of(Batch(np.zeros(2 * SENTENCES_AT_MOST + 2, np.int32), (2,) * (SENTENCES_AT_MOST + 1)))
