"""Where nodes are drawn: below all they run after, no two in one place, and a chain keeps to its lane."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breakgraph.inspect.layout import places


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """A number of nodes and edges between them without cycles, in an order that says nothing."""
    count = draw(st.integers(0, 24))
    order = draw(st.permutations(range(count)))
    pairs = [(order[a], order[b]) for b in range(count) for a in range(b)]
    return count, draw(st.lists(st.sampled_from(pairs), unique=True, max_size=60)) if pairs else []


@given(graphs())
def test_a_node_lies_below_all_that_it_runs_after_and_alone(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    found = places(count, edges)
    assert len(set(found)) == len(found) == count
    assert all(found[tail][0] < found[head][0] for tail, head in edges)


@given(graphs())
def test_a_layer_is_the_longest_path_to_the_node(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    layers = [layer for layer, _ in places(count, edges)]
    for node in range(count):
        assert layers[node] == max((layers[tail] + 1 for tail, head in edges if head == node), default=0)


def test_a_chain_has_one_lane() -> None:
    assert places(4, [(0, 1), (1, 2), (2, 3)]) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_a_fork_has_a_lane_for_each_branch_and_the_join_goes_on_in_the_first() -> None:
    edges = [(0, 1), (1, 2), (0, 3), (3, 4), (0, 5), (2, 6), (4, 6), (5, 6)]
    assert places(7, edges) == [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (3, 0)]


def test_a_lane_that_has_ended_serves_again() -> None:
    edges = [(0, 1), (0, 2), (1, 3), (3, 4), (3, 5)]
    assert max(lane for _, lane in places(6, edges)) == 1


def test_a_thousand_nodes_take_no_time_worth_the_name() -> None:
    edges = [(at, at + step) for at in range(1000) for step in (1, 7) if at + step < 1000]
    assert max(layer for layer, _ in places(1000, edges)) == 999
