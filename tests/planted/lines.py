"""Forwards with one line that invalidates their capture, marked HERE, each of a kind that people write.

Each is called in a capture scope with the driver and an input, and swallows what is raised, as libraries do: the
driver tells of it where the scope ends, far from the line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import breakgraph as bg
from breakgraph.errors import DriverError

__all__ = ["LINES"]

LINES: dict[str, Callable[[Any, Any], object]] = {}


def planted(function: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    LINES[function.__name__] = function
    return function


def here() -> int:
    return int(bg.current_stream() or 0)


@planted
def a_stream_synchronize(driver: Any, x: Any) -> Any:
    y = x + 1
    with suppress(DriverError):
        driver.stream_synchronize(here())  # HERE
    return y * 2


@planted
def a_synchronize_of_the_context(driver: Any, x: Any) -> Any:
    y = x + 1
    with suppress(DriverError):
        driver.ctx_synchronize()  # HERE
    return y * 2


@planted
def a_stream_query(driver: Any, x: Any) -> Any:
    y = x + 1
    with suppress(DriverError):
        driver.stream_query(here())  # HERE
    return y * 2


@planted
def a_query_of_an_event(driver: Any, x: Any) -> Any:
    event = bg.driver.Event(driver.event_create(), driver.event_destroy)
    y = x + 1
    driver.event_record(event.handle, here())
    with suppress(DriverError):
        driver.event_query(event.handle)  # HERE
    return y, event


@planted
def an_allocation(driver: Any, x: Any) -> Any:
    y = x + 1
    with suppress(DriverError):
        driver.mem_alloc(1024)  # HERE
    return y * 2


@planted
def a_free(driver: Any, x: Any) -> Any:
    with bg.driver.relaxed(driver):
        ptr = driver.mem_alloc(1024)
    y = x + 1
    with suppress(DriverError):
        driver.mem_free(ptr)  # HERE
    with bg.driver.relaxed(driver):
        driver.mem_free(ptr)
    return y * 2


class Buffer:
    """Frees its memory when it is dropped, as a foreign library's would, and keeps quiet about it."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        with bg.driver.relaxed(driver):
            self.ptr = driver.mem_alloc(1024)

    def __del__(self) -> None:
        with suppress(DriverError):
            self._driver.mem_free(self.ptr)
        with bg.driver.relaxed(self._driver), suppress(DriverError):
            self._driver.mem_free(self.ptr)


@planted
def a_destructor(driver: Any, x: Any) -> Any:
    buffer = Buffer(driver)
    y = x + 1
    del buffer  # HERE
    y = y * 2
    return y + 1


@planted
def a_destructor_of_a_local(driver: Any, x: Any) -> Any:
    def attention(a: Any) -> Any:
        scratch = Buffer(driver)
        return a * scratch.ptr

    y = x + 1
    y = attention(y)  # HERE
    return y + 1


a_destructor.within = a_destructor_of_a_local.within = "Buffer.__del__"  # type: ignore[attr-defined]


@planted
def an_instantiation(driver: Any, x: Any) -> Any:
    graph = driver.graph_create()
    y = x + 1
    try:
        with suppress(DriverError):
            driver.graph_instantiate(graph)  # HERE
    finally:
        driver.graph_destroy(graph)
    return y * 2


@planted
def the_end_of_an_exec(driver: Any, x: Any) -> Any:
    graph = driver.graph_create()
    with bg.driver.relaxed(driver):
        graph_exec = driver.graph_instantiate(graph)
    y = x + 1
    with suppress(DriverError):
        driver.graph_exec_destroy(graph_exec)  # HERE
    with bg.driver.relaxed(driver):
        driver.graph_exec_destroy(graph_exec)
        driver.graph_destroy(graph)
    return y * 2


@planted
def an_event_that_spans_a_break(driver: Any, x: Any) -> Any:
    event = bg.driver.Event(driver.event_create(), driver.event_destroy)
    y = x + 1
    driver.event_record(event.handle, here())
    bg.break_graph()
    y = y * 2
    with suppress(DriverError):
        driver.stream_wait_event(here(), event.handle)  # HERE
    return y + 1, event


@planted
def another_thread(driver: Any, x: Any) -> Any:
    context, started, done = driver.ctx_get_current(), threading.Event(), threading.Event()

    def neighbour() -> None:
        driver.ctx_set_current(context)
        started.wait(10)
        with suppress(DriverError):
            driver.ctx_synchronize()
        done.set()

    thread = threading.Thread(target=neighbour, name="neighbour")
    thread.start()
    y = x + 1
    started.set()
    done.wait(10)
    thread.join()
    return y * 2


another_thread.lines = ("started.set()", "done.wait(10)")  # type: ignore[attr-defined]  # whichever runs meanwhile


@planted
def a_comprehension(driver: Any, x: Any) -> Any:
    def part(n: int) -> Any:
        if n == 2:
            with suppress(DriverError):
                driver.mem_alloc(64)  # HERE
        return x + n

    return [part(n) for n in range(4)]


@planted
def an_argument_of_a_break(driver: Any, x: Any) -> Any:
    def measured(a: Any) -> Any:
        with suppress(DriverError):
            driver.stream_synchronize(here())  # HERE
        return a

    y = x + 1
    return bg.break_here(lambda a: a * 2, bg.INFER, measured(y))


@planted
def a_handle_that_closes_quietly(driver: Any, x: Any) -> Any:
    """In the very line that calls a break, by code that nobody traces."""
    graph = driver.graph_create()
    with bg.driver.relaxed(driver):
        graph_exec = driver.graph_instantiate(graph)
    held = bg.driver.Event(graph_exec, driver.graph_exec_destroy)
    try:
        return bg.break_here(lambda a, closed: a * 2, bg.INFER, x + 1, held.close())  # HERE
    finally:
        with bg.driver.relaxed(driver):
            driver.graph_exec_destroy(graph_exec)
            driver.graph_destroy(graph)


@planted
def the_last_line(driver: Any, x: Any) -> Any:
    x + 1
    return suppress_all(lambda: driver.mem_alloc(64))  # HERE


the_last_line.within = "<lambda>"  # type: ignore[attr-defined]


def suppress_all(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DriverError:
        return None
