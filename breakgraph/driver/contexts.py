"""Making a context current for a while, and putting back what was found (C31)."""

from __future__ import annotations

from breakgraph.driver.api import Driver

__all__ = ["in_context", "restore_context"]


class in_context:  # noqa: N801 - used as a guard: with in_context(driver, context): ...
    """Make a context current inside the block. What was current before is so again after it, whatever the block did."""

    __slots__ = ("_before", "_context", "_driver", "_pushed")

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver, self._context = driver, context
        self._before, self._pushed = 0, False

    def __enter__(self) -> None:
        self._before = self._driver.ctx_get_current()
        if self._before != self._context:
            self._driver.ctx_push_current(self._context)
            self._pushed = True

    def __exit__(self, *_: object) -> None:
        restore_context(self._driver, self._context)
        if self._pushed:
            self._driver.ctx_pop_current()


def restore_context(driver: Driver, context: int) -> None:
    """Make ``context`` the thread's current one again, after a body that pushed others or put one in its place."""
    above: list[int] = []
    while (current := driver.ctx_get_current()) not in (context, 0):
        above.append(driver.ctx_pop_current())
    if current == context:
        return
    for other in reversed(above[1:]):  # it was replaced, not covered: the rest of the stack stays as it was
        driver.ctx_push_current(other)
    driver.ctx_push_current(context)
