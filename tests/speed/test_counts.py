"""A slow-down shows as a count: what a step makes Python and the driver do is within its bound on every machine.

Proves that a replay launches each segment once and asks the driver next to nothing else between its steps, that replay
and capture are straight lines in the number of segments, and that the counter counts the library alone.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import speed_support  # noqa: F401 - the benchmarks on the path
from support import child

import breakgraph as bg
from benchmarks import simulator
from benchmarks._chains import ours
from benchmarks._counting import FUNCTIONS, INSTRUCTIONS, count, line
from breakgraph.segments.held import Held


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, float]]:
    """What Python does where there is no extension to do it: the same whether it is built here or not."""
    done = child(
        """
        import json, sys
        import breakgraph as bg
        from benchmarks import simulator

        with bg.driver.use("sim"):
            json.dump(simulator.counts(), sys.stdout)
        """,
        BREAKGRAPH_NATIVE="0",
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def test_every_count_is_within_its_bound_and_near_it(counted: dict[str, dict[str, float]]) -> None:
    for what, (functions, instructions, driver) in simulator.BOUNDS.items():
        found = counted[what]
        of_driver = sum(found.values()) - found[FUNCTIONS] - found[INSTRUCTIONS]
        assert found[FUNCTIONS] <= functions, what
        assert instructions / 2 < found[INSTRUCTIONS] <= instructions, f"{what}: a bound far off shows nothing"
        assert of_driver <= driver, what


def test_between_its_steps_a_replay_launches_and_asks_the_driver_next_to_nothing(
    counted: dict[str, dict[str, float]],
) -> None:
    of_driver = {name: calls for name, calls in counted[simulator.EACH_REPLAYED].items() if "_" in name}
    assert of_driver.pop("graph_launch") == 1
    assert sum(of_driver.values()) < 0.05, of_driver


@pytest.mark.parametrize("how", ["on a stream that is given", "with valid rows", "within a turn"])
def test_whatever_is_asked_of_a_replay_nothing_is_gone_through_again_for_each_step(sim: Any, how: str) -> None:
    """What a replay may be refused for is known without a look at its steps; and those are prepared once."""

    def replay(graph: Any) -> None:
        if how == "within a turn":
            with Held(graph.arena, int(stream)) as held:
                graph.replay_in(held)
        else:
            graph.replay(stream=stream, valid_rows=1 if how == "with valid rows" else None)

    stream, found = sim.create_stream(), {}
    for segments in (8, 16, 32):
        chain = ours()(segments)
        replay(chain.graph)  # prepares what it needs
        found[segments] = count(lambda chain=chain: replay(chain.graph), simulator._REPEATS)
        chain.close()
    each, _ = line(found, simulator._REPEATS)
    functions, instructions, _ = simulator.BOUNDS[simulator.EACH_REPLAYED]
    assert each[FUNCTIONS] <= functions
    assert each[INSTRUCTIONS] <= instructions


def test_a_replay_launches_each_segment_that_has_nodes_once_and_no_other(sim: Any, xp: Any) -> None:
    x = xp.zeros(4, np.float32)
    with bg.capture() as graph:
        np.add(x, 1, out=x)
        bg.break_graph()
        bg.break_graph()  # between the two: a segment without nodes
        np.add(x, 1, out=x)
    assert [segment.nodes for segment in graph.segments] == [1, 0, 1]
    assert count(graph.replay)["graph_launch"] == 2
    graph.close()


def test_a_cost_that_is_no_straight_line_is_said_to_be_none() -> None:
    straight = {2: Counter(a=7), 4: Counter(a=11, b=2), 8: Counter(a=19, b=6)}
    assert line(straight) == ({"a": 2, "b": 1}, {"a": 3, "b": -2})
    assert line(straight, repeats=2) == ({"a": 1, "b": 0.5}, {"a": 1.5, "b": -1})
    with pytest.raises(ArithmeticError, match="a is no straight line: 7 for 2 steps, 11 for 4 steps, 20 for 8 steps"):
        line({**straight, 8: Counter(a=20)})


def test_the_counter_counts_the_library_and_neither_the_simulator_nor_the_caller(sim: Any, xp: Any) -> None:
    def mine() -> None:
        for _ in range(100):
            sum(range(10))

    assert not count(mine)
    x = xp.zeros(4, np.float32)
    of_the_simulator = count(lambda: np.add(x, 1, out=x))
    assert of_the_simulator["launch"] == 1
    plain, more = (count(lambda n=n: [bg.is_capturing() for _ in range(n)]) for n in (1, 11))
    assert more[FUNCTIONS] == 11 * plain[FUNCTIONS] > 0


def test_the_command_fails_where_a_count_is_over_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulator.main(["--rounds", "1"]) == 0
    monkeypatch.setitem(simulator.BOUNDS, simulator.REPLAY, (0, 0, 0))
    assert simulator.main(["--rounds", "1"]) == 1
