"""The steps of a planned forward. Arrays are named by number; stream 0 is the origin, the others are side streams."""

from __future__ import annotations

from dataclasses import dataclass

from .program import Spec

__all__ = ["Break", "Buffer", "Compute", "Free", "Output", "Plan", "Record", "Step", "Update", "View", "Wait"]


@dataclass(frozen=True)
class Compute:
    """A new array, by a kernel of `kernels` (a reduction where there are ``axes``), on a stream."""

    out: int
    kernel: str
    operands: tuple[int, ...]
    k: int = 0
    axes: tuple[int, ...] | None = None
    stream: int = 0

    def __str__(self) -> str:
        given = ", ".join([*(f"v{one}" for one in self.operands), str(self.k if self.axes is None else self.axes)])
        return f"v{self.out} = {self.kernel}({given}){_on(self.stream)}"


@dataclass(frozen=True)
class Update:
    """Write an array in place: ``accumulate`` or ``assign`` another one."""

    kind: str
    target: int
    operand: int
    k: int = 0
    stream: int = 0

    def __str__(self) -> str:
        return f"{self.kind} v{self.operand} into v{self.target} ({self.k}){_on(self.stream)}"


@dataclass(frozen=True)
class View:
    """A view: ``("transpose", *axes)``, or ``("slice", axis, start, stop, step)``."""

    out: int
    source: int
    how: tuple[str | int | None, ...]

    def __str__(self) -> str:
        return f"v{self.out} = view of v{self.source}: {self.how}"


@dataclass(frozen=True)
class Free:
    """The forward drops an array."""

    array: int

    def __str__(self) -> str:
        return f"del v{self.array}"


@dataclass(frozen=True)
class Record:
    """Record one of the forward's events."""

    event: int
    stream: int

    def __str__(self) -> str:
        return f"record e{self.event}{_on(self.stream)}"


@dataclass(frozen=True)
class Wait:
    """A stream waits for an event of the forward's or, as libraries' stream waits do, for one recorded just now."""

    stream: int
    event: int | None = None
    of: int = 0

    def __str__(self) -> str:
        what = f"s{self.of}" if self.event is None else f"e{self.event}"
        return f"s{self.stream} waits for {what}"


@dataclass(frozen=True)
class Output:
    """``graph.output`` of arrays, while a stream is current."""

    arrays: tuple[int, ...]
    stream: int = 0

    def __str__(self) -> str:
        return f"output {', '.join(f'v{one}' for one in self.arrays)}{_on(self.stream)}"


@dataclass(frozen=True)
class Break:
    """A break point of one of the forms of `breaks`.

    Attributes
    ----------
    number
        Its place among the break points of the forward.
    form, variant
        How it lands; ``variant`` is for what a form leaves open.
    body
        How its function computes ``kernel(*operands, k)``, with ``wrap`` modulo 64: see `breaks`.
    into
        The arrays it writes; with ``cell`` the first is that of a cell.
    results
        Numbers of the arrays it returns, apart from ``into``.
    shape, dtype
        Of what it computes.
    side
        The side stream that its body uses.
    stream
        Which stream is current where it is called.
    selected
        Whether it splits the forward; else its body is captured.
    """

    number: int
    form: str
    body: str = "plain"
    kernel: str = "add"
    operands: tuple[int, ...] = ()
    k: int = 0
    wrap: bool = False
    into: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    side: int | None = None
    stream: int = 0
    tag: str | None = None
    selected: bool = True
    rows: bool = True
    stub: bool = False
    cell: bool = False
    variant: int = 0

    def __str__(self) -> str:
        if self.form == "bare":
            return f"break {self.number}: bare{'' if self.selected else ' (not selected)'}"
        given = ", ".join([*(f"v{one}" for one in self.operands), str(self.k)])
        notes = [f"body {self.body}"] if self.body != "plain" else []
        notes += [f"side s{self.side}"] if self.side is not None else []
        notes += [f"tag {self.tag}"] if self.tag else []
        notes += [] if self.selected else ["not selected"]
        notes += [] if self.rows else ["rows=False"]
        notes += ["stub"] if self.stub else []
        notes += ["cell"] if self.cell else []
        notes += [f"variant {self.variant}"] if self.variant else []
        lands = "".join(f", into v{one}" for one in self.into) + "".join(f", makes v{one}" for one in self.results)
        lands = f"{' mod 64' * self.wrap}{lands}{_on(self.stream)}"
        return f"break {self.number}: {self.form} {self.kernel}({given}){lands} [{', '.join(notes)}]"


def _on(stream: int) -> str:
    return f" on s{stream}" if stream else ""


Step = Compute | Update | View | Free | Record | Wait | Output | Break


@dataclass(frozen=True)
class Buffer:
    """An array made before the capture: where a break lands, or state from run to run. ``array`` is its number."""

    array: int
    spec: Spec
    cell: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Plan:
    """A forward that is valid eagerly, captured and replayed: nothing in it races with anything."""

    steps: tuple[Step, ...]
    inputs: tuple[Spec, ...]
    buffers: tuple[Buffer, ...]
    streams: int
    aux: tuple[int, ...]
    events: int
    break_on: tuple[str, ...] | None
    context: bool
    width: int

    @property
    def breaks(self) -> list[Break]:
        """Those of its break points that split it."""
        return [step for step in self.steps if isinstance(step, Break) and step.selected]

    @property
    def can_raise(self) -> list[int]:
        """The numbers of those that have a function."""
        return [step.number for step in self.breaks if step.form != "bare"]

    def __str__(self) -> str:
        head = [
            f"inputs {', '.join(f'v{at} {spec.dtype}{list(spec.shape)}' for at, spec in enumerate(self.inputs))}",
            *(
                f"{'shared ' * one.shared}{'cell' if one.cell else 'buffer'} v{one.array}"
                f" {one.spec.dtype}{list(one.spec.shape)}"
                for one in self.buffers
            ),
            f"aux_streams {self.aux}, break_on {self.break_on}, context {self.context}, width {self.width}",
        ]
        return "\n".join([*head, *map(str, self.steps)])
