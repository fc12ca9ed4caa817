"""A description says what was captured, as plain data of a fixed form, and asks the driver for no more than that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from pictures_support import attend, forked, ptr_of, small, times_of
from support import floats, in_threads, zeros

import breakgraph as bg
from breakgraph.inspect import SCHEMA, describe, load, schema


def segment_of(graph: Any, index: int = 0) -> Any:
    return describe(graph)["steps"][2 * index]


def break_of(graph: Any, index: int = 0) -> Any:
    return describe(graph)["steps"][2 * index + 1]


# --- the form -----------------------------------------------------------------------------------------


def test_it_is_json_and_reads_back_the_same(driver: Any, xp: Any, tmp_path: Path) -> None:
    graph, _ = small(xp)
    described = describe(graph, times_of(graph))
    assert json.loads(json.dumps(described)) == described
    graph.save_trace(tmp_path / "graph.json", times=times_of(graph))
    assert load(tmp_path / "graph.json") == described


def test_schema_1_has_these_keys(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    described = describe(graph, times_of(graph))
    assert described["schema"] == SCHEMA == 1
    segment, step, _ = described["steps"]
    parts = {
        "GraphDescription": described,
        "MemoryDescription": described["memory"],
        "BlockDescription": described["memory"]["blocks"][0],
        "SurvivorDescription": described["memory"]["survivors"][0] if described["memory"]["survivors"] else None,
        "SegmentDescription": segment,
        "NodeDescription": segment["nodes"][0],
        "BreakDescription": step,
        "FrozenDescription": step["frozen"][0],
        "TargetDescription": step["targets"][0],
        "Times": step["times"],
    }
    promised = {
        "GraphDescription": "schema name state driver device capture_stream replays steps memory",
        "MemoryDescription": "allocated footprint live outputs execs arena base blocks survivors",
        "BlockDescription": "ptr bytes spans made_in freed_in start end holds",
        "SurvivorDescription": "ptr bytes segment overwritten_by",
        "SegmentDescription": "kind index nodes edges branches joined streams allocations allocated shared_exec times",
        "NodeDescription": "kind name grid block shared_bytes bytes layer lane",
        "BreakDescription": "kind index name tag site destination landing frozen targets times",
        "FrozenDescription": "name value",
        "TargetDescription": "ptr shape dtype bytes",
        "Times": "cpu_us gap_us gpu_us",
    }
    for name, part in parts.items():
        assert set(promised[name].split()) == set(get_type_hints(getattr(schema, name))), name
        assert part is None or set(promised[name].split()) == set(part), name


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for text, told in (("{", "cannot be read"), ("[]", "does not describe"), ("{}", "does not describe")):
        (tmp_path / "file.json").write_text(text)
        with pytest.raises(bg.errors.BreakgraphError, match=told):
            load(tmp_path / "file.json")
    with pytest.raises(bg.errors.BreakgraphError, match="cannot be read"):
        load(tmp_path / "none.json")
    (tmp_path / "file.json").write_text(json.dumps({"schema": SCHEMA + 1, "steps": []}))
    with pytest.raises(bg.errors.BreakgraphError, match=f"schema {SCHEMA + 1}"):
        load(tmp_path / "file.json")


# --- segments -----------------------------------------------------------------------------------------


def test_kernels_have_their_names_and_the_size_of_their_launch(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    first, second = segment_of(graph, 0), segment_of(graph, 1)
    assert [node["kind"] for node in first["nodes"] + second["nodes"]] == ["kernel", "kernel"]
    assert "add" in first["nodes"][0]["name"]
    assert "multiply" in second["nodes"][0]["name"]
    for node in first["nodes"]:
        assert len(node["grid"]) == len(node["block"]) == 3
        assert min(node["grid"] + node["block"]) >= 1


def test_copies_and_sets_say_their_bytes(driver: Any, xp: Any) -> None:
    with driver_memory(driver, 256) as (one, other), bg.capture() as graph:
        stream = int(bg.current_stream())
        driver.memset_d8_async(one, 0, 100, stream)
        driver.memset_d32_async(one, 0, 10, stream)
        driver.memcpy_dtod_async(other, one, 64, stream)
    nodes = segment_of(graph)["nodes"]
    assert [(node["kind"], node["bytes"]) for node in nodes] == [("memset", 100), ("memset", 40), ("memcpy", 64)]
    assert nodes[2]["name"] == "memcpy device to device"
    assert all(node["grid"] is None for node in nodes)
    graph.close()


class driver_memory:  # noqa: N801 - reads as a scope
    """Two plain allocations, freed at the end."""

    def __init__(self, driver: Any, nbytes: int) -> None:
        self.driver = driver
        driver.ensure_context()
        self.ptrs = [driver.mem_alloc(nbytes) for _ in range(2)]

    def __enter__(self) -> list[int]:
        return self.ptrs

    def __exit__(self, *_: object) -> None:
        for ptr in self.ptrs:
            self.driver.mem_free(ptr)


def test_the_edges_of_a_fork_make_branches(driver: Any, xp: Any) -> None:
    segment = segment_of(forked(driver, xp))
    assert len(segment["nodes"]) == 5
    assert segment["branches"] == 2
    assert segment["joined"] == 1
    after: dict[int, list[int]] = {}
    for tail, head in segment["edges"]:
        after.setdefault(tail, []).append(head)
    assert [len(heads) for heads in after.values()] == [2, 1, 1]
    for tail, head in segment["edges"]:
        assert segment["nodes"][tail]["layer"] < segment["nodes"][head]["layer"]


def test_the_streams_that_were_seen_are_named_the_origin_first(driver: Any, xp: Any) -> None:
    graph = forked(driver, xp)
    described = describe(graph)
    streams = described["steps"][0]["streams"]
    assert streams[0] == described["capture_stream"] == hex(graph.capture_stream)
    assert len(streams) == len(set(streams)) == 2
    plain, _ = small(xp)
    assert segment_of(plain)["streams"] == [hex(plain.capture_stream)]


def test_an_aux_stream_is_seen_in_every_segment(driver: Any, xp: Any) -> None:
    x, side = zeros(xp), driver.create_stream()
    driver.synchronize()
    with bg.capture(aux_streams=[side]) as graph:
        y = attend(x + 1, 2.0)
        z = y + 1
    assert [step["streams"][1:] for step in describe(graph)["steps"][::2]] == [[hex(side)]] * 2
    assert z is not None


def test_a_segment_without_work_has_no_nodes(driver: Any, xp: Any) -> None:
    with bg.capture() as graph:
        y = zeros(xp) + 1
        bg.break_graph()
        bg.break_graph()
        z = y + 1
    empty = segment_of(graph, 1)
    assert (empty["nodes"], empty["edges"], empty["branches"]) == ([], [], 0)
    assert z is not None


# --- breaks -------------------------------------------------------------------------------------------


def test_a_break_says_where_it_was_called_and_what_stays_as_it_was(driver: Any, xp: Any) -> None:
    graph, result = small(xp)
    step = break_of(graph)
    assert (step["name"], step["tag"]) == ("attend", "attention")
    assert "pictures_support.py:" in step["site"]
    assert step["frozen"] == [{"name": "factor", "value": "3.0"}, {"name": "mode", "value": "'extend'"}]
    assert step["targets"] == [{"ptr": hex(ptr_of(result, driver)), "shape": [4], "dtype": "float32", "bytes": 16}]


def into_its_argument(a: Any) -> None:
    a.fill(0)


DESTINATIONS: Any = {
    "infer": (lambda a: a * 2, lambda xp: bg.INFER, "bg.INFER", "array", 1),
    "cell": (lambda a: a * 2, lambda xp: bg.Cell((4,), np.float32), "Cell", "array", 1),
    "array": (lambda a: a * 2, zeros, None, "array", 1),
    "tuple": (lambda a: (a * 2, a * 3), lambda xp: (zeros(xp), zeros(xp)), "tuple", "sequence", 2),
    "in place": (into_its_argument, lambda xp: bg.IN_PLACE, "bg.IN_PLACE", "in_place", 0),
    "nothing": (lambda a: 42, lambda xp: bg.NO_WRITEBACK, "bg.NO_WRITEBACK", "no_writeback", 0),
    "none for infer": (into_its_argument, lambda xp: bg.INFER, "bg.IN_PLACE", "in_place", 0),
}


@pytest.mark.parametrize("case", DESTINATIONS)
def test_each_form_of_destination_is_told(driver: Any, xp: Any, case: str) -> None:
    function, destination, form, landing, targets = DESTINATIONS[case]
    given = destination(xp)
    with bg.capture() as graph:
        bg.break_here(function, given, zeros(xp) + 1)
    step = break_of(graph)
    assert step["destination"] == (form or type(given).__name__)
    assert step["landing"] == landing
    assert len(step["targets"]) == targets


def test_a_bare_break_lands_nowhere(driver: Any, xp: Any) -> None:
    with bg.capture() as graph:
        y = zeros(xp) + 1
        bg.break_graph()
        z = y + 1
    assert (break_of(graph)["destination"], break_of(graph)["landing"]) == ("none", "bare")
    assert z is not None


def test_a_frozen_value_that_cannot_be_printed_is_no_obstacle(driver: Any, xp: Any) -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError

    with bg.capture() as graph:
        bg.break_here(lambda a, b, c: a * 2, bg.INFER, zeros(xp) + 1, Unprintable(), "x" * 10_000)
    values = [one["value"] for one in break_of(graph)["frozen"]]
    assert "Unprintable" in values[0]
    assert len(values[1]) < 200


# --- times --------------------------------------------------------------------------------------------


def test_times_are_told_with_their_step(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    times = times_of(graph)
    assert [step["times"] for step in describe(graph, times)["steps"]] == times
    assert all(step["times"] is None for step in describe(graph)["steps"])


@pytest.mark.parametrize("times", [[], [{"cpu_us": 1, "gap_us": 1, "gpu_us": 1}] * 4])
def test_times_of_another_number_of_steps_are_refused(driver: Any, xp: Any, times: Any) -> None:
    graph, _ = small(xp)
    with pytest.raises(bg.errors.BreakgraphError, match=f"{len(times)} times were given for 3 steps"):
        describe(graph, times)


@pytest.mark.parametrize("wrong", [{"cpu_us": 1}, {"cpu_us": 1, "gap_us": None, "gpu_us": 1}, 5])
def test_what_is_no_time_is_refused_and_named(driver: Any, xp: Any, wrong: Any) -> None:
    graph, _ = small(xp)
    good = {"cpu_us": 1, "gap_us": 1, "gpu_us": 1}
    with pytest.raises(bg.errors.BreakgraphError, match="the times of step 1 are"):
        describe(graph, [good, wrong, good])


# --- what it does not do --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["empty", "failed", "closed"])
def test_a_graph_without_a_capture_has_no_steps(driver: Any, xp: Any, state: str) -> None:
    graph = bg.BreakableGraph("idle")
    if state == "failed":
        with pytest.raises(KeyError), bg.capture(graph):
            raise KeyError
    elif state == "closed":
        graph.close()
    described = describe(graph)
    assert (described["state"], described["name"], described["steps"]) == (state, "idle", [])
    assert described["memory"]["blocks"] == []


def test_looking_changes_nothing(driver: Any, xp: Any, tmp_path: Path) -> None:
    graph, result = small(xp)
    before = graph.memory, graph.replays, repr(graph)
    for _ in range(2):
        assert describe(graph) == describe(graph)
        graph.report()
        graph.to_dot()
        graph._repr_html_()
        for form in ("json", "chrome", "html"):
            graph.save_trace(tmp_path / form, format=form)
    assert (graph.memory, graph.replays, repr(graph)) == before
    graph.replay()
    assert result.get().tolist() == [3.0] * 4


def test_a_capture_that_is_open_shows_the_steps_so_far(driver: Any, xp: Any) -> None:
    seen = []
    with bg.capture() as graph:
        y = zeros(xp) + 1
        seen.append(describe(graph))
        y = bg.break_here(lambda a: (seen.append(describe(graph)), a * 2)[1], bg.INFER, y)
        z = y + 1
        seen.append(describe(graph))
    assert [one["state"] for one in seen] == ["capturing"] * 3
    assert [[step["kind"] for step in one["steps"]] for one in seen] == [[], ["segment"], ["segment", "break"]]
    graph.replay()
    assert z.get().tolist() == [3] * 4


def test_looking_only_asks(sim: Any, xp: Any) -> None:
    graph, _ = small(xp)
    start = len(sim.log)
    describe(graph)
    asked = {entry.name for entry in sim.log[start:]}
    assert asked <= {
        *("ctx_get_current", "ctx_get_device", "ctx_get_id", "ctx_push_current", "ctx_pop_current", "device_get_name"),
        *("graph_get_nodes", "graph_get_edges", "graph_node_get_type", "graph_kernel_node_get_params"),
        "func_get_name",
    }


def test_another_thread_may_look_whatever_its_context(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    wanted = describe(graph)
    seen: list[Any] = in_threads(driver, lambda: describe(graph), context=0)
    assert seen == [wanted]


def test_a_name_that_the_driver_does_not_tell_is_no_obstacle(sim: Any, xp: Any) -> None:
    graph, _ = small(xp)
    with sim.fail("func_get_name", code=500):
        assert segment_of(graph)["nodes"][0]["name"] == "unnamed kernel"
    with sim.fail("graph_kernel_node_get_params", code=1):
        node = segment_of(graph)["nodes"][0]
    assert (node["name"], node["grid"]) == ("unnamed kernel", None)


def test_an_answer_that_means_a_lost_context_is_raised(sim: Any, xp: Any) -> None:
    graph, _ = small(xp)
    with sim.fail("graph_kernel_node_get_params", code=700), pytest.raises(bg.errors.DriverError, match="700"):
        describe(graph)


def test_a_replay_of_other_values_changes_the_count_of_replays_alone(driver: Any, xp: Any) -> None:
    x = floats(xp, 1, 2)
    with bg.capture() as graph:
        y = x + 1
    before = describe(graph)
    x.set(np.array([5, 6], np.float32))
    graph.replay()
    assert describe(graph) == {**before, "replays": 1}
    assert y.get().tolist() == [6, 7]
