"""Random forwards are bit-equal eagerly, captured and replayed, and leave nothing behind, whatever is done with them.

Proves C3, C5, C6, C11 to C20, C22 to C28 and C30 together, over programs that nobody thought of: arrays and views on
several streams, forks and joins of every kind, breaks of every form, frees, several graphs over arenas and an exec
cache, outputs, sleep, failing captures and replays, calls that the driver refuses. First a share of the seeds, on both
drivers; a longer run is ``python -m tests.fuzz``. Then programs that hypothesis draws, and makes small where they fail.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import hypothesis.strategies as st
import pytest
from fuzz.actions import act
from fuzz.generate import ACTION_WEIGHTS, DTYPES, INTENT_WEIGHTS, SHAPES, program
from fuzz.program import Action, Drawn, GraphUse, Intent, Program, Spec, source
from fuzz.run import run
from fuzz.shrink import failure, shrink
from fuzz.world import World
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import breakgraph as bg

PROGRAMS, PER_TEST = 240, 20


@pytest.mark.parametrize("first", range(0, PROGRAMS, PER_TEST))
def test_a_share_of_the_seeds_comes_out_as_in_numpy(driver: Any, first: int) -> None:
    def execute(one: Program) -> None:
        run(one, driver.name)

    for seed in range(first, first + PER_TEST):
        drawn = program(seed)
        if (error := failure(execute, drawn)) is not None:
            small, error = shrink(execute, drawn, error, seconds=10)
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{source(small)}")


def test_a_seed_is_one_program_whatever_ran_before() -> None:
    first = program(5)
    program(6)
    assert program(5) == first
    assert eval(source(first)) == first  # a program that failed can be pasted into a test


# --- the same, drawn by hypothesis ----------------------------------------------------------------------------

numbers = st.lists(st.integers(0, 59), max_size=8).map(tuple)
intents = st.lists(st.builds(Intent, st.sampled_from(list(INTENT_WEIGHTS)), numbers), min_size=1, max_size=14)
specs = st.builds(Spec, st.sampled_from(SHAPES), st.sampled_from(DTYPES))


@st.composite
def forwards(draw: st.DrawFn) -> Drawn:
    streams = draw(st.integers(0, 3))
    return Drawn(
        tuple(draw(intents)),
        inputs=tuple(draw(st.lists(specs, min_size=1, max_size=2))),
        streams=streams,
        aux=tuple(at for at in range(1, streams + 1) if draw(st.booleans())),
        break_on=draw(st.sampled_from([None, ("a",), ("a", "b"), ()])),
        context=draw(st.booleans()),
    )


uses = st.builds(
    GraphUse,
    forward=st.just(-1),  # the one that was added last
    arena=st.sampled_from([0, 1, None]),
    cached=st.booleans(),
    stream=st.sampled_from([None, 0, 1]),
    caller=st.sampled_from([None, 0, 1]),
    mode=st.sampled_from(["thread_local", "global", "relaxed"]),
    execute=st.booleans(),
    debug=st.booleans(),
)


class Graphs(RuleBasedStateMachine):
    """One device, graphs that are added one after another, and whatever may be done with them."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None
        self.scopes = ExitStack()
        self.scopes.enter_context(warnings.catch_warnings(action="ignore", category=bg.errors.BreakgraphWarning))

    @initialize(
        schedule=st.sampled_from(["fifo", "lazy", "random"]), seed=st.integers(0, 99), drawn=forwards(), use=uses
    )
    def begin(self, schedule: str, seed: int, drawn: Drawn, use: GraphUse) -> None:
        driver = self.scopes.enter_context(bg.driver.use("sim", schedule=schedule, seed=seed))
        self.world = World(driver, seed)
        self.add(drawn, use)

    @rule(drawn=forwards(), use=uses)
    @precondition(lambda self: self.world is not None and len(self.world.slots) < 3)
    def add(self, drawn: Drawn, use: GraphUse) -> None:
        """Another forward, and a graph of it."""
        assert self.world is not None
        self.world.add_forward(drawn)
        self.world.add_graph(use)
        act(self.world, Action("capture", (len(self.world.slots) - 1,)))

    @rule(action=st.builds(Action, st.sampled_from(list(ACTION_WEIGHTS)), numbers))
    def act_on(self, action: Action) -> None:
        assert self.world is not None
        act(self.world, action)

    @rule(which=st.integers(0, 2), numbers=numbers)
    def replay(self, which: int, numbers: tuple[int, ...]) -> None:
        assert self.world is not None
        act(self.world, Action("replay", (which, *numbers)))

    def teardown(self) -> None:
        with self.scopes:
            if self.world is not None:
                self.world.finish()


class TestGraphs(Graphs.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(
        max_examples=100,
        stateful_step_count=8,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,  # making one small takes minutes
        suppress_health_check=list(HealthCheck),
    )
