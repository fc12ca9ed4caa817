"""A device with forwards and graphs that capture them, and what must be true of all that at any time.

Every run of a forward is made three times: in NumPy, eagerly, and by the library. They must agree in every byte: in
what the forward leaves alive, in its inputs and buffers, in its outputs, in what its breaks have seen. After each
action nothing captures, nothing raced, and thread and collector are as they were; when all is dropped, so are the
driver's objects.
"""

from __future__ import annotations

import contextlib
import gc
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph.driver.api import CaptureMode, CaptureStatus
from breakgraph.frameworks.sim.memory import collect

from .breaks import Boom, Context, Difference
from .machine import Device, Host, Inner, Machine
from .plan import plan
from .program import Drawn, GraphUse
from .steps import Plan

__all__ = ["Forward", "Reference", "Slot", "World"]

SIDES, ORIGINS, ARENAS = 3, 2, 2

Values = list[np.ndarray[Any, Any]]


@dataclass(eq=False)
class Forward:
    """A forward, with its arrays in the three places."""

    plan: Plan
    host: Machine
    eager: Machine
    captured: Machine

    @property
    def machines(self) -> tuple[Machine, Machine, Machine]:
        return self.host, self.eager, self.captured


@dataclass(eq=False)
class Slot:
    """One graph, and what must be true of it.

    ``held`` is what its forward left alive at capture, ``outputs`` what it declared as outputs; the values that they
    should have are None where they are undefined.
    """

    use: GraphUse
    forward: Forward
    graph: Any
    held: dict[int, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    expected: dict[int, np.ndarray[Any, Any]] | None = None
    expected_outputs: Values | None = None
    barriers: int = 0

    def at_barrier(self) -> None:
        self.barriers += 1

    def forget(self) -> None:
        """There is no capture any more."""
        self.held, self.outputs, self.expected, self.expected_outputs = {}, [], None, None


@dataclass
class Reference:
    """What a run should give; ``raised`` if it should raise `Boom`."""

    live: dict[int, np.ndarray[Any, Any]]
    outputs: Values
    raised: bool


class World:
    """A device with forwards, and graphs that capture them."""

    def __init__(self, driver: Any, seed: int = 0, blocking: tuple[int, ...] = ()) -> None:
        self.driver = driver
        driver.synchronize()
        self._random = random.Random(seed)
        streams = [driver.create_stream(blocking=at in blocking) for at in range(SIDES + ORIGINS)]
        self.place = Device(driver, streams[:SIDES])
        self.origins = streams[SIDES:]
        self.forwards: list[Forward] = []
        self.slots: list[Slot] = []
        with bg.capture() as graph:  # the thread's own stream and arena stay
            self.place.xp.zeros(1)
        graph.close()
        del graph
        self._thread = self._state_of_thread()
        self._before = self._live()
        self.place.inner = Inner(self.place)
        self.arenas: list[Any] = [bg.Arena() for _ in range(ARENAS)]
        self.cache = bg.ExecCache()
        self._runs = 0

    def add_forward(self, drawn: Drawn) -> None:
        planned = plan(drawn)
        self.forwards.append(Forward(planned, Machine(planned, Host()), *(Machine(planned, self.place) for _ in "12")))

    def add_graph(self, use: GraphUse) -> None:
        self.slots.append(Slot(use, self.forwards[use.forward % len(self.forwards)], bg.BreakableGraph()))

    def asleep(self, slot: Slot) -> bool:
        """Whether the graph's arena sleeps."""
        return slot.use.arena is not None and self.arenas[slot.use.arena].asleep

    # the reference --------------------------------------------------------------------------------------
    def _draw_values(self, forward: Forward) -> Values:
        drawn = []
        for spec in forward.plan.inputs:
            shape = (*spec.shape, *forward.captured.trailing)
            count = int(np.prod(spec.shape)) or 1
            values = np.array([self._random.randrange(-8, 9) for _ in range(count)])[: int(np.prod(spec.shape))]
            values = values.reshape(*spec.shape, *(1 for _ in forward.captured.trailing))
            drawn.append(np.ascontiguousarray(np.broadcast_to(values, shape)).astype(spec.dtype))
        return drawn

    def begin_run(self, slots: list[Slot], *, scale: int = 1, bomb: int | None = None) -> None:
        """Graphs are about to be captured or replayed: give their forwards fresh inputs, and a fresh context.

        From now on the arrays of other graphs that share the arena, or the inputs, may have any values.
        """
        self._runs += 1
        context = Context(scale)
        for forward in dict.fromkeys(slot.forward for slot in slots):
            values = self._draw_values(forward)
            for machine in forward.machines:
                machine.set_inputs(values)
                machine.context, machine.bomb, machine.runs = context, bomb, self._runs
                machine.seen.clear()
        for slot in self.slots:
            if any(slot.forward is one.forward or slot.use.arena == one.use.arena for one in slots):
                slot.expected = None

    def reference(self, forward: Forward, rows: int | None = None) -> Reference:
        """Run a forward in NumPy and eagerly; both have to agree."""
        found = []
        for machine in (forward.host, forward.eager):
            scope = bg.active_forward(machine.context) if forward.plan.context else contextlib.nullcontext()
            get = machine.place.get
            try:
                with scope:
                    live, outputs = machine.run_eagerly(rows)
            except Boom:
                self.place.settle()
                found.append(Reference({}, [], True))
            else:
                found.append(Reference(_values(live, get), [get(one) for one in outputs], False))
        model, eager = found
        if model.raised != eager.raised:
            raise Difference("eager", "only one of the eager runs raised")
        _compare(model.live, eager.live, "eager", "eagerly")
        _compare(dict(enumerate(model.outputs)), dict(enumerate(eager.outputs)), "eager output", "eagerly")
        self._compare_states(forward.host, forward.eager, "eager", "eagerly")
        return eager

    def expect(self, slot: Slot, reference: Reference) -> None:
        """The graph's arrays have these values now, and those of other graphs in the arena are overwritten."""
        for other in self.slots:
            if other.use.arena == slot.use.arena or other.forward is slot.forward:
                other.expected = None
        slot.expected_outputs = None
        if not reference.raised:
            slot.expected = {number: reference.live[number] for number in slot.held}
            slot.expected_outputs = reference.outputs

    def restore(self, forward: Forward) -> None:
        """Give the arrays of captured runs the values that they have in the eager ones."""
        self.driver.synchronize()
        values = forward.eager.values()
        for machine in (forward.host, forward.captured):
            machine.restore(values)
            machine.set_labels(forward.eager.labels)

    # comparing ------------------------------------------------------------------------------------------
    def check(self, slot: Slot, when: str) -> None:
        """Look at everything that one graph has computed."""
        self._compare_live(slot, "replay", when)
        self._compare_states(slot.forward.eager, slot.forward.captured, "replay", when)

    def _compare_live(self, slot: Slot, kind: str, when: str) -> None:
        if slot.expected is not None:
            _compare(slot.expected, _values(slot.held, self.place.get), kind, f"{slot.graph!r} {when}")

    def _compare_states(self, wanted: Machine, found: Machine, kind: str, when: str) -> None:
        numbers = list(wanted.state)
        values = (dict(zip(numbers, one.values(), strict=True)) for one in (wanted, found))
        _compare(*values, f"{kind} state", when)
        if found.seen != wanted.seen:
            raise Difference(f"{kind} seen", f"breaks have seen {found.seen}, not {wanted.seen}, {when}")
        labels = wanted.labels
        if any(labels.get(number, label) != label for number, label in found.labels.items()):
            raise Difference(f"{kind} labels", f"{found.labels}, not {labels}, {when}")

    def look_around(self) -> None:
        """What must be true after any action."""
        for slot in self.slots:
            if not self.asleep(slot):
                self._compare_live(slot, "later", "after an action on others")
            if slot.expected_outputs is not None and slot.outputs:
                found = dict(enumerate(map(self.place.get, slot.outputs)))
                _compare(dict(enumerate(slot.expected_outputs)), found, "outputs", f"of {slot.graph!r}")
        if self._state_of_thread() != self._thread:
            raise Difference("thread", f"{self._state_of_thread()}, not {self._thread}")
        for stream in (0, *map(int, self.place.streams), *map(int, self.origins)):
            if self.driver.stream_is_capturing(stream) != CaptureStatus.NONE:
                raise Difference("capturing", f"stream {stream:#x} is still capturing")
        if self.driver.name == "sim":
            if self.driver.live()["capture"]:
                raise Difference("capturing", "a stream is still capturing")
            if self.driver.races:
                raise Difference("race", "\n".join(map(str, self.driver.races)))

    def _state_of_thread(self) -> dict[str, Any]:
        mode = self.driver.thread_exchange_stream_capture_mode(CaptureMode.RELAXED)
        self.driver.thread_exchange_stream_capture_mode(mode)
        return {
            "capturing": bg.is_capturing(),
            "stream": bg.current_stream(),
            "forward": bg.current_forward(),
            "rows": bg.current_valid_rows(),
            "mode": mode,
            "context": self.driver.ctx_get_current(),
            "contexts": self.driver.context_depth if self.driver.name == "sim" else 1,
            "collecting": gc.isenabled(),
            "current": self.place.current(),
        }

    def _live(self) -> dict[str, int]:
        """How many objects of each kind the simulated driver holds, once it has freed what was dropped."""
        if self.driver.name != "sim":
            return {}
        collect(self.driver)
        return {kind: len(handles) for kind, handles in self.driver.live().items()}

    # the end --------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Drop everything, in some order, and look for what is left."""
        ends = ["close", "reset", "drop", "release"]
        for slot in self._random.sample(self.slots, len(self.slots)):
            end = self._random.choice(ends)
            if end == "release":
                slot.held = {}
            elif end != "drop":
                getattr(slot.graph, end if slot.graph.state != "closed" else "close")()
        self.driver.synchronize()
        default = any(slot.use.arena is None for slot in self.slots)
        things: list[list[Any]] = [self.slots, self.forwards, self.arenas]
        slot = None  # nothing but the lists holds anything
        for at in self._random.sample(range(len(things)), len(things)):
            things[at].clear()
        del self.cache, slot
        self.place.inner = None
        self.place.settle()
        gc.collect()
        self.look_around()
        left = self._live()
        if default and left:  # it lives as long as the thread; on cuda nothing is counted
            for kind in ("reservation", "physical"):
                left[kind] = self._before.get(kind, 0)
        if left != self._before:
            raise Difference("leak", f"{self._before} before, {left} after all was dropped")


def _values(arrays: dict[int, Any], get: Any) -> dict[int, np.ndarray[Any, Any]]:
    return {number: get(array) for number, array in arrays.items()}


def _compare(wanted: dict[int, Any], found: dict[int, Any], kind: str, when: str) -> None:
    if wanted.keys() != found.keys():
        raise Difference(kind, f"arrays {sorted(found)}, not {sorted(wanted)}, {when}")
    for number, value in wanted.items():
        other = found[number]
        if (value.shape, value.dtype) != (other.shape, other.dtype):
            layout = f"{other.dtype}{list(other.shape)}, not {value.dtype}{list(value.shape)}"
            raise Difference(kind, f"v{number} is {layout}, {when}")
        if value.tobytes() != other.tobytes():
            raise Difference(kind, f"v{number} is\n{other}\nand should be\n{value}\n{when}")
