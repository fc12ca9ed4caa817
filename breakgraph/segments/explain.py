"""What an error of the driver, or of a library over it, means inside a capture."""

from __future__ import annotations

from breakgraph.errors import DriverError

__all__ = ["explain", "explain_in_break"]

_INVALID_VALUE = 1
_EVENT_RULE = (
    "an event that was recorded in a segment cannot be waited on, queried or synchronized once that segment has ended:"
    " an event and its wait must not span a break. Record it again after the break, or declare the stream with"
    " capture(aux_streams=[...])"
)


def explain(error: Exception, where: str, *, invalidated: bool) -> str:
    """A note for an error that left the body of a capture in the segment ``where``."""
    note = f"raised while {where} was being captured"
    if invalidated:
        note += (
            "; the driver has given the capture up, since such a call cannot be recorded."
            " Make it a break (bg.break_point, bg.break_here), or move it before the capture"
        )
    elif isinstance(error, NotImplementedError):
        note += "; the library refuses this call inside a capture. Make it a break (bg.break_point, bg.break_here)"
    if _is_invalid_value(error):
        note += f". If it concerns an event: {_EVENT_RULE}"
    return note


def explain_in_break(error: BaseException) -> str | None:
    """A note for an error that a break raised at capture; None where there is nothing to say."""
    return f"if it concerns an event: {_EVENT_RULE}" if _is_invalid_value(error) else None


def _is_invalid_value(error: BaseException) -> bool:
    """Whether the driver answered 1, through our calls or through a library's."""
    if isinstance(error, DriverError):
        return error.code == _INVALID_VALUE
    code = getattr(error, "status", getattr(error, "code", None))  # cupy's, numba's
    return code == _INVALID_VALUE or "CUDA error: invalid argument" in str(error)  # torch's
