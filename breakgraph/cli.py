"""The ``breakgraph`` command: the demo, the doctor, the probes, the view of a graph.

It needs nothing but the base install, except for ``demo``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import breakgraph as bg
from breakgraph.inspect.page import page
from breakgraph.inspect.report import report
from breakgraph.inspect.schema import load

__all__ = ["choose_driver", "main"]

PROBES = ("rebegin", "legality", "release", "exec_update", "queue", "cublas")

_DEMO_NEEDS = {"sklearn": "scikit-learn", "rich": "rich"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: the process's own).

    Returns the exit status: 0 for success, 1 where a demo or a probe found what it should not, 2 where it
    could not be asked.
    """
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except bg.errors.BreakgraphError as error:
        print(f"breakgraph: {error}", file=sys.stderr)
        return 2


def choose_driver(asked: str | None) -> None:
    """Make the driver asked for current: by option, else by ``BREAKGRAPH_DRIVER``, else CUDA where it can be had.

    Only here is the simulator chosen without being asked for, and then that is printed.
    """
    name = asked or os.environ.get("BREAKGRAPH_DRIVER")
    if name:
        bg.driver.use(name)  # type: ignore[arg-type]  # another name is refused by it
    else:
        try:
            bg.driver.use("cuda")
            bg.driver.current().synchronize()
        except bg.errors.DriverNotFound as error:
            print(f"{error.what}: running on the simulated driver.")
            bg.driver.use("sim")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="breakgraph", description="CUDA graph segments with eager breaks.")
    parser.add_argument("--version", action="version", version=f"breakgraph {bg.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="capture a small digit classifier, replay it, compare with eager")
    demo.add_argument("--driver", choices=["cuda", "sim"], help="default: cuda where there is a GPU, else sim")
    demo.add_argument("--json", metavar="FILE", type=Path, help="also write a record of the run")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="what is installed, whether captures work here, and what to mend")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)

    view = commands.add_parser("view", help="show a graph that graph.save_trace(FILE) has written")
    view.add_argument("file", metavar="FILE.json", type=Path)
    view.add_argument("-o", "--output", metavar="FILE.html", type=Path, help="write a page instead of a report")
    view.set_defaults(run=_view)

    probe = commands.add_parser("probe", help="ask the driver of this machine one question, or compare two records")
    probe.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "NOW"), help="say what changed; ask nothing")
    probe.add_argument("--json", action="store_true", help="of --compare: as JSON")
    probe.add_argument("name", nargs="?", choices=PROBES, metavar="PROBE", help=", ".join(PROBES))
    probe.add_argument("arguments", nargs=argparse.REMAINDER, help="handed to the probe; try --help")
    probe.set_defaults(run=_probe, parser=probe)
    return parser


def _demo(options: argparse.Namespace) -> int:
    missing = [name for module, name in _DEMO_NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise bg.errors.BreakgraphError(
            f"the demo needs {' and '.join(missing)}", remedy="pip install 'breakgraph[demo]'"
        )
    choose_driver(options.driver)
    from breakgraph.demo.show import show

    return 0 if show(options.json) else 1


def _doctor(options: argparse.Namespace) -> int:
    from breakgraph.doctor.collect import collect
    from breakgraph.doctor.diagnosis import diagnose
    from breakgraph.doctor.report import as_json, as_text

    facts = collect()
    print((as_json if options.json else as_text)(facts, diagnose(facts)))
    return 0 if facts.trial.works else 1


def _view(options: argparse.Namespace) -> int:
    description = load(options.file)
    if options.output is None:
        print(report(description))
    else:
        options.output.write_text(page(description), encoding="utf-8")
        print(f"{options.output}: open it in a browser")
    return 0


def _probe(options: argparse.Namespace) -> int:
    """Compare two records, or run a probe as the script that it is, in a process of its own."""
    if bool(options.compare) == bool(options.name) or (options.json and not options.compare):
        options.parser.error("give a PROBE and its arguments, or --compare with two records")
    if options.compare:
        return _compare(*options.compare, as_json=options.json)
    script = probe_directory() / f"{options.name}.py"
    return subprocess.run([sys.executable, str(script), *options.arguments], check=False).returncode


def _compare(before: Path, now: Path, *, as_json: bool) -> int:
    from breakgraph.compare import report
    from breakgraph.compare.changes import compare
    from breakgraph.compare.records import read

    comparison = compare(read(before), read(now))
    print((report.as_json if as_json else report.as_text)(comparison))
    return 1 if comparison.changes else 0


def probe_directory() -> Path:
    """Where the probes lie: inside an installed package, beside the package in a checkout."""
    package = Path(bg.__file__).parent
    carried = package / "_probes"
    return carried if carried.is_dir() else package.parent / "probes"
