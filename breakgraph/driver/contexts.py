"""Making a context current for a while, and putting back what was found (C31)."""

from __future__ import annotations

from breakgraph.driver.api import Driver

__all__ = ["in_context", "restore_context"]


class in_context:  # noqa: N801 - used as a guard: with in_context(driver, context): ...
    """Make a context current inside the block. What was current before is so again after it, whatever the block did."""

    __slots__ = ("_before", "_context", "_driver")

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver, self._context = driver, context
        self._before = 0

    def __enter__(self) -> None:
        self._before = self._driver.ctx_get_current()
        if self._before != self._context:
            self._driver.ctx_push_current(self._context)

    def __exit__(self, *_: object) -> None:
        if self._before != self._context and self._driver.ctx_get_current() == self._before:
            self._settle()
        else:
            restore_context(self._driver, self._before)

    def _settle(self) -> None:
        """The block left the caller's context on top of ours, or popped ours: what lies below tells which."""
        driver = self._driver
        driver.ctx_pop_current()
        if driver.ctx_get_current() == self._context:
            driver.ctx_pop_current()
            if driver.ctx_get_current() == self._before:
                return
            driver.ctx_push_current(self._context)  # that was the caller's own
        if driver.ctx_get_current() != self._before:
            driver.ctx_push_current(self._before)


def restore_context(driver: Driver, context: int) -> None:
    """Make ``context`` the thread's current one again (0: none), after a body that pushed others or replaced it.

    Contexts that lie above it on the thread's stack are popped. Where it is not on the stack it was replaced, or
    popped; what is below stays.
    """
    above: list[int] = []
    while (current := driver.ctx_get_current()) not in (context, 0):
        above.append(driver.ctx_pop_current())
    if current == context:
        return
    for other in reversed(above[1:]):
        driver.ctx_push_current(other)
    driver.ctx_push_current(context)
