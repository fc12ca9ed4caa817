"""The DOT text is valid, has a cluster for each segment and the breaks between them, and no name breaks out of it."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pydot
import pytest
from pictures_support import HOSTILE, forked, hostile, small
from support import zeros

import breakgraph as bg

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pydot")  # of its own use of pyparsing


def parsed(text: str) -> Any:
    """The one graph of a DOT text. Graphviz itself reads it too, where it is installed."""
    (graph,) = pydot.graph_from_dot_data(text)
    if (dot := shutil.which("dot")) is not None:
        done = subprocess.run([dot, "-Tcanon"], input=text, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    return graph


def edges_of(graph: Any) -> list[tuple[str, str]]:
    return [(edge.get_source(), edge.get_destination()) for edge in graph.get_edges()]


def nodes_of(graph: Any) -> list[str]:
    return [node.get_name() for node in graph.get_nodes() if node.get_name() not in ("node", "edge", "graph")]


def test_there_is_a_cluster_for_each_segment_and_a_node_for_each_break(driver: Any, xp: Any) -> None:
    graph = parsed(small(xp)[0].to_dot())
    assert [cluster.get_name() for cluster in graph.get_subgraphs()] == ["cluster_0", "cluster_1"]
    assert [nodes_of(cluster) for cluster in graph.get_subgraphs()] == [["s0n0"], ["s1n0"]]
    assert nodes_of(graph) == ["b0"]
    assert edges_of(graph) == [("s0n0", "b0"), ("b0", "s1n0")]


def test_labels_say_what_nodes_and_breaks_are(driver: Any, xp: Any) -> None:
    text = small(xp)[0].to_dot()
    assert "break 0 attend\\ntag attention\\nto bg.INFER\\n" in text
    assert "add" in text
    assert "blocks of" in text


def test_the_edges_of_a_segment_are_those_of_its_graph(driver: Any, xp: Any) -> None:
    (cluster,) = parsed(forked(driver, xp).to_dot()).get_subgraphs()
    edges = edges_of(cluster)
    assert len(edges) == 4
    assert sorted(tail for tail, _ in edges).count("s0n0") == 2


def test_a_segment_without_work_has_a_place_in_the_order(driver: Any, xp: Any) -> None:
    with bg.capture() as graph:
        y = zeros(xp) + 1
        bg.break_graph()
        bg.break_graph()
        z = y + 1
    drawn = parsed(graph.to_dot())
    assert ("b0", "s1empty") in edges_of(drawn)
    assert ("s1empty", "b1") in edges_of(drawn)
    assert z is not None


def test_a_graph_without_a_capture_is_a_drawing_of_nothing(driver: Any) -> None:
    graph = parsed(bg.BreakableGraph().to_dot())
    assert nodes_of(graph) == edges_of(graph) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_out_of_its_quotes(sim: Any, xp: Any, name: str) -> None:
    drawn = parsed(hostile(sim, xp, name).to_dot())
    assert [cluster.get_name() for cluster in drawn.get_subgraphs()] == ["cluster_0", "cluster_1"]
    assert nodes_of(drawn) == ["b0"]
    assert len(edges_of(drawn)) == 2
    if len(name) < 60 and name.isprintable():
        (kernel,) = drawn.get_subgraphs()[0].get_nodes()
        assert read(kernel.get_label()).splitlines()[0] == name


def read(label: str) -> str:
    """What Graphviz shows for a quoted label."""
    shown, letters = "", iter(label[1:-1])
    for letter in letters:
        shown += {"n": "\n"}.get(after := next(letters), after) if letter == "\\" else letter
    return shown
