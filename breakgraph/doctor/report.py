"""The doctor's report: as text for a person and a bug report, as JSON for a program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from breakgraph.doctor.collect import PACKAGES
from breakgraph.doctor.facts import STEPS, Facts, Gpu, Nvidia, Trial
from breakgraph.doctor.finding import Finding

__all__ = ["SCHEMA", "as_json", "as_text"]

SCHEMA = 1  # of the JSON; a name in it is never given another meaning without a new number

_STEPS = {"driver": "take the driver", "bare": "capture, driver calls alone", "arrays": "capture, with arrays"}


def as_json(facts: Facts, findings: Sequence[Finding]) -> str:
    """One object: ``schema``, ``works``, ``findings``, and the facts as `breakgraph.doctor.facts.Facts` names them."""
    told = {"schema": SCHEMA, "works": facts.trial.works, "findings": list(map(asdict, findings)), **asdict(facts)}
    return _without_home(json.dumps(told, indent=1))


def as_text(facts: Facts, findings: Sequence[Finding]) -> str:
    """Sections that a person reads, the verdict last."""
    sections = {
        "": _machine(facts),
        "Packages": _packages(facts),
        "NVIDIA": _nvidia(facts.nvidia),
        "Environment": _environment(facts),
        "Self-test": _trials(facts),
        "Findings": _findings(findings),
    }
    lines = [line for title, section in sections.items() for line in _section(title, section)]
    return _without_home("\n".join([*lines, _verdict(facts, findings)]))


def _machine(facts: Facts) -> Iterator[tuple[str, str]]:
    source, python, system = facts.source, facts.python, facts.system
    commit = f", commit {source.commit}{' with changes' if source.dirty else ''}" if source.commit else ""
    installed = "a checkout that is not installed" if source.installed == "no" else f"installed: {source.installed}"
    yield "breakgraph", f"{source.version} in {source.location} ({installed}{commit})"
    yield "Python", f"{python.version}{' free-threaded' if python.free_threaded else ''}, {python.executable}"
    container = ", in a container" if system.container else ""
    yield "system", f"{system.name} {system.release}, {system.machine}, {system.libc or 'unknown libc'}{container}"


def _packages(facts: Facts) -> Iterator[tuple[str, str]]:
    for name, version in facts.packages.items():
        built = {None: "", "": ", built without CUDA"}.get(facts.torch_cuda, f", built for CUDA {facts.torch_cuda}")
        yield name, version + (built if name == "torch" else "")
    for module, error in facts.imports.items():
        if error:
            yield f"import {module}", error
    yield "not installed", ", ".join(name for name in ("cupy", *PACKAGES) if not _has(facts, name)) or "nothing"


def _has(facts: Facts, name: str) -> bool:
    return bool(facts.cupys) if name == "cupy" else name in facts.packages


def _nvidia(nvidia: Nvidia) -> Iterator[tuple[str, str]]:
    yield "kernel module", nvidia.kernel_module or "not told"
    yield "device files", ", ".join(nvidia.devices) or "none"
    if nvidia.library_error:
        yield "libcuda", nvidia.library_error
    else:
        offers = f"CUDA {_cuda(nvidia.cuda)}" if nvidia.cuda else "no version told"
        yield "libcuda", f"{offers}, {nvidia.library or 'path not told'}"
    if nvidia.init is not None:
        yield "cuInit", f"{nvidia.init_name} ({nvidia.init})"
    yield from _gpus("GPU", nvidia.gpus)
    yield from _gpus("CUDA device", nvidia.visible)
    if not nvidia.visible:
        yield "CUDA devices", "none"
    if nvidia.ended:
        yield "asking", f"the process {nvidia.ended}"


def _gpus(label: str, gpus: Iterable[Gpu]) -> Iterator[tuple[str, str]]:
    for index, gpu in enumerate(gpus):
        parts = [
            gpu.name,
            gpu.capability and f"compute capability {gpu.capability}",
            None if gpu.memory is None else _gib(gpu.memory),
            None if gpu.free is None else f"{_gib(gpu.free)} free",
            gpu.compute_mode and f"compute mode {gpu.compute_mode}",
            None if gpu.mig is None else f"MIG {'on' if gpu.mig else 'off'}",
        ]
        yield f"{label} {index}", ", ".join(filter(None, parts))


def _environment(facts: Facts) -> Iterator[tuple[str, str]]:
    for name, value in facts.environment.items():
        yield "", f"{name}={value}"
    if not facts.environment:
        yield "", "no variable that matters here is set"


def _trials(facts: Facts) -> Iterator[tuple[str, str]]:
    yield from _trial(facts.trial)
    if facts.simulator:
        yield from _trial(facts.simulator)


def _trial(trial: Trial) -> Iterator[tuple[str, str]]:
    can = {None: "", True: ", it can capture", False: ", it cannot capture"}[trial.can_capture]
    yield "driver", f"{trial.driver}: {trial.chosen_by}{can}"
    for step in STEPS:
        outcome = trial.steps.get(step)
        if outcome is None:
            yield _STEPS[step], "not reached"
        else:
            yield _STEPS[step], outcome.state + (f": {outcome.what}" if outcome.what else "")
    if trial.ended:
        yield "the process", trial.ended


def _findings(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    for finding in findings:
        yield finding.severity, f"{finding.what} [{finding.code}]"
        yield "  why", finding.why
        yield "  do", finding.remedy
    if not findings:
        yield "", "nothing"


def _verdict(facts: Facts, findings: Sequence[Finding]) -> str:
    if facts.trial.works:
        return f"Captures work here, on the {facts.trial.driver} driver."
    beside = "; the simulator works (BREAKGRAPH_DRIVER=sim)" if facts.simulator and facts.simulator.works else ""
    return f"Captures do not work here: {findings[0].what}{beside}."


def _section(title: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    if title:
        yield title
    told = list(pairs)
    width = max(len(label) for label, _ in told)
    for label, text in told:
        yield f"  {label:<{width}}  {text}" if label else f"  {text}"
    yield ""


def _cuda(version: int) -> str:
    """13000 as 13.0."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _without_home(text: str) -> str:
    """The home directory names its owner, and a report is for the public."""
    home = str(Path.home())
    return text if home == "/" else re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
