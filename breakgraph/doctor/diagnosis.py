"""What is wrong with a machine, worst first."""

from __future__ import annotations

from breakgraph.doctor import causes
from breakgraph.doctor.cautions import CAUTIONS
from breakgraph.doctor.facts import Facts
from breakgraph.doctor.finding import Finding

__all__ = ["diagnose"]

_WORST_FIRST = ("error", "warning", "note")


def diagnose(facts: Facts) -> list[Finding]:
    """What the checks find. There is an error exactly where the trial did not work."""
    checks = list(CAUTIONS)
    if not facts.trial.works:
        checks += causes.ANY_DRIVER + (causes.CUDA if facts.trial.driver == "cuda" else ())
    found = [finding for check in checks if (finding := check(facts))]
    if not facts.trial.works and all(finding.severity != "error" for finding in found):
        found.append(causes.last_resort(facts))
    return sorted(found, key=lambda finding: _WORST_FIRST.index(finding.severity))
