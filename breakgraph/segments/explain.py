"""What an error of the driver, or of a library over it, means inside a capture."""

from __future__ import annotations

from breakgraph.errors import DriverError

__all__ = ["ELSEWHERE", "explain", "meaning"]

_INVALID_VALUE = 1
_INVALIDATED = 901

#: Where the first that this thread hears is that its capture has been given up.
ELSEWHERE = (
    "nothing that this thread did has raised before: the forward swallowed an error, or a destructor freed device"
    " memory in the segment, or another thread synchronized the context or device (or the capturing stream) meanwhile,"
    " which invalidates every capture in it"
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
        if _is_cuda_error(error):
            note += (
                "; the driver has given the capture up, since such a call cannot be recorded."
                " Make it a break (bg.break_point, bg.break_here), or move it before the capture"
            )
        else:
            note += "; the driver had given the capture up before"
    elif isinstance(error, NotImplementedError):
        note += "; the library refuses this call inside a capture. Make it a break (bg.break_point, bg.break_here)"
        if "cuBLAS" in str(error):
            note += ", or write a product of cupy's as bg.array_namespace().matmul(a, b), which can be captured"
    meant = meaning(error)
    return f"{note}; {meant}" if meant else note


def meaning(error: BaseException) -> str:
    """What a result means wherever in a capture it comes up; empty where it speaks for itself."""
    return {_INVALID_VALUE: _EVENT_RULE, _INVALIDATED: ELSEWHERE}.get(_code(error), "")


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
