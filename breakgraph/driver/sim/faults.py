"""S5: making a driver call fail, by name and occurrence."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from breakgraph.driver.sim.results import Refuse

__all__ = ["FaultPlan", "Faults"]


class Faults:
    """The plans in force. Asked at every call, so it costs next to nothing when there are none."""

    def __init__(self) -> None:
        self.plans: list[FaultPlan] = []

    def plan(self, call: str, at: int, code: int) -> FaultPlan:
        """A plan that is in force inside its ``with`` block."""
        return FaultPlan(self.plans, call, at, code)

    def strike(self, call: str) -> None:
        """Refuse the call if a plan says so. Every plan counts it, whether or not another one struck."""
        struck = [plan for plan in self.plans if plan.counts(call)]
        if struck:
            raise Refuse(struck[0].code, "the test asked for this call to fail (driver.fail)")


class FaultPlan:
    """Inside the block, occurrence ``at`` of ``call`` answers ``code`` and does nothing else.

    ``struck`` tells whether it came to that.
    """

    def __init__(self, plans: list[FaultPlan], call: str, at: int, code: int) -> None:
        self._plans = plans
        self.call = call
        self.at = at
        self.code = code
        self.seen = 0

    @property
    def struck(self) -> bool:
        return self.seen >= self.at

    def counts(self, call: str) -> bool:
        """Count an occurrence; whether it is the one to fail."""
        if call != self.call:
            return False
        self.seen += 1
        return self.seen == self.at

    def __enter__(self) -> Self:
        self.seen = 0
        self._plans.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._plans.remove(self)
