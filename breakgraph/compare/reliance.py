"""What in breakgraph rests on an answer of a driver, by question. Numbers are those of docs/contract.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

from breakgraph.compare.records import Question

__all__ = ["RELIANCE", "Reliance", "rests_on"]

_CAPTURE = ("capture-legality", "capture-cases", "capture-sequences")


@dataclass(frozen=True)
class Reliance:
    """What rests on the questions of some kinds of record whose text has a pattern: a contract, or a page."""

    kinds: tuple[str, ...]
    pattern: str
    rule: str
    means: str


def rests_on(kind: str, question: Question) -> Reliance | None:
    """What rests on the answer to a question, if anything does."""
    return next((one for one in RELIANCE if kind in one.kinds and re.search(one.pattern, str(question))), None)


#: The first that fits is meant.
RELIANCE = (
    # where a question was asked
    Reliance(
        _CAPTURE,
        r", (global|relaxed)$",
        "capture(mode=...)",
        "captures in another mode than thread-local, where a program asks for one",
    ),
    Reliance(
        _CAPTURE,
        r"^(?!end capture|cuStreamEnd).*(other_thread|another thread)",
        "docs/streams.md, Threads",
        "what other threads may do while one captures",
    ),
    Reliance(
        ("capture-legality",),
        r", blocking,",
        "C1",
        "captures on a blocking stream that the caller gives: the library's own are non-blocking",
    ),
    # capture begun again, replay
    Reliance(
        ("rebegin",),
        r"^verdict|^question: (segment|break)",
        "C3",
        "a segment ends, a break runs, and capture begins again on the same stream: no forward with a break can be"
        " captured without that",
    ),
    Reliance(
        ("rebegin",),
        r"^question: (write|capture pass|replay)|mismatches$",
        "C23",
        "a replay launches segment, break, segment in order and gives the values of the forward",
    ),
    Reliance(("rebegin",), r"^mode: ", "C1", "captures run in thread-local mode, and it is what it says"),
    Reliance(
        ("rebegin",),
        r"^(setup|control): |^entry point",
        "E1",
        "the calls that every capture makes, by the entry points that the bindings bind",
    ),
    # the library's own calls beside an open capture
    Reliance(
        _CAPTURE,
        r"relaxed exchange around: (instantiate|exec destroy|mem alloc|mem free)|relaxed_guard\(cuMem(Alloc|Free)\)",
        "C8",
        "execs are instantiated and destroyed, and an arena waits for the device, under the relaxed exchange, so that"
        " cleaning up harms no capture",
    ),
    Reliance(
        _CAPTURE,
        r"relaxed exchange around: (stream synchronize|event query|memory pool trim)",
        "C27",
        "a graph that is closed beside an open capture waits for its last replay under the relaxed exchange",
    ),
    Reliance(
        _CAPTURE,
        r"relaxed exchange around: (stream query of the|context)|relaxed_guard\(cuCtxSynchronize\)",
        "C8",
        "the relaxed exchange does not lift this, so an arena frees a plain allocation where it must wait",
    ),
    Reliance(
        _CAPTURE,
        r"^cuGraph(Instantiate|ExecDestroy|Destroy|Upload)|same thread: exec update",
        "C8",
        "which calls on graphs a capture forbids, and so which of the library's need the relaxed exchange",
    ),
    Reliance(
        _CAPTURE,
        r"^cu(Stream|Event)(Create|Destroy)",
        "C8",
        "the library makes and destroys streams and events while captures are open",
    ),
    Reliance(
        _CAPTURE,
        r"^cuModule|^cuFuncGet|^cuPointerGet",
        "C8",
        "kernels are loaded in segments, and garbage collection is off there, since a module that it unloads would"
        " invalidate the capture",
    ),
    Reliance(
        _CAPTURE,
        r"^cuMemCreate|^cuMemAddressReserve|^cuMemMap|same thread: mem (unmap|release)",
        "C29",
        "an arena grows, and gives pages back, inside a thread-local capture",
    ),
    Reliance(
        _CAPTURE,
        r"^cuMemAllocAsync\(capturing\)|^stream-ordered allocation",
        "C29",
        "a segment with an allocation node left in it is refused, since its graph cannot be launched twice",
    ),
    Reliance(
        _CAPTURE,
        r"^cuMem(Alloc|Free|HostAlloc|Pool)",
        "C28",
        "what a segment allocates comes from the arena, because the driver refuses plain allocation there",
    ),
    # beginning and ending
    Reliance(
        _CAPTURE,
        r"^begin capture on the forked|^caller's stream|^cuStreamBeginCapture\((self again|again|other)",
        "C1",
        "a stream is asked whether it captures before anything could be drawn in, and two captures do not meet (C4)",
    ),
    Reliance(
        _CAPTURE,
        r"legacy|handle [012]|per_thread|blocking_other",
        "C1",
        "a capture runs on a non-blocking stream of its own, which work on the default stream does not disturb",
    ),
    Reliance(
        _CAPTURE,
        r"^cuStream(GetCaptureInfo|IsCapturing)|^status query|^cuMemGetInfo|stream get priority|context get id",
        "C11",
        "what the library asks of an open capture does not disturb it",
    ),
    Reliance(
        _CAPTURE,
        r"^cuStreamEndCapture|^end capture|^work submitted to an invalidated",
        "C5",
        "how a capture ends that another thread, a fork or an error has spoiled, and that its stream is free then",
    ),
    Reliance(_CAPTURE, r"^empty capture", "C23", "a segment without work is legal"),
    # forks and events
    Reliance(
        _CAPTURE,
        r"^fork|^origin ends|^side work",
        "C11",
        "work forked onto other streams is joined when the segment ends, and what is left open is found",
    ),
    Reliance(
        _CAPTURE,
        r"^after end|^next capture|\(merge\)",
        "C11",
        "an event does not outlive its segment and captures do not merge, so streams that go on are forked anew",
    ),
    Reliance(
        _CAPTURE,
        r"precapture_event|^capturing stream waits|EXTERNAL",
        "C1",
        "a capture waits for the current streams before it begins, since it could not inside",
    ),
    # what a forward does
    Reliance(
        _CAPTURE,
        r"Synchronize|Query|ElapsedTime|^event (query|synchronize)",
        "E1",
        "waits and queries are refused in a segment and invalidate it: they belong in a break, as the errors say",
    ),
    Reliance(
        _CAPTURE,
        r"^kernel_on|^cuMem(cpy|set)|^cuStream(Write|Wait)Value|^cuGraphLaunch",
        "C3",
        "what a forward may put in a segment, and what in a break alone (a graph is launched in no segment, C24)",
    ),
    # execs and memory
    Reliance(
        ("exec-update",),
        r"^in a capture of|^outside a capture",
        "C11",
        "what the library asks of an open capture does not disturb it, and is true",
    ),
    Reliance(
        ("exec-update",),
        r"^in a (thread-local|global) capture|^beside",
        "C8",
        "an exec is updated while captures are open",
    ),
    Reliance(
        ("exec-update",),
        r"^(?!in a |outside|beside|graph destroyed)",
        "docs/memory.md, Execs that sizes share",
        "segments of one topology share an exec that is updated in place, and one that cannot be gets its own",
    ),
    Reliance(
        ("exec-update",),
        r"^graph destroyed",
        "C27",
        "a graph may be destroyed while an exec that was made from it lives",
    ),
    Reliance(
        ("release",),
        r"^cuMemFree",
        "C30",
        "an arena that gives memory back waits for the device by freeing a plain allocation",
    ),
    Reliance(
        ("release",),
        r"^cuMem(Unmap|Release|AddressFree)",
        "C30",
        "unmapping does not wait for kernels, so an arena has to wait before it",
    ),
    Reliance(
        ("queue",),
        r"",
        "docs/speed.md, When a launch waits",
        "how far a replay lets the host run ahead of the device while it keeps the interpreter lock",
    ),
    Reliance(
        ("cublas",),
        r"",
        "docs/frameworks.md, cupy",
        "matrix products in segments: cuBLAS handles are made under the relaxed exchange, and kept",
    ),
)
