"""From a captured graph to its description. Every picture is drawn from that, so a file shows what a graph would."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

from breakgraph import frameworks
from breakgraph.driver import Driver
from breakgraph.driver.contexts import in_context
from breakgraph.errors import BreakgraphError
from breakgraph.inspect.memory_map import memory_map
from breakgraph.inspect.nodes import describe_nodes
from breakgraph.inspect.schema import (
    SCHEMA,
    BreakDescription,
    FrozenDescription,
    GraphDescription,
    MemoryDescription,
    SegmentDescription,
    StepDescription,
    SurvivorDescription,
    TargetDescription,
    Times,
)
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.holdings import Holdings
from breakgraph.segments.steps import Break, Segment
from breakgraph.segments.views import StepTimes

__all__ = ["describe"]

_values = reprlib.Repr()
_values.maxstring = _values.maxother = 120


def describe(graph: BreakableGraph, times: Sequence[StepTimes] | None = None) -> GraphDescription:
    """What was captured, as data that `json.dumps` takes.

    Parameters
    ----------
    graph
        In any state. The driver is asked for the nodes of its segments, in the context of the capture.
    times
        Measured microseconds for each step: see `BreakableGraph.save_trace`.

    Raises
    ------
    BreakgraphError
        There is not one time for each step.
    DriverError
        The context of the capture is lost.
    """
    description = GraphDescription(
        schema=SCHEMA,
        name=graph.name,
        state=graph.state.value,
        driver="",
        device="",
        capture_stream=hex(graph.capture_stream or 0),
        replays=graph.replays,
        steps=[],
        memory=_memory(graph),
    )
    if (holdings := graph.holdings) is not None:
        driver = holdings.driver
        with in_context(driver, holdings.context):
            description["driver"], description["device"] = driver.name, driver.device_get_name(driver.ctx_get_device())
            description["steps"] = [_step(driver, step) for step in graph.steps]
        _add_blocks(description, holdings)
    if times is not None:
        _add_times(description["steps"], times)
    return description


def _step(driver: Driver, step: object) -> StepDescription:
    if isinstance(step, Segment):
        return _segment(driver, step)
    assert isinstance(step, Break)  # there is no third kind
    return _break(driver, step)


def _segment(driver: Driver, segment: Segment) -> SegmentDescription:
    nodes, edges = describe_nodes(driver, segment.graph)
    return SegmentDescription(
        kind="segment",
        index=segment.index,
        nodes=nodes,
        edges=edges,
        branches=len({node["lane"] for node in nodes}),
        joined=segment.joined,
        streams=[hex(stream) for stream in segment.streams],
        allocations=segment.allocations,
        allocated=segment.allocated,
        shared_exec=segment.shared,
        times=None,
    )


def _break(driver: Driver, step: Break) -> BreakDescription:
    return BreakDescription(
        kind="break",
        index=step.index,
        name=step.name,
        tag=step.tag,
        site=step.site,
        destination=step.destination,
        landing=step.landing.value,
        frozen=[FrozenDescription(name=name, value=_values.repr(value)) for name, value in step.frozen],
        targets=[_target(driver, array) for array in step.targets],
        times=None,
    )


def _target(driver: Driver, array: object) -> TargetDescription:
    framework = frameworks.of(array, driver)
    assert framework is not None  # targets are arrays
    region = framework.view(array)
    ptr, shape = hex(region.ptr), list(region.shape)
    return TargetDescription(ptr=ptr, shape=shape, dtype=str(region.dtype), bytes=region.nbytes)


def _memory(graph: BreakableGraph) -> MemoryDescription:
    arena = graph.arena
    memory = graph.memory
    return MemoryDescription(
        allocated=memory.allocated,
        footprint=memory.footprint,
        live=memory.live,
        outputs=memory.outputs,
        execs=memory.execs,
        arena={name: getattr(arena, name) for name in ("used", "peak", "mapped", "reserved")} if arena else {},
        base=hex(0),
        blocks=[],
        survivors=[
            SurvivorDescription(
                ptr=hex(one.ptr), bytes=one.nbytes, segment=one.segment, overwritten_by=list(one.overwritten_by)
            )
            for one in graph.survivors
        ],
    )


def _add_blocks(description: GraphDescription, holdings: Holdings) -> None:
    assert holdings.footprint is not None  # until the holdings are released
    steps, memory = description["steps"], description["memory"]
    holds = {
        (at, target["ptr"]): f"result of break {step['index']} {step['name']!r}"
        for at, step in enumerate(steps)
        if step["kind"] == "break"
        for target in step["targets"]
    }
    base, memory["blocks"] = memory_map(holdings.footprint.history, len(steps), holds)
    memory["base"] = hex(base)


def _add_times(steps: list[StepDescription], times: Sequence[StepTimes]) -> None:
    remedy = "give one mapping with cpu_us, gap_us and gpu_us for each step, in microseconds"
    if len(times) != len(steps):
        raise BreakgraphError(f"{len(times)} times were given for {len(steps)} steps", remedy=remedy)
    for at, (step, measured) in enumerate(zip(steps, times, strict=True)):
        try:
            step["times"] = Times(
                cpu_us=float(measured["cpu_us"]), gap_us=float(measured["gap_us"]), gpu_us=float(measured["gpu_us"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BreakgraphError(f"the times of step {at} are {measured!r}", remedy=remedy) from error
