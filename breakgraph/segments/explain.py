"""What an error of the driver, or of a library over it, means inside a capture."""

from __future__ import annotations

import re

from breakgraph.errors import DriverError
from breakgraph.segments.line_watch import LostAt

__all__ = ["elsewhere", "explain", "meaning"]

_INVALID_VALUE = 1
_INVALIDATED = 901

_ELSEWHERE = (
    "nothing that this thread did has raised before: the forward swallowed an error, or a destructor freed device"
    " memory in the segment, or another thread synchronized the context or device (or the capturing stream) meanwhile,"
    " which invalidates every capture in it"
)
_ASK_DEBUG = "bg.capture(debug=True), or BREAKGRAPH_DEBUG=1, names the line after which the capture was invalid"
_EVENT_RULE = (
    "if it concerns an event: one that was recorded in a segment cannot be waited on, queried or synchronized once that"
    " segment has ended, so an event and its wait must not span a break. Record it again after the break, or declare"
    " the stream with capture(aux_streams=[...])"
)

_RELAXED = "or make it under the relaxed guard: with bg.driver.relaxed(bg.driver.current()): ..."
#: Why the driver refuses a call by what its name, its error or its line says, and whether the relaxed guard lifts that
#: (DRIVER_FACTS, probes/records/legality).
_REASONS = (
    (
        r"(ctx|context|device)_?synchronize|cuda\.synchronize|\bdriver\.synchronize|wait_for_device",
        "it waits for the whole context, and so for work that is only being recorded",
        "",
    ),
    (
        r"stream_?synchronize|event_?synchronize|synchronize",
        "it waits for work that is only being recorded, and has not run",
        f"{_RELAXED}, where it waits for another stream than the capturing one",
    ),
    (
        r"query|\.done\b",
        "it asks how far work is that is only being recorded",
        f"{_RELAXED}, where it asks about another stream or an event older than the capture",
    ),
    (
        r"wait_?event|stream_wait|waitevent",
        "work in a segment cannot wait for an event recorded before the capture began, or in a segment that has ended",
        "",
    ),
    (r"graph_?launch", "a graph cannot be launched into a stream that is capturing", ""),
    (r"module_?unload", "it unloads code that the recorded work may use", ""),
    (
        r"alloc|malloc|instantiate|destroy|free|\bdel\b|empty|zeros|trim",
        "it allocates, frees or instantiates, which may wait for the device, as recorded work cannot",
        _RELAXED,
    ),
)
_SILENT = (
    "nothing that this thread did has raised there: a destructor freed device memory, or another thread synchronized"
    " the context or device meanwhile, which invalidates every capture in it",
    "keep what frees memory alive until the segment has ended, and other threads from synchronizing the context",
)


def explain(error: Exception, where: str, lost: LostAt | None, *, invalidated: bool) -> str:
    """A note for an error that left the body of a capture in the segment ``where``.

    ``lost`` is where the capture became invalid, if that was watched.
    """
    note = f"raised while {where} was being captured"
    if invalidated and _code(error) != _INVALIDATED:
        if _is_cuda_error(error):
            note += (
                "; the driver has given the capture up, since such a call cannot be recorded."
                " Make it a break (bg.break_point, bg.break_here), or move it before the capture"
            )
            if lost is not None:
                note += f"; {_told(lost)}"
        else:
            note += f"; the driver had given the capture up before: {elsewhere(lost)}"
    elif isinstance(error, NotImplementedError):
        note += "; the library refuses this call inside a capture. Make it a break (bg.break_point, bg.break_here)"
        if "cuBLAS" in str(error):
            note += ", or write a product of cupy's as bg.array_namespace().matmul(a, b), which can be captured"
    meant = meaning(error, lost)
    return f"{note}; {meant}" if meant else note


def meaning(error: BaseException, lost: LostAt | None) -> str:
    """What a result means wherever in a capture it comes up; empty where it speaks for itself."""
    code = _code(error)
    if code == _INVALIDATED:
        return elsewhere(lost)
    return _EVENT_RULE if code == _INVALID_VALUE else ""


def elsewhere(lost: LostAt | None) -> str:
    """What to say where the first that a thread hears is that its capture has been given up."""
    return f"{_ELSEWHERE}. {_ASK_DEBUG}" if lost is None else _told(lost)


def _told(lost: LostAt) -> str:
    lines = [
        f"the capture was valid before {lost.site} and invalid after it",
        f"    {lost.source or '(its source is not at hand)'}",
        f"  in:  {'; called from '.join((lost.function, *lost.chain))}",
    ]
    if not lost.silent:
        lines.append("  call: " + ", which raised ".join(filter(None, (lost.call or "a call", lost.error))))
    elif lost.others:
        lines.append(f"  meanwhile, in other threads: {'; '.join(lost.others)}")
    why, relaxed = _reason(lost)
    lines.append(f"  why: {why}")
    lines.append(
        "  do:  make it a break (bg.break_point, bg.break_here), move it before or after the capture"
        + (f", {relaxed}" if relaxed else "")
    )
    return "\n".join(lines)


def _reason(lost: LostAt) -> tuple[str, str]:
    for told in (lost.call, lost.source):
        for pattern, why, relaxed in _REASONS:
            if re.search(pattern, told, re.IGNORECASE):
                return why, relaxed
    if lost.silent:
        return _SILENT
    return "the driver cannot record what it did, or it would wait for work that is only being recorded", _RELAXED


#: What libraries over the driver raise with a result code in it, and torch, which has it in the text.
_OF_LIBRARIES = frozenset({"CUDARuntimeError", "CUDADriverError", "CudaAPIError", "AcceleratorError"})


def _is_cuda_error(error: BaseException) -> bool:
    return isinstance(error, DriverError) or type(error).__name__ in _OF_LIBRARIES or "CUDA error" in str(error)


def _code(error: BaseException) -> int:
    """The driver's result code, from our calls or a library's; 0 where it tells none."""
    if isinstance(error, DriverError):
        return error.code
    if not _is_cuda_error(error):
        return 0
    code = getattr(error, "status", getattr(error, "code", 0))  # cupy's, numba's
    if isinstance(code, int) and code:
        return code
    return _INVALID_VALUE if "CUDA error: invalid argument" in str(error) else 0
