"""Are the tests able to fail? Breaks the library in one place at a time and expects the suite to see it.

``python tests/mutations.py [NUMBER ...]`` copies the package and its tests aside, and for each mutation: finds
the anchor exactly once, replaces it, imports the mutated package, runs the named tests, and wants at least one of
them red by an assertion (an import, collection or setup error is not red), and those that must stay green, green.
Then the file is restored and its hash checked. The tree itself is never written. Exits 1 if a mutation survives.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("benchmarks", "breakgraph", "examples", "tests", "probes", "pyproject.toml", "README.md")
WORKERS = 2


@dataclass(frozen=True)
class Mutation:
    """One planted fault: in ``file`` (below the package), ``anchor`` becomes ``replacement``.

    ``red`` are the tests of which at least one must fail by an assertion, ``also_red`` those of which one must fail
    in whatever way, ``green`` those that must all pass.
    """

    number: int
    what: str
    file: str
    anchor: str
    replacement: str
    red: tuple[str, ...]
    also_red: tuple[str, ...] = ()
    green: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What one pytest run said, by test: assertions that failed, other failures, and everything that was no verdict."""

    passed: tuple[str, ...]
    asserted: tuple[str, ...]
    raised: tuple[str, ...]
    errors: tuple[str, ...]
    returncode: int
    output: str


CONTRACTS = tuple(
    f"tests/test_{name}.py"
    for name in ("chains", "context_padding", "memory", "mistakes", "refusals", "replay", "writeback")
)
COUNT_OF_THE_DEMO = "tests/test_demo.py::test_the_demo_forward_has_exactly_6_segments"

MUTATIONS = (
    Mutation(
        1,
        "the closure does not own a destination that is not the arena's",
        "segments/destinations.py",
        "tree.rebuild(destination, self.hold, objects=True,",
        "tree.rebuild(destination, lambda leaf: f.like(leaf, f.view(leaf)) if (f := self.framework(leaf)) else leaf,"
        " objects=True,",
        (
            "tests/test_writeback.py::test_a_destination_outlives_the_frame_that_declared_it",
            "tests/test_writeback.py::test_a_destination_dies_with_the_graph_that_owns_it",
        ),
    ),
    Mutation(
        2,
        "replay runs all segments, then all breaks",
        "segments/replay.py",
        "for step in self._holdings.steps:",
        "for step in sorted(self._holdings.steps, key=lambda step: isinstance(step, Break)):",
        (
            "tests/test_chains.py::test_one_log_shows_segment_break_segment_break_segment",
            "tests/test_chains.py::test_one_function_may_be_two_breaks",
        ),
    ),
    Mutation(
        3,
        "a registered copy_output is unregistered",
        "memory/copying.py",
        "_handlers[kind] = handler",
        "_handlers[type(kind.__name__, (), {})] = handler",
        (
            "tests/test_writeback.py::test_a_registered_type_is_copied_by_its_handler_after_all_checks",
            "tests/test_writeback.py::test_a_break_tells_which_branch_its_landing_took",
        ),
    ),
    Mutation(
        4,
        "the kill switch is ignored",
        "segments/switch.py",
        '_is_set("BREAKGRAPH_DISABLE")',
        '_is_set("BREAKGRAPH_DISABLE_NOTHING")',
        ("tests/test_refusals.py::test_the_kill_switch_makes_every_capture_inert",),
    ),
    Mutation(
        5,
        "the drain on exception is dropped",
        "segments/open_capture.py",
        "        notes += self._unwind()\n        if failure is None:\n",
        "        notes += [] if error is not None else self._unwind()\n        if failure is None:\n",
        ("tests/test_refusals.py::test_an_exception_drains_the_scope_and_propagates_unmasked",),
    ),
    Mutation(
        6,
        "the refusal of re-entry is dropped",
        "segments/graph.py",
        '    GraphState.CAPTURED: "it holds a capture, which may be replayed elsewhere",\n',
        "",
        ("tests/test_refusals.py::test_a_graph_that_holds_a_capture_refuses_another_until_it_is_reset",),
    ),
    Mutation(
        7,
        "the refusal of nesting is dropped",
        "segments/capture.py",
        "        if here.capture is not None:\n            raise CaptureStateError(\n",
        "        if False:\n            raise CaptureStateError(\n",
        (
            "tests/test_refusals.py::test_a_nested_capture_is_refused_without_a_driver_call_and_the_outer_one_is_good",
            "tests/test_mistakes.py::test_a_nested_capture_is_explained",
        ),
    ),
    Mutation(
        8,
        "reset leaves the replay count",
        "segments/graph.py",
        "self._state, self.error, self.replays, self._stream = state, None, 0, None",
        "self._state, self.error, self._stream = state, None, None",
        ("tests/test_refusals.py::test_a_graph_that_holds_a_capture_refuses_another_until_it_is_reset",),
    ),
    Mutation(
        9,
        "copy_output takes sizes from one side only",
        "memory/array_copy.py",
        "if target.shape != src.shape or target.nbytes != src.nbytes:",
        "if target.size * target.dtype.itemsize != target.nbytes:",
        (
            "tests/test_writeback.py::test_the_whole_tree_is_checked_before_anything_is_copied",
            "tests/test_writeback.py::test_a_longer_first_axis_or_another_width_is_refused",
        ),
    ),
    Mutation(
        10,
        "a break point is removed from the demo's forward",
        "demo/forward.py",
        "@bg.break_point\ndef stem(",
        "def stem(",
        (COUNT_OF_THE_DEMO,),
        green=CONTRACTS,
    ),
    Mutation(
        11,
        "the refusal of aliased destinations is dropped",
        "segments/destinations.py",
        "if (holder := places.holder(region)) is not None:",
        "if (holder := places.holder(region)) is not None and not holder:",
        (
            "tests/test_writeback.py::test_one_destination_for_two_breaks_is_refused_and_nothing_is_captured",
            "tests/test_writeback.py::test_overlapping_bytes_of_one_allocation_are_one_place_whatever_python_object_names_them",
            "tests/test_mistakes.py::test_one_destination_for_two_breaks_names_both",
        ),
    ),
    Mutation(
        12,
        "the refusal of aliased destinations over-fires on a later capture",
        "segments/recorder.py",
        "self._claims = Claims(self._ownership)",
        'self._claims = Recorder.__init__.__dict__.setdefault("claims", Claims(self._ownership))',
        ("tests/test_writeback.py::test_a_destination_may_serve_again_in_a_later_capture",),
    ),
    Mutation(
        13,
        "the refusal of aliased destinations over-fires on per-layer locals: identity by bare address",
        "segments/destinations.py",
        "return block.generation if block else 0",
        "return 0",
        ("tests/test_writeback.py::test_a_destination_made_in_a_segment_that_has_died_frees_its_place_for_another",),
        also_red=(COUNT_OF_THE_DEMO,),
    ),
    Mutation(
        14,
        "a form is added that registers no destination",
        "segments/recorder.py",
        "return self._land_inferred(result, self._named(point))",
        "return result, Landed(Landing.ARRAY)",
        (
            "tests/test_chains.py::test_one_function_may_be_two_breaks",
            "tests/test_writeback.py::test_inferred_destinations_take_any_form_and_later_segments_read_them",
        ),
    ),
    Mutation(
        15,
        "the context is replaced when none was published",
        "segments/arguments.py",
        "            if context is not None and leaf is context:\n",
        "            if leaf is context:\n",
        ("tests/test_context_padding.py::test_nothing_published_nothing_replaced",),
    ),
    Mutation(
        16,
        "the exit wait of the caller's stream is dropped",
        "segments/open_capture.py",
        "partial(place.order, driver, self.stream, caller)",
        "partial(len, ())",
        (
            "tests/test_replay.py::test_a_capture_waits_for_the_callers_stream_and_the_callers_stream_for_it",
            "tests/test_replay.py::test_a_failed_capture_too_leaves_the_callers_stream_behind_its_work",
        ),
    ),
    Mutation(
        17,
        "the entry wait for the caller's stream is dropped",
        "segments/open_capture.py",
        "            place.order(driver, before=caller, after=self.stream)\n",
        "            pass\n",
        ("tests/test_replay.py::test_a_capture_waits_for_the_callers_stream_and_the_callers_stream_for_it",),
    ),
    Mutation(
        18,
        "the arena hands on a freed block while a fork is open",
        "memory/arena.py",
        "and blocks.withheld and forks.joined():",
        "and blocks.withheld:",
        ("tests/memory/test_withholding.py::test_a_block_that_the_side_still_reads_is_not_given_to_the_origin",),
    ),
    Mutation(
        19,
        "a stream that was forked before a block died is given its bytes",
        "memory/arena.py",
        "origin = forks is None or stream is None or stream == forks.origin",
        "origin = True",
        ("tests/memory/test_withholding.py::test_an_empty_fork_is_given_nothing_that_died_on_the_origin",),
    ),
    Mutation(
        20,
        "a sleep does not wait for the device",
        "memory/mapping.py",
        "        driver.mem_free(fence)\n",
        "        driver.mem_free(fence) if not fence else None\n",
        ("tests/memory/test_sleep_wake.py", "tests/test_memory.py"),
    ),
    Mutation(
        21,
        "a shared exec is launched with the parameters that another graph left in it",
        "segments/execs.py",
        "if self._holds is None or self._holds() is not segment:",
        "if self._holds is None:",
        ("tests/memory/test_exec_cache.py",),
    ),
    Mutation(
        22,
        "a fork is not joined when its segment ends",
        "segments/recorder.py",
        "nodes = sides.join()",
        "nodes = driver.graph_get_nodes(driver.stream_get_capture_info(stream).graph)",
        ("tests/streams/test_auto_join.py",),
    ),
    Mutation(
        23,
        "what a break has left on an aux stream is not joined at replay",
        "segments/steps.py",
        "            aux.lead(place.stream)\n",
        "",
        ("tests/streams/test_aux_streams.py",),
    ),
    Mutation(
        24,
        "an aux stream is not forked again after a break",
        "segments/recorder.py",
        "            self._aux.fork(self._stream)\n",
        "            self._aux.fork(self._stream) if not self._breaks else None\n",
        ("tests/streams/test_aux_streams.py",),
    ),
    Mutation(
        25,
        "the memory map does not see a block die",
        "memory/footprint.py",
        "        if block.capture == self.capture:\n",
        "        if not block.capture:\n",
        ("tests/pictures/test_memory_map.py",),
    ),
    Mutation(
        26,
        "a name can end the page's data",
        "inspect/page.py",
        '.replace("<", "\\\\u003c")',
        "",
        ("tests/pictures/test_page.py",),
    ),
    Mutation(
        27,
        "a backslash in a name is an escape of DOT",
        "inspect/dot.py",
        '.replace("\\\\", "\\\\\\\\")',
        "",
        ("tests/pictures/test_dot.py",),
    ),
    Mutation(
        28,
        "each product of a segment takes a workspace of its own",
        "frameworks/cupy/scopes.py",
        "if stream not in self._workspaces:",
        "if True:",
        ("tests/frameworks/test_products.py::test_a_workspace_outlives_its_product_while_work_is_forked",),
    ),
    Mutation(
        29,
        "streams that run at once share a workspace",
        "frameworks/cupy/scopes.py",
        "return self._workspaces[stream]",
        "return next(iter(self._workspaces.values()))",
        ("tests/frameworks/test_products.py::test_a_workspace_outlives_its_product_while_work_is_forked",),
    ),
    Mutation(
        30,
        "a product writes over the operand that its result overlaps",
        "frameworks/cupy/products.py",
        "_scratch(cupy, result, beta) if aside else result",
        "result",
        ("tests/frameworks/test_products.py::test_out_may_overlap_the_operands",),
    ),
    Mutation(
        31,
        "the padding of a graphed call is not scrubbed",
        "service/cells.py",
        "if nbytes < region.nbytes:",
        "if not region.nbytes:",
        ("tests/graphed/test_padding.py",),
    ),
    Mutation(
        32,
        "a static input that has moved is not told",
        "service/static.py",
        "    if baked == now:\n",
        "    if len(baked) == len(now):\n",
        ("tests/graphed/test_static.py",),
    ),
    Mutation(
        33,
        "a function whose capture failed in the middle is run again",
        "service/graphs.py",
        "            if begun:\n",
        "            if begun and not isinstance(error, DriverError):\n",
        ("tests/graphed/test_failures.py",),
    ),
    Mutation(
        34,
        "a graphed call does not tell the arena's next user what to wait for",
        "segments/held.py",
        "            if error is None:\n                self.arena.record_use(self.stream)\n",
        "            if error is None:\n",
        ("tests/graphed/test_turns.py",),
    ),
    Mutation(
        35,
        "threads that see a size for the first time at once capture it several times",
        "service/graphs.py",
        "            seen = place.captured.get(inputs.key)  # again: other threads have had turns meanwhile\n",
        "",
        ("tests/graphed/test_turns.py",),
    ),
    Mutation(
        36,
        "an input that lies in the arena is not taken aside",
        "service/cells.py",
        "if arena.contains(one.region.ptr) else",
        "if not one.region else",
        ("tests/graphed/test_results.py",),
    ),
    Mutation(
        37,
        "a profile sets the device's clock by the event that was reached last",
        "inspect/profile/timeline.py",
        "np.max(samples.entered - samples.device",
        "np.min(samples.entered - samples.device",
        ("tests/pictures/test_timeline.py",),
    ),
    Mutation(
        38,
        "what a profile's events cost is counted as time of the steps",
        "inspect/profile/timeline.py",
        "net = np.clip(spans - event_us",
        "net = np.clip(spans",
        ("tests/pictures/test_timeline.py",),
    ),
    Mutation(
        39,
        "a profile leaves the padding as it is",
        "inspect/profile/measure.py",
        "rows = valid_rows is not None",
        "rows = False",
        ("tests/pictures/test_profile.py",),
    ),
    Mutation(
        40,
        "a break that raises leaves its NVTX range open",
        "segments/replay.py",
        "            self.ranges.close()\n",
        "            pass\n",
        ("tests/pictures/test_nvtx_ranges.py",),
    ),
    Mutation(
        41,
        "verify leaves the outputs of a replay as eager code left them",
        "inspect/verify/rounds.py",
        "self._device.spoil(output.target, output.eager.value)",
        "pass",
        ("tests/planted/test_numbers.py::test_a_replay_that_does_nothing_cannot_pass",),
    ),
    Mutation(
        42,
        "the line on which a segment ends is not asked about",
        "segments/line_watch.py",
        "            self._ask(innermost)",
        "            pass",
        ("tests/planted/test_lines.py::test_the_line_that_made_a_capture_invalid_is_named",),
    ),
    Mutation(
        43,
        "what a break returns counts as escaped where somebody else holds it too",
        "segments/recorder.py",
        "escapes.returned(result)",
        "pass",
        ("tests/planted/test_numbers.py::test_nothing_is_said_of_an_array_that_may_stay",),
    ),
    Mutation(
        44,
        "a round does not look whether it is open",
        "driver/portable.py",
        "            if not self.is_open or not self._claim.is_open:\n",
        "            if not self._claim.is_open:\n",
        ("tests/test_rounds.py::test_where_anything_is_out_of_the_ordinary_a_round_does_nothing_and_says_so",),
    ),
    Mutation(
        45,
        "a landing copies at once what overlaps its destination",
        "segments/landing.py",
        "if source and not -nbytes < source - ptr < nbytes:",
        "if source:",
        (
            "tests/replay/test_direct_landing.py::test_what_is_of_another_form_lands_the_long_way",
            "tests/replay/test_direct_landing.py::test_a_result_that_overlaps_or_touches_its_destination_lands_whole",
        ),
    ),
    Mutation(
        46,
        "the host runs ahead without bound",
        "memory/backlog.py",
        "lambda: self._mark(place.stream)",
        "lambda: None",
        ("tests/replay/test_backlog.py",),
    ),
    Mutation(
        47,
        "a replay that has waited runs what was reset meanwhile",
        "segments/replay.py",
        "        if not graph.is_replayed_by(self):  # another thread has reset it meanwhile\n",
        "        if not graph:\n",
        ("tests/replay/test_changed_meanwhile.py::test_a_replay_that_waited_runs_what_the_graph_holds_by_then",),
    ),
    Mutation(
        48,
        "a capture is ended though a fork is open",
        "driver/portable.py",
        "return nodes if behind.issuperset(nodes) else None",
        "return nodes",
        ("tests/test_endings.py::test_where_work_is_not_joined_nothing_is_ended",),
    ),
)


class Survived(Exception):
    """A mutation that the suite did not see, or that could not be judged."""


def run_tests(tree: Path, tests: tuple[str, ...]) -> Outcome:
    """Run tests in a copy, in one pytest process."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        "--tb=short",
        *tests,
    ]
    done = subprocess.run(
        command, cwd=tree, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    found: dict[str, list[str]] = {"passed": [], "asserted": [], "raised": [], "errors": []}
    if not report.exists():
        found["errors"].append("pytest wrote no report")
    else:
        for case in ET.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
            found[verdict(case)].append(name)
    return Outcome(
        **{k: tuple(v) for k, v in found.items()}, returncode=done.returncode, output=done.stdout + done.stderr
    )


def verdict(case: ET.Element) -> str:
    """How one test of a report ended. ``error`` elements are collection, setup and teardown: no verdict on the call."""
    failure = case.find("failure")
    if failure is not None:
        message = failure.get("message", "")
        return "asserted" if message.startswith(("AssertionError", "assert ", "Failed:")) else "raised"
    if case.find("error") is not None:
        return "errors"
    return "passed"


def environment() -> dict[str, str]:
    """The simulator alone decides: the same verdict on any machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    return {**kept, "BREAKGRAPH_DRIVER": "sim", "PYTHONDONTWRITEBYTECODE": "1"}


def copy_tree(into: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__", "records"))
        elif source.exists():
            shutil.copy2(source, into / name)
    return into


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def imports(tree: Path) -> None:
    """The copy imports, and it is the copy that is imported."""
    program = "import breakgraph, breakgraph.demo; print(breakgraph.__file__)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tree, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    if done.returncode or not Path(done.stdout.strip()).resolve().is_relative_to(tree.resolve()):
        raise Survived(f"the mutated package does not import: {done.stderr.strip()[-300:]}")


def judge(tree: Path, mutation: Mutation) -> Outcome:
    """Plant one mutation in a copy, run its tests, take it out again. Raises `Survived`."""
    file, original = tree / "breakgraph" / mutation.file, ROOT / "breakgraph" / mutation.file
    before, text = digest(original), file.read_text()
    if text.count(mutation.anchor) != 1:
        raise Survived(f"its anchor is in {mutation.file} {text.count(mutation.anchor)} times, not once")
    try:
        file.write_text(text.replace(mutation.anchor, mutation.replacement))
        imports(tree)
        outcome = run_tests(tree, mutation.red)
        if outcome.errors and not outcome.asserted:
            raise Survived(f"its tests gave no verdict: {outcome.errors[0]}\n{outcome.output[-1500:]}")
        if not outcome.asserted:
            raise Survived(
                f"{len(outcome.passed)} tests passed, {len(outcome.raised)} raised, none failed by assertion"
            )
        if mutation.also_red:
            other = run_tests(tree, mutation.also_red)
            if not other.asserted + other.raised:
                raise Survived(f"{mutation.also_red[0]} did not see it:\n{other.output[-1500:]}")
            outcome = replace(outcome, asserted=outcome.asserted + other.asserted, raised=outcome.raised + other.raised)
        if mutation.green and (other := run_tests(tree, mutation.green)).returncode:
            raise Survived(
                f"tests that should not see it went red: {(other.asserted + other.raised + other.errors)[:3]}"
            )
        return outcome
    finally:
        file.write_text(text)
        if not digest(file) == digest(original) == before:
            raise Survived(f"{mutation.file} was not restored")


def self_check(tree: Path, mutations: tuple[Mutation, ...]) -> None:
    """Without a mutation every named test passes: red means the mutation."""
    named = tuple(sorted({test for mutation in mutations for test in (*mutation.red, *mutation.also_red)}))
    outcome = run_tests(tree, named)
    if outcome.returncode or not outcome.passed:
        raise Survived(f"the unmutated copy is not green:\n{outcome.output[-3000:]}")
    print(f"   unmutated: {len(outcome.passed)} tests green", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, help="only these mutations")
    wanted = parser.parse_args().numbers
    chosen = tuple(m for m in MUTATIONS if not wanted or m.number in wanted)
    started, survivors = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for worker in range(WORKERS):
            trees.put(copy_tree(Path(folder, str(worker))))

        def one(mutation: Mutation | None) -> Outcome | None:
            tree = trees.get()
            try:
                if mutation is None:
                    self_check(tree, chosen)
                    return None
                return judge(tree, mutation)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(WORKERS) as pool:
            jobs = [(mutation, pool.submit(one, mutation)) for mutation in (None, *chosen)]
            for mutation, job in jobs:
                title = "   self check" if mutation is None else f"{mutation.number:2} {mutation.what}"
                try:
                    outcome = job.result()
                except Survived as error:
                    survivors += 1
                    print(f"{title}: SURVIVED\n   {error}", flush=True)
                    continue
                if outcome is not None:
                    print(f"{title}: red ({len(outcome.asserted)} by assertion, {len(outcome.raised)} otherwise)")
                    for name in outcome.asserted + outcome.raised:
                        print(f"      {name}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations seen, {time.perf_counter() - started:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
