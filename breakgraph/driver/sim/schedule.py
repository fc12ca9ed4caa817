"""S3: when operations run. A schedule chooses among the orders that streams, events and edges allow."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Literal, Protocol

from breakgraph.driver.sim.contexts import Loss
from breakgraph.driver.sim.memory import Fault
from breakgraph.driver.sim.operations import Operation
from breakgraph.driver.sim.results import Result

__all__ = ["Engine", "ScheduleName"]

ScheduleName = Literal["fifo", "lazy", "random"]

_FULL = 4096  # operations enqueued; as on a device whose launch queue is full, the oldest then run


class Engine:
    """The operations that are enqueued and have not run, in the order of their submission."""

    def __init__(self, schedule: ScheduleName, seed: int) -> None:
        if schedule not in _SCHEDULES:
            raise ValueError(f"schedule is one of {', '.join(_SCHEDULES)}, not {schedule!r}")
        self.pending: dict[Operation, None] = {}
        self.ready: dict[Operation, None] = {}
        self._schedule: _Schedule = _SCHEDULES[schedule](seed)

    def submit(self, operation: Operation) -> None:
        """Enqueue. Whether anything runs now is the schedule's choice."""
        self.pending[operation] = None
        if operation.context.loss is not None:
            self._done(operation)
            return
        if not operation.blockers:
            self.ready[operation] = None
        self._schedule.submitted(self)
        if len(self.pending) > _FULL:
            self.finish([next(iter(self.pending))])

    def finish(self, wanted: Iterable[Operation]) -> None:
        """Run until all of ``wanted`` are done."""
        for operation in wanted:
            if not operation.done:
                self._schedule.finish(self, operation)

    def advance(self, wanted: Iterable[Operation]) -> bool:
        """Whether all are done; if not, one operation on the way there runs, so that polling comes to an end."""
        for operation in wanted:
            if not operation.done:
                self.run(_next_towards(operation))
                return False
        return True

    def of_context(self, context: object) -> list[Operation]:
        """What is enqueued in a context."""
        return [operation for operation in self.pending if operation.context is context]

    def run(self, operation: Operation) -> None:
        """Run one operation that depends on nothing any more. A fault loses its context (700 or 719)."""
        del self.ready[operation]
        try:
            operation.work.run()
        except Fault as fault:
            self._lose(operation, Loss(Result.ILLEGAL_ADDRESS, f"{operation.work.name}: {fault}"))
        except Exception as error:
            why = f"{operation.work.name} raised {type(error).__name__}: {error}"
            self._lose(operation, Loss(Result.LAUNCH_FAILED, why, error))
        except BaseException:  # an interrupt is not the operation's: it may still run
            self.ready[operation] = None
            raise
        self._done(operation)

    def drop(self, context: object) -> None:
        """Forget what is enqueued in a context that is gone."""
        for operation in self.of_context(context):
            self.ready.pop(operation, None)
            self._done(operation)

    def _lose(self, operation: Operation, loss: Loss) -> None:
        operation.context.loss = loss
        self.drop(operation.context)

    def _done(self, operation: Operation) -> None:
        if operation.done:
            return
        operation.done = True
        del self.pending[operation]
        operation.forget()
        for follower in operation.followers:
            follower.blockers -= 1
            if not follower.blockers and not follower.done:
                self.ready[follower] = None
        operation.followers.clear()


class _Schedule(Protocol):
    def submitted(self, engine: Engine) -> None: ...
    def finish(self, engine: Engine, operation: Operation) -> None: ...


class _Fifo:
    """Everything runs as soon as it is enqueued, in that order."""

    def __init__(self, seed: int) -> None: ...

    def submitted(self, engine: Engine) -> None:
        while engine.ready:
            engine.run(next(iter(engine.ready)))

    def finish(self, engine: Engine, operation: Operation) -> None:
        while not operation.done:
            self.submitted(engine)


class _Lazy:
    """Nothing runs before something waits for it, and then only what it depends on."""

    def __init__(self, seed: int) -> None: ...

    def submitted(self, engine: Engine) -> None: ...

    def finish(self, engine: Engine, operation: Operation) -> None:
        path = [operation]
        while path:
            last = path[-1]
            if last.done:
                path.pop()
            elif last.blockers:
                path.append(_open_dependency(last))
            else:
                engine.run(last)


class _Random:
    """Any order that is allowed, each with some probability, the same one for the same seed.

    Streams have priorities that are drawn again now and then, so that one stream may run far ahead of
    another: the order that a missing wait needs to show is not a rare one.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._priority: dict[int, float] = {}

    def submitted(self, engine: Engine) -> None:
        while engine.ready and self._random.random() < 0.4:
            engine.run(self._pick(engine))

    def finish(self, engine: Engine, operation: Operation) -> None:
        while not operation.done:
            engine.run(self._pick(engine))
        self.submitted(engine)

    def _pick(self, engine: Engine) -> Operation:
        ready = list(engine.ready)
        if len(ready) == 1:
            return ready[0]
        draw = self._random.random
        if draw() < 0.2:
            return ready[self._random.randrange(len(ready))]
        if draw() < 0.1 or len(self._priority) > 1000:
            self._priority.clear()
        for operation in ready:
            if operation.lane not in self._priority:
                self._priority[operation.lane] = draw()
        highest = max(self._priority[operation.lane] for operation in ready)
        first = [operation for operation in ready if self._priority[operation.lane] == highest]
        return first[self._random.randrange(len(first))]


_SCHEDULES: dict[str, type[_Fifo | _Lazy | _Random]] = {"fifo": _Fifo, "lazy": _Lazy, "random": _Random}


def _open_dependency(operation: Operation) -> Operation:
    # The latest one first: among branches that nothing orders, not the order of submission.
    return next(one for one in reversed(operation.dependencies) if not one.done)


def _next_towards(operation: Operation) -> Operation:
    while operation.blockers:
        operation = _open_dependency(operation)
    return operation
