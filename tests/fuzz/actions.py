"""What is done with the graphs of a world. Each action takes numbers that choose the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import breakgraph as bg
from breakgraph.errors import BreakgraphError, CaptureFailed, CaptureStateError

from .breaks import Boom, Context, Difference
from .program import Action, Choices
from .world import Reference, Slot, World

__all__ = ["ACTIONS", "act"]


def act(world: World, action: Action) -> None:
    """Do one thing, and look whether everything is as it should be."""
    ACTIONS[action.kind](world, Choices(action.numbers))
    world.look_around()


# --- capture --------------------------------------------------------------------------------------------------


def _capture(world: World, choices: Choices) -> None:
    slot = choices.pick(world.slots)
    if slot.graph.captured and choices.number(4) == 3:
        with _refused("a graph that holds a capture took another"), bg.capture(slot.graph):
            pass
        return
    _make_ready(slot)
    if world.asleep(slot):
        with _refused("a sleeping arena was captured into"), _capturing(world, slot):
            pass
        return
    world.begin_run([slot], scale=1 + choices.number(3))
    reference = world.reference(slot.forward) if slot.use.execute else None
    _record(world, slot)
    _check_captured(slot)
    if slot.use.caller is not None:
        world.driver.stream_synchronize(int(world.origins[slot.use.caller]))
    if reference is None:  # the values of such a capture mean nothing
        world.restore(slot.forward)
    else:
        world.expect(slot, reference)
        world.check(slot, "at capture")


def _make_ready(slot: Slot) -> None:
    """Let the graph hold no capture."""
    if slot.graph.state == "closed":
        slot.graph = bg.BreakableGraph()
    elif slot.graph.state != "empty":
        slot.graph.reset()
    slot.forget()


def _record(world: World, slot: Slot, **options: Any) -> None:
    with _capturing(world, slot) as graph:
        slot.held, slot.outputs = slot.forward.captured.run_captured(graph, **options)


@contextlib.contextmanager
def _capturing(world: World, slot: Slot) -> Iterator[Any]:
    use, planned = slot.use, slot.forward.plan
    options: dict[str, Any] = {"arena": None if use.arena is None else world.arenas[use.arena]}
    if use.stream is not None:
        options["stream"] = world.origins[use.stream]
    if use.cached:
        options["execs"] = world.cache
    if planned.aux:
        options["aux_streams"] = [world.place.streams[at - 1] for at in planned.aux]
    if use.debug and len(planned.aux) == planned.streams:  # else it refuses, with reason
        options["debug"] = True
    slot.barriers = 0
    with contextlib.ExitStack() as scopes:
        if use.caller is not None:
            world.driver.synchronize()  # the inputs were set on the default stream
            scopes.enter_context(world.place.scope(world.origins[use.caller]))
        if planned.context:
            scopes.enter_context(bg.active_forward(slot.forward.captured.context))
        capture = bg.capture(
            slot.graph,
            mode=use.mode,
            execute=use.execute,
            break_on=planned.break_on,
            barrier=slot.at_barrier,
            name=f"graph {world.slots.index(slot)}",
            **options,
        )
        yield scopes.enter_context(capture)


def _check_captured(slot: Slot) -> None:
    graph, planned = slot.graph, slot.forward.plan
    counts = {len(graph.breaks), len(graph.segments) - 1, slot.barriers}
    if graph.state != "captured" or counts != {len(planned.breaks)}:
        raise Difference("state", f"{graph.report()}\nafter a capture with {len(planned.breaks)} breaks")
    if not planned.streams and any(segment.joined for segment in graph.segments):
        raise Difference("joined", f"{graph.report()}\nof a forward without forks")


# --- replay ---------------------------------------------------------------------------------------------------


def _replay(world: World, choices: Choices) -> None:
    slot = choices.pick(world.slots)
    stream = _stream(world, choices)
    rows = choices.number(6) if choices.number(3) == 2 else None
    bomb = choices.pick((None, *slot.forward.plan.can_raise)) if choices.number(6) == 5 else None
    if not slot.graph.captured or world.asleep(slot):
        with _refused(f"{slot.graph!r} was replayed"), bg.active_forward(Context(1)):
            slot.graph.replay()
        return
    world.begin_run([slot], scale=1 + choices.number(3), bomb=bomb)
    if slot.forward.plan.context and choices.number(6) == 5:
        with _refused("a graph with a context was replayed without one"):
            slot.graph.replay()
        world.restore(slot.forward)
        return
    reference = world.reference(slot.forward, rows)
    if stream is not None:
        world.driver.synchronize()  # the inputs were set on the default stream
    _replay_once(world, slot, reference, stream=stream, valid_rows=rows)
    if stream is not None:
        world.driver.stream_synchronize(int(stream))
    world.check(slot, f"after replay {slot.graph.replays}")


def _burst(world: World, choices: Choices) -> None:
    """Several replays, for whose end nobody waits in between."""
    chosen: list[tuple[Slot, Any]] = []
    for _ in range(2 + choices.number(3)):
        slot, stream = choices.pick(world.slots), _stream(world, choices)
        ordered = all(one.use.arena == slot.use.arena for one, _ in chosen if one.forward is slot.forward)
        if ordered and slot.graph.captured and not world.asleep(slot):  # it is the arena that orders them
            chosen.append((slot, stream))
    slots = list(dict.fromkeys(slot for slot, _ in chosen))
    world.begin_run(slots, scale=1 + choices.number(3))
    references = [world.reference(slot.forward) for slot, _ in chosen]
    world.driver.synchronize()
    for (slot, stream), reference in zip(chosen, references, strict=True):
        _replay_once(world, slot, reference, stream=stream)
    world.driver.synchronize()
    for slot in slots:
        world.check(slot, "after a burst of replays")


def _replay_once(world: World, slot: Slot, reference: Reference, **options: Any) -> None:
    forward = slot.forward
    with bg.active_forward(forward.captured.context) if forward.plan.context else contextlib.nullcontext():
        if reference.raised:
            with _raises(Boom, "a break's exception did not leave the replay"):
                slot.graph.replay(**options)
        else:
            slot.graph.replay(**options)
    world.expect(slot, reference)


def _stream(world: World, choices: Choices) -> Any:
    return choices.pick([None, None, *world.origins, *world.place.streams])


# --- failures -------------------------------------------------------------------------------------------------


def _fail(world: World, choices: Choices) -> None:
    """A capture that raises in its body or in a break, or swallows what a break raised."""
    slot = choices.pick(world.slots)
    _make_ready(slot)
    if world.asleep(slot):
        return
    forward = slot.forward
    world.begin_run([slot])
    how = choices.pick(("body", "break", "swallowed")) if forward.plan.can_raise else "body"
    stop_at = choices.number(len(forward.plan.steps) + 1) if how == "body" else None
    forward.captured.bomb = choices.pick(forward.plan.can_raise) if how != "body" else None
    with _raises(CaptureFailed if how == "swallowed" else Boom, f"a capture that failed ({how}) did not raise"):
        _record(world, slot, stop_at=stop_at, swallow=how == "swallowed")
    if slot.graph.state != "failed" or slot.graph.segments:
        raise Difference("state", f"{slot.graph!r} after a capture that failed ({how})")
    world.restore(forward)


#: Calls that the driver may be made to refuse.
FAILING = (
    "stream_begin_capture",
    "stream_end_capture",
    "stream_get_capture_info",
    "stream_update_capture_dependencies",
    "stream_is_capturing",
    "stream_wait_event",
    "event_record",
    "event_create",
    "graph_instantiate",
    "graph_exec_update",
    "graph_launch",
    "graph_get_nodes",
    "graph_get_edges",
    "graph_node_get_type",
    "graph_node_get_dependencies",
    "graph_get_node_count",
    "mem_alloc_async",
    "mem_create",
    "mem_map",
    "mem_set_access",
    "mem_get_info",
    "memcpy_dtod_async",
    "thread_exchange_stream_capture_mode",
)


def _fault(world: World, choices: Choices) -> None:
    """A capture or a replay in which the simulated driver refuses one call."""
    slot = choices.pick(world.slots)
    if world.driver.name != "sim" or world.asleep(slot):
        return
    captures = not slot.graph.captured or bool(choices.number(2))
    if captures:
        _make_ready(slot)
    forward = slot.forward
    world.begin_run([slot])
    reference = world.reference(forward) if slot.use.execute or not captures else None
    world.driver.synchronize()
    refusal = world.driver.fail(choices.pick(FAILING), at=1 + choices.number(60) // 4)
    try:
        with refusal:
            if captures:
                _record(world, slot)
            else:
                with bg.active_forward(forward.captured.context) if forward.plan.context else contextlib.nullcontext():
                    slot.graph.replay()
    except BreakgraphError:
        if not refusal.struck:
            raise
        if slot.graph.captured is captures:
            raise Difference("state", f"{slot.graph!r} after {refusal.call} failed") from None
        slot.expected_outputs = None
        if captures:
            slot.graph.reset()
            slot.forget()
        world.restore(forward)
    else:
        world.driver.synchronize()
        if reference is None:
            world.restore(forward)
        else:
            world.expect(slot, reference)
            world.check(slot, f"where {refusal.call} may have failed")


# --- memory ---------------------------------------------------------------------------------------------------


def _sleep(world: World, choices: Choices) -> None:
    arena = choices.pick(world.arenas)
    backup = bool(choices.number(2))
    slept = arena.asleep
    arena.sleep(backup=backup)
    if arena.mapped or not arena.asleep:
        raise Difference("memory", f"{arena!r} after sleep()")
    if not backup and not slept:
        for slot in world.slots:
            if slot.graph.arena is arena:
                slot.expected = None
    if not choices.number(2):
        _wake_up(arena)


def _wake(world: World, choices: Choices) -> None:
    _wake_up(choices.pick(world.arenas))


def _wake_up(arena: Any) -> None:
    arena.wake()
    if arena.asleep:
        raise Difference("memory", f"{arena!r} after wake()")


def _release(world: World, choices: Choices) -> None:
    """Drop what a forward left alive, all or some of it, and keep the graph."""
    slot = choices.pick(world.slots)
    for number in [number for number in slot.held if choices.number(3) < 2]:
        del slot.held[number]
        if slot.expected is not None:
            del slot.expected[number]
    if slot.graph.captured and not slot.held and slot.graph.memory.live:
        raise Difference("memory", f"{slot.graph.report()}\nof which nothing is held")


# --- ends -----------------------------------------------------------------------------------------------------


def _reset(world: World, choices: Choices) -> None:
    slot = choices.pick(world.slots)
    if slot.graph.state != "closed":
        slot.graph.reset()
        slot.forget()


def _close(world: World, choices: Choices) -> None:
    slot = choices.pick(world.slots)
    slot.graph.close()
    slot.forget()


def _drop(world: World, choices: Choices) -> None:
    slot = choices.pick(world.slots)
    slot.graph = bg.BreakableGraph()
    slot.forget()


#: By kind of action.
ACTIONS: dict[str, Callable[[World, Choices], None]] = {
    "capture": _capture,
    "replay": _replay,
    "burst": _burst,
    "fail": _fail,
    "fault": _fault,
    "sleep": _sleep,
    "wake": _wake,
    "release": _release,
    "reset": _reset,
    "close": _close,
    "drop": _drop,
}


def _refused(what: str) -> contextlib.AbstractContextManager[None]:
    return _raises(CaptureStateError, what)


@contextlib.contextmanager
def _raises(error: type[Exception], otherwise: str) -> Iterator[None]:
    try:
        yield
    except error:
        return
    raise Difference("not raised", otherwise)
