"""Every exception of breakgraph, and the table from a driver's result code to one of them.

An error has three parts: ``what`` happened, ``why`` it is refused, and a ``remedy``. ``where`` names the
break or the segment at which it was reported. ``str(error)`` shows all that are known, a line each.
"""

from __future__ import annotations

__all__ = [
    "AliasedDestination",
    "BreakgraphError",
    "BreakgraphWarning",
    "CaptureFailed",
    "CaptureImplicit",
    "CaptureInvalidated",
    "CaptureIsolation",
    "CaptureMerge",
    "CaptureStateError",
    "CaptureUnjoined",
    "CaptureUnmatched",
    "CaptureUnsupported",
    "CaptureWrongThread",
    "CapturedEvent",
    "DTypeMismatch",
    "DriverError",
    "DriverNotFound",
    "ExecUpdateRefused",
    "InputMoved",
    "NotCopyable",
    "OutOfMemory",
    "ReplayDiffers",
    "ShapeMismatch",
    "Unrecorded",
    "driver_error",
]


class BreakgraphError(RuntimeError):
    """Root of all errors raised by breakgraph (E1).

    ``why`` and ``remedy`` default to those of the class, so that a typed error explains itself even where
    the caller that raises it has nothing to add.
    """

    why: str = ""
    remedy: str = ""

    def __init__(self, what: str, *, why: str = "", remedy: str = "", where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why or type(self).why
        self.remedy = remedy or type(self).remedy
        self.where = where

    def __str__(self) -> str:
        lines = [f"{self.what} (at {self.where})" if self.where else self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.remedy:
            lines.append(f"  do:  {self.remedy}")
        return "\n".join(lines)


class BreakgraphWarning(UserWarning):
    """Something that is legal and most likely not meant, such as a capture that recorded nothing (C10)."""


# --- what the driver answered ---------------------------------------------------------------------------

# Results after which the CUDA context is lost: every later call on it answers the same.
# Source: CUDA driver API, enum CUresult ("the context cannot be used ... must be destroyed").
_STICKY = frozenset({4, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})


class DriverError(BreakgraphError):
    """A driver call answered with an error.

    ``name`` and ``code`` are CUDA's own (``CUDA_ERROR_INVALID_VALUE``, 1), ``call`` the driver call in snake
    case, ``sticky`` whether the context is lost by it.
    """

    def __init__(
        self, name: str, code: int, call: str, *, what: str = "", why: str = "", remedy: str = "", where: str = ""
    ) -> None:
        super().__init__(what or f"{call} answered {name} ({code})", why=why, remedy=remedy, where=where)
        self.name = name
        self.code = code
        self.call = call
        if self.sticky and not self.remedy:
            self.remedy = "the CUDA context is lost: restart the process"

    @property
    def sticky(self) -> bool:
        """Whether the context is lost, so that no later call on it can succeed."""
        return self.code in _STICKY


class DriverNotFound(BreakgraphError):
    """There is no usable driver: no library, no device, or no Python bindings for it."""


class OutOfMemory(DriverError):
    """2: the device has no memory left for the request."""

    why = "the device has too little memory left"
    remedy = "free arrays, lower the sizes captured, or give the arena a device with more memory"


class CaptureUnsupported(DriverError):
    """900: the call is not permitted while a stream is capturing, and it has invalidated the capture."""

    why = (
        "the driver cannot record this call, or it would wait for work that is only being recorded, not run"
        " (allocation, synchronization, queries, instantiation)"
    )
    remedy = "do it in a break (bg.break_point, bg.break_here), or before the capture"


class CaptureInvalidated(DriverError):
    """901: an earlier call invalidated this capture; only ending it is possible."""

    why = "an earlier call inside the segment was one that cannot be captured, and the driver gave the capture up"
    remedy = (
        "find the synchronization, allocation, query or host copy between the last break and this point, or the wait on"
        " an event that was recorded before that break, and make it a break, or move it before the capture"
    )


class CaptureMerge(DriverError):
    """902: two independent captures would have been merged; both are invalidated."""

    why = "a stream of one capture waited on an event of another"
    remedy = "keep the streams and events of the two captures apart"


class CaptureUnmatched(DriverError):
    """903: the capture was not begun on this stream."""

    why = "a capture must end on the stream on which it began"
    remedy = "end it on its origin stream"


class CaptureUnjoined(DriverError):
    """904: work forked onto another stream was not joined to the origin before the capture ended."""

    why = "a side stream holds captured work that the origin stream does not wait for"
    remedy = "record an event on the side stream after its last work and let the origin wait for it"


class CaptureIsolation(DriverError):
    """905: the capture would depend on work outside it."""

    why = "a captured stream waited on an event that was recorded outside the capture"
    remedy = (
        "wait before the capture begins or in a break; the capture scope already waits for your current stream."
        " A stream that was forked before a break is part of the next segment if it is in capture(aux_streams=[...])"
    )


class CaptureImplicit(DriverError):
    """906: a call on the legacy default stream would have implicitly joined a blocking stream's capture."""

    why = "the legacy default stream synchronizes with every blocking stream, and one of those is capturing"
    remedy = "capture on a non-blocking stream, or keep work off the default stream"


class CapturedEvent(DriverError):
    """907: an event recorded inside a live capture was queried or synchronized."""

    why = "the event marks a place in a graph that has not run, so there is nothing to wait for"
    remedy = "query it in a break after recording it there, or use an event recorded outside the capture"


class CaptureWrongThread(DriverError):
    """908: the capture was ended by a thread other than the one that began it."""

    why = "a thread-local or global capture belongs to the thread that began it"
    remedy = "close the capture scope in the thread that opened it"


class ExecUpdateRefused(DriverError):
    """910: an exec cannot take the parameters of a graph; it is as it was."""

    why = "the graphs differ in their nodes' types, their edges, or something that an exec cannot change"
    remedy = "instantiate the graph on its own"


_BY_CODE: dict[int, type[DriverError]] = {
    2: OutOfMemory,
    900: CaptureUnsupported,
    901: CaptureInvalidated,
    902: CaptureMerge,
    903: CaptureUnmatched,
    904: CaptureUnjoined,
    905: CaptureIsolation,
    906: CaptureImplicit,
    907: CapturedEvent,
    908: CaptureWrongThread,
    910: ExecUpdateRefused,
}


def driver_error(code: int, call: str, name: str = "") -> DriverError:
    """The typed error of a result code; a code this version has never heard of is a plain `DriverError`."""
    return _BY_CODE.get(code, DriverError)(name or f"CUDA_ERROR_{code}", code, call)


class Unrecorded(BreakgraphError):
    """The simulator was asked something that neither a record nor a rule of the driver answers (S1)."""

    remedy = "ask a real driver (probes/legality.py), then teach the simulator its answer"


# --- what the library refuses ---------------------------------------------------------------------------


class CaptureStateError(BreakgraphError):
    """A capture or a graph was used in a state that does not allow it (E2)."""


class InputMoved(BreakgraphError):
    """An input of a graphed function that was declared static is not where it was at capture."""

    why = "a static input is not copied: the graph reads the address that it has baked"
    remedy = (
        "write the new values into the array that was captured, leave it out of static=, or reset() and capture anew"
    )


class CaptureFailed(BreakgraphError):
    """The capture scope could not yield a whole graph (E3). ``__cause__`` is the first thing that went wrong."""


class AliasedDestination(BreakgraphError):
    """Two breaks of one capture would land in overlapping bytes of one live allocation (C16)."""


class ShapeMismatch(BreakgraphError):
    """A break's result does not fit the shape of its destination (C15)."""


class DTypeMismatch(BreakgraphError):
    """A break's result has another dtype than its destination (C15)."""


class NotCopyable(BreakgraphError):
    """A break's result has no way into its destination (C14)."""


class ReplayDiffers(BreakgraphError):
    """A replay gave other values than the forward run eagerly; see `BreakableGraph.verify`."""
