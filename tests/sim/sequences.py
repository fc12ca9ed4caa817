"""The sequences of capture_sequences, as functions from a fresh world to what was answered."""

from __future__ import annotations

from collections.abc import Callable

from breakgraph.driver.api import STREAM_LEGACY, STREAM_PER_THREAD, CaptureMode, StreamFlag

from .world import SUCCESS, World, answer

Answers = dict[str, object]
Sequence = Callable[[World], Answers]

_AROUND = "thread_local capture, relaxed exchange around: "
_ANOTHER = "thread_local capture, another thread: "
_SAME = "thread_local capture, same thread: "


def _open(w: World) -> None:
    w.begin()
    w.add_node()


def _closing(w: World, result: str) -> Answers:
    return {"result": result, "origin_status_after": w.status(), "end_capture": w.end()[0]}


# forks ----------------------------------------------------------------------------------------------------
def _forked(w: World) -> Answers:
    _open(w)
    w.driver.event_record(w.event, w.stream)
    result = answer(lambda: w.driver.stream_wait_event(w.other, w.event))
    side = w.status(w.other)
    w.end()
    return {"result": result, "side_status": side}


def _end_on_the_fork(w: World) -> Answers:
    _open(w)
    w.fork(w.other)
    result = answer(lambda: w.driver.stream_end_capture(w.other))
    after = w.status()
    return {
        "result": result,
        "origin_status_after": after,
        "origin_end_capture": w.end()[0],
        "origin_status_at_last": w.status(),
    }


def _unjoined(w: World) -> Answers:
    _open(w)
    w.fork(w.other)
    w.add_node(w.other)
    result, graph = w.end()
    return {
        "end_capture": result,
        "graph_returned": graph != 0,
        "origin_status_after": w.status(),
        "side_status_after": w.status(w.other),
    }


def _empty_fork(w: World) -> Answers:
    _open(w)
    w.fork(w.other)
    result, graph = w.end()
    return {"end_capture": result, "graph_returned": graph != 0, "side_status_after": w.status(w.other)}


def _work_after_the_join(w: World) -> Answers:
    _open(w)
    w.fork(w.other)
    w.add_node(w.other)
    w.join(w.other)
    w.add_node(w.other)
    result, graph = w.end()
    return {"end_capture": result, "graph_returned": graph != 0}


def _begin_on_the_fork(w: World) -> Answers:
    _open(w)
    w.fork(w.other)
    return _closing(w, answer(lambda: w.begin(stream=w.other)))


def _drawn_into_the_callers(w: World) -> Answers:
    _open(w)
    w.fork(w.other)
    result = answer(lambda: w.begin(stream=w.other))
    assert w.end()[0] == SUCCESS
    return {"result": result}


# events ---------------------------------------------------------------------------------------------------
def _live_event(ask: Callable[[World], object]) -> Sequence:
    def sequence(w: World) -> Answers:
        _open(w)
        w.driver.event_record(w.event, w.stream)
        return _closing(w, answer(lambda: ask(w)))

    return sequence


def _ended_event(ask: Callable[[World], object]) -> Sequence:
    def sequence(w: World) -> Answers:
        _open(w)
        w.driver.event_record(w.event, w.stream)
        w.end()
        return {"result": answer(lambda: ask(w))}

    return sequence


def _event_of_the_previous_capture(w: World) -> Answers:
    _open(w)
    w.driver.event_record(w.event, w.stream)
    w.end()
    w.begin()
    return _closing(w, answer(lambda: w.driver.stream_wait_event(w.stream, w.event)))


def _waits(event: Callable[[World], int], flags: int = 0) -> Sequence:
    def sequence(w: World) -> Answers:
        _open(w)
        return _closing(w, answer(lambda: w.driver.stream_wait_event(w.stream, event(w), flags)))

    return sequence


def _merge(w: World) -> Answers:
    _open(w)
    w.driver.event_record(w.event, w.stream)
    w.begin(stream=w.other)
    result = answer(lambda: w.driver.stream_wait_event(w.other, w.event))
    statuses = w.status(), w.status(w.other)
    return {
        "result": result,
        "origin_status_after": statuses[0],
        "other_status_after": statuses[1],
        "end_capture": w.end()[0],
        "other_end_capture": w.end(w.other)[0],
    }


# beginning and ending -------------------------------------------------------------------------------------
def _ended_elsewhere(w: World) -> Answers:
    _open(w)
    result = w.elsewhere(w.end)[0]
    return {"result": result, "origin_status_after": w.status(), "end_capture": w.end()[0]}


def _relaxed_ended_elsewhere(w: World) -> Answers:
    w.begin(CaptureMode.RELAXED)
    return {"result": w.elsewhere(w.end)[0], "origin_status_after": w.status()}


def _begins_on(handle: int) -> Sequence:
    return lambda w: {"result": answer(lambda: w.begin(stream=handle) if handle else _begin_zero(w))}


def _begin_zero(w: World) -> None:
    w.driver.stream_begin_capture(0, CaptureMode.THREAD_LOCAL)


def _per_thread(w: World) -> Answers:
    result = answer(lambda: w.begin(stream=STREAM_PER_THREAD))
    return {"result": result, "end_capture": w.end(STREAM_PER_THREAD)[0]}


def _work_on_invalidated(w: World) -> Answers:
    _open(w)
    assert answer(lambda: w.driver.stream_synchronize(w.stream)) != SUCCESS
    closed = _closing(w, answer(w.add_node))
    after = answer(lambda: w.driver.stream_synchronize(w.stream))
    return {**closed, "origin_status_at_last": w.status(), "synchronize_after": after}


def _empty(w: World) -> Answers:
    w.begin()
    result, graph = w.end()
    return {"end_capture": result, "graph_returned": graph != 0}


def _legacy_status(flags: StreamFlag) -> Sequence:
    def sequence(w: World) -> Answers:
        w.stream = w.driver.stream_create(flags)
        _open(w)
        return _closing(w, answer(lambda: w.driver.stream_is_capturing(STREAM_LEGACY)))

    return sequence


# guards and threads ---------------------------------------------------------------------------------------
def _around(ask: Callable[[World], object]) -> Sequence:
    def sequence(w: World) -> Answers:
        _open(w)
        return _closing(w, w.relaxed(lambda: ask(w)))

    return sequence


def _another(ask: Callable[[World], object]) -> Sequence:
    def sequence(w: World) -> Answers:
        _open(w)
        return _closing(w, w.elsewhere(lambda: answer(lambda: ask(w))))

    return sequence


def _same(ask: Callable[[World], object]) -> Sequence:
    def sequence(w: World) -> Answers:
        _open(w)
        return _closing(w, answer(lambda: ask(w)))

    return sequence


def _mapped(ask: Callable[[World, int], object]) -> Sequence:
    def sequence(w: World) -> Answers:
        handle = w.driver.mem_create(2 << 20, 0)
        w.driver.mem_map(w.reserved, 2 << 20, handle)
        return _same(lambda w: ask(w, handle))(w)

    return sequence


def _left_allocation(w: World) -> Answers:
    w.begin()
    w.driver.mem_alloc_async(64, w.stream)
    made = w.driver.graph_instantiate(w.end()[1])
    launches = [answer(lambda: w.driver.graph_launch(made, w.stream)) for _ in range(2)]
    return {"results": [SUCCESS, *launches]}


SEQUENCES: dict[str, Sequence] = {
    "fork: side stream waits on an event recorded in the capture": _forked,
    "end capture on the forked stream": _end_on_the_fork,
    "origin ends with unjoined side work": _unjoined,
    "origin ends, side stream forked but holds no node of its own": _empty_fork,
    "side work added after its join, then origin ends": _work_after_the_join,
    "begin capture on the forked stream": _begin_on_the_fork,
    "event query on an event recorded in the live capture": _live_event(lambda w: w.driver.event_query(w.event)),
    "event synchronize on an event recorded in the live capture": _live_event(
        lambda w: w.driver.event_synchronize(w.event)
    ),
    "after end: idle stream waits on an event last recorded in the ended capture": _ended_event(
        lambda w: w.driver.stream_wait_event(w.other, w.event)
    ),
    "after end: query of that event": _ended_event(lambda w: w.driver.event_query(w.event)),
    "after end: synchronize of that event": _ended_event(lambda w: w.driver.event_synchronize(w.event)),
    "next capture on the same stream waits on an event last recorded in the previous one": (
        _event_of_the_previous_capture
    ),
    "capturing stream waits on an event recorded outside any capture": _waits(lambda w: w.before),
    "capturing stream waits on a never-recorded event": _waits(lambda w: w.event),
    "capturing stream waits with the external flag on an event recorded outside": _waits(lambda w: w.before, 1),
    "second capture waits on an event of the first (merge)": _merge,
    "end capture on a stream that is not capturing": lambda w: {"result": w.end()[0]},
    "end capture from another thread, thread_local": _ended_elsewhere,
    "end capture from another thread, relaxed": _relaxed_ended_elsewhere,
    "begin capture on handle 0": _begins_on(0),
    "begin capture on the legacy handle 1": _begins_on(STREAM_LEGACY),
    "begin and end capture on the per-thread handle 2": _per_thread,
    "work submitted to an invalidated stream": _work_on_invalidated,
    "empty capture": _empty,
    "status query of the legacy stream while a blocking stream captures": _legacy_status(StreamFlag.DEFAULT),
    "status query of the legacy stream while a non-blocking stream captures": _legacy_status(StreamFlag.NON_BLOCKING),
    "work on the capturing stream from another thread": _another(lambda w: w.add_node()),
    "caller's stream is capturing; our idle stream waits on its event; begin on ours": _drawn_into_the_callers,
    f"{_AROUND}exec destroy": _around(lambda w: w.driver.graph_exec_destroy(w.exec)),
    f"{_AROUND}instantiate": _around(lambda w: w.driver.graph_instantiate(w.unlaunched)),
    f"{_AROUND}stream synchronize of another stream": _around(lambda w: w.driver.stream_synchronize(w.other)),
    f"{_AROUND}event query of a pre-capture event": _around(lambda w: w.driver.event_query(w.before)),
    f"{_AROUND}memory pool trim": _around(lambda w: w.driver.mem_pool_trim_to(w.pool, 0)),
    f"{_AROUND}mem alloc": _around(lambda w: w.driver.mem_alloc(64)),
    f"{_AROUND}mem free": _around(lambda w: w.driver.mem_free(w.spare)),
    f"{_AROUND}stream query of the capturing stream": _around(lambda w: w.driver.stream_query(w.stream)),
    f"{_AROUND}context synchronize": _around(lambda w: w.driver.ctx_synchronize()),
    f"{_ANOTHER}instantiate": _another(lambda w: w.driver.graph_instantiate(w.unlaunched)),
    f"{_ANOTHER}exec destroy": _another(lambda w: w.driver.graph_exec_destroy(w.exec)),
    f"{_ANOTHER}exec update": _another(lambda w: w.driver.graph_exec_update(w.exec, w.unlaunched)),
    f"{_ANOTHER}launch on another stream": _another(lambda w: w.driver.graph_launch(w.exec, w.other)),
    f"{_ANOTHER}mem alloc": _another(lambda w: w.driver.mem_alloc(64)),
    f"{_ANOTHER}mem free": _another(lambda w: w.driver.mem_free(w.spare)),
    f"{_SAME}exec update": _same(lambda w: w.driver.graph_exec_update(w.exec, w.unlaunched)),
    f"{_SAME}stream get priority": _same(lambda w: w.driver.stream_get_priority(w.stream)),
    f"{_SAME}context get id": _same(lambda w: w.driver.ctx_get_id(w.context)),
    f"{_SAME}mem unmap": _mapped(lambda w, handle: w.driver.mem_unmap(w.reserved, 2 << 20)),
    f"{_SAME}mem release": _mapped(lambda w, handle: w.driver.mem_release(handle)),
    "stream-ordered allocation left in a captured graph: instantiate, launch, launch again": _left_allocation,
}
