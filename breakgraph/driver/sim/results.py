"""Result codes under CUDA's own names, and the one way in which the simulator refuses a call."""

from __future__ import annotations

import enum

__all__ = ["Refuse", "Result", "result_name"]


class Result(enum.IntEnum):
    """The CUresult values that the simulator answers."""

    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    INVALID_DEVICE = 101
    INVALID_CONTEXT = 201
    INVALID_HANDLE = 400
    ILLEGAL_STATE = 401
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    CONTEXT_IS_DESTROYED = 709
    LAUNCH_FAILED = 719
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901
    STREAM_CAPTURE_MERGE = 902
    STREAM_CAPTURE_UNMATCHED = 903
    STREAM_CAPTURE_UNJOINED = 904
    STREAM_CAPTURE_ISOLATION = 905
    STREAM_CAPTURE_IMPLICIT = 906
    CAPTURED_EVENT = 907
    STREAM_CAPTURE_WRONG_THREAD = 908
    GRAPH_EXEC_UPDATE_FAILURE = 910


class Refuse(Exception):
    """The call answers ``code``. The call's frame turns it into the typed error with the call's name."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(code, why)
        self.code = code
        self.why = why


def result_name(code: int) -> str:
    """CUDA's name of a result code; a made-up one for a code that the simulator never answers by itself."""
    try:
        return f"CUDA_ERROR_{Result(code).name}"
    except ValueError:
        return f"CUDA_ERROR_{code}"
