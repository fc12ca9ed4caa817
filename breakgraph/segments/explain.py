"""What an error of the driver, or of a library over it, means inside a capture."""

from __future__ import annotations

from breakgraph.errors import DriverError

__all__ = ["ELSEWHERE", "explain", "meaning"]

_INVALID_VALUE = 1
_INVALIDATED = 901

#: Where the first that this thread hears is that its capture has been given up.
ELSEWHERE = (
    "nothing that this thread did has raised before: either the forward swallowed an error, or another thread"
    " synchronized the context or device (or the capturing stream) meanwhile, which invalidates every capture in it"
)
_EVENT_RULE = (
    "if it concerns an event: one that was recorded in a segment cannot be waited on, queried or synchronized once that"
    " segment has ended, so an event and its wait must not span a break. Record it again after the break, or declare"
    " the stream with capture(aux_streams=[...])"
)


def explain(error: Exception, where: str, *, invalidated: bool) -> str:
    """A note for an error that left the body of a capture in the segment ``where``."""
    note = f"raised while {where} was being captured"
    if invalidated and _code(error) != _INVALIDATED:
        note += (
            "; the driver has given the capture up, since such a call cannot be recorded."
            " Make it a break (bg.break_point, bg.break_here), or move it before the capture"
        )
    elif isinstance(error, NotImplementedError):
        note += "; the library refuses this call inside a capture. Make it a break (bg.break_point, bg.break_here)"
    meant = meaning(error)
    return f"{note}; {meant}" if meant else note


def meaning(error: BaseException) -> str:
    """What a result means wherever in a capture it comes up; empty where it speaks for itself."""
    return {_INVALID_VALUE: _EVENT_RULE, _INVALIDATED: ELSEWHERE}.get(_code(error), "")


def _code(error: BaseException) -> int:
    """The driver's result code, from our calls or a library's; 0 where it tells none."""
    if isinstance(error, DriverError):
        return error.code
    code = getattr(error, "status", getattr(error, "code", 0))  # cupy's, numba's
    if not isinstance(code, int):
        return 0
    return code or (_INVALID_VALUE if "CUDA error: invalid argument" in str(error) else 0)  # torch's
