"""torch takes part: its tensors, its current stream, and a private pool of its own allocator for what segments make.

Without a GPU: that its pool is opened in segments, closed in breaks, shared by graphs of one arena and let go with the
last of them, on a stand-in that keeps count as torch's allocator does; and what is told of tensors, on torch itself
where it is installed. On a GPU: values, bfloat16, strided views, gradients, streams, products, memory, and mistakes.
"""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakes import FakeTorch, Tensor, fetch, store
from support import nothing_captured, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver import Region
from breakgraph.errors import BreakgraphError, CaptureFailed, CaptureStateError, DTypeMismatch
from breakgraph.frameworks.dtypes import dtype_name
from breakgraph.frameworks.torch import TorchFramework

pytestmark = pytest.mark.libraries("torch")


class OnSim(TorchFramework):
    driver_name = "sim"

    def check_context(self, driver: Any) -> None:
        """Any simulated context will do."""


@pytest.fixture
def fake(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    """A stand-in for torch on the simulator. Nothing may be left open in it, and no pool be held."""
    module = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", module)
    known = {name: one for name, one in frameworks._KNOWN.items() if name != "torch"}
    monkeypatch.setattr(frameworks, "_KNOWN", known)
    frameworks.register(OnSim())
    yield module
    gc.collect()
    assert module.allocator.open == []
    assert not any(module.allocator.uses.values()), "a pool outlives its graphs"
    assert module.cuda.stack == [0]


def tensor(fake: FakeTorch, values: Any, kind: Any = None) -> Tensor:
    host = np.asarray(values, np.float32)
    made = fake.empty(host.shape, dtype=kind or fake.float32, device="cuda:0")
    if kind is None:
        store(of(made).view(made), host)
    else:  # values do not matter
        bg.driver.current().memset_d8(made.data_ptr(), 0, host.size * kind.itemsize)
    return made


def of(array: Any) -> Any:
    return frameworks.of(array, bg.driver.current())


def values(array: Any) -> Any:
    return fetch(of(array).view(array)).tolist()


# --- the private pool, on a stand-in ---------------------------------------------------------------------------------
def test_the_pool_is_open_in_segments_and_closed_in_breaks_and_around_a_capture(fake: FakeTorch, xp: Any) -> None:
    allocator, seen = fake.allocator, []
    x, out = zeros(xp), zeros(xp)
    with bg.capture() as graph:
        seen.append(len(allocator.open))
        bg.break_here(lambda: seen.append(len(allocator.open)), bg.IN_PLACE)
        seen.append(len(allocator.open))
        np.add(x, 1, out=out)
    assert (seen, allocator.open) == ([1, 0, 1], [])
    begun = allocator.log.count("begin")
    graph.replay()
    assert allocator.log.count("begin") == begun, "a replay allocates nothing for segments"


def test_graphs_of_one_arena_share_a_pool_which_the_last_of_them_lets_go(fake: FakeTorch, xp: Any) -> None:
    x, out, arena = zeros(xp), zeros(xp), bg.Arena()
    graphs = []
    for _ in range(3):
        with bg.capture(arena=arena) as graph:
            np.add(x, 1, out=out)
        graphs.append(graph)
    with bg.capture(arena=bg.Arena()) as other:
        np.add(x, 1, out=out)
    assert fake.allocator.uses == {(1, 0): 1, (2, 0): 1}
    for graph in graphs[:-1]:
        graph.close()
        assert fake.allocator.uses[(1, 0)] == 1
    graphs[-1].replay()
    graphs[-1].reset()
    assert fake.allocator.uses == {(1, 0): 0, (2, 0): 1}
    with bg.capture(arena=arena) as graph:  # not the one that was let go
        np.add(x, 1, out=out)
    assert fake.allocator.uses == {(1, 0): 0, (2, 0): 1, (3, 0): 1}
    other.close()


@pytest.mark.parametrize("where", ["segment", "break"])
def test_a_capture_that_fails_leaves_the_pool_closed_and_let_go(fake: FakeTorch, xp: Any, where: str) -> None:
    def fails() -> None:
        raise KeyError("no such luck")

    with pytest.raises(KeyError), bg.capture():
        if where == "segment":
            fails()
        bg.break_here(fails, bg.IN_PLACE)
    gc.collect()
    assert (fake.allocator.open, set(fake.allocator.uses.values())) == ([], {0})


def test_cublas_asks_for_new_workspaces_at_both_ends_of_a_capture(fake: FakeTorch, xp: Any) -> None:
    x, out = zeros(xp), zeros(xp)
    with bg.capture():
        assert fake.allocator.workspaces_cleared == 1
        np.add(x, 1, out=out)
    assert fake.allocator.workspaces_cleared == 2


def test_a_torch_whose_pools_take_all_threads_is_refused_with_the_way_out(fake: FakeTorch, xp: Any) -> None:
    del fake._C._cuda_beginAllocateCurrentThreadToPool
    with (
        pytest.raises(BreakgraphError, match=r"(?s)torch 2.13 cannot take part.*2\.8 or later.*frameworks=\(\)"),
        bg.capture(),
    ):
        pytest.fail("the body of a refused capture ran")
    assert not bg.is_capturing()


def test_threads_that_capture_at_once_have_pools_of_their_own(fake: FakeTorch, sim: Any, xp: Any) -> None:
    meet, pools, failed = threading.Barrier(2, timeout=20), [], []

    def work() -> None:
        try:
            sim.ensure_context()
            x, out = zeros(xp), zeros(xp)
            with bg.capture(arena=bg.Arena()) as graph:
                meet.wait()
                pools.append(set(fake.allocator.open))
                meet.wait()
                np.add(x, 1, out=out)
            graph.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert pools[0] == pools[1] == {(1, 0), (2, 0)}


# --- tensors in captures, on a stand-in -------------------------------------------------------------------------------
@nothing_captured
def test_a_tensor_that_a_break_returns_comes_back_as_a_tensor_in_the_arena(fake: FakeTorch, sim: Any, xp: Any) -> None:
    x = tensor(fake, [1, 2, 3])
    arena = bg.Arena()

    def fn(a: Tensor) -> Tensor:
        return tensor(fake, [10 * value for value in values(a)])

    with bg.capture(arena=arena) as graph:
        y = bg.break_here(fn, bg.INFER, x)
    assert type(y) is Tensor
    assert y.dtype is fake.float32
    assert arena.used >= 12
    assert values(y) == [10, 20, 30]
    store(of(x).view(x), [4, 5, 6])
    graph.replay()
    assert values(y) == [40, 50, 60]
    used = arena.used
    del y
    gc.collect()
    assert arena.used < used, "the tensor owned its block"
    graph.close()


@nothing_captured
def test_a_subclass_of_tensor_comes_back_as_itself(fake: FakeTorch) -> None:
    class Marked(Tensor):
        pass

    with bg.capture() as graph:
        y = bg.break_here(lambda: tensor(fake, [1]).as_subclass(Marked), bg.INFER)
    assert type(y) is Marked
    graph.close()


@nothing_captured
def test_bfloat16_is_carried_and_told_from_float16(fake: FakeTorch, sim: Any) -> None:
    half, brain = tensor(fake, [1, 2], fake.float16), tensor(fake, [1, 2], fake.bfloat16)
    with bg.capture() as graph:
        y = bg.break_here(lambda: brain, bg.INFER)
    assert y.dtype is fake.bfloat16
    graph.close()
    with pytest.raises(DTypeMismatch, match="result is bfloat16 and its destination float16"):
        bg.copy_output(half, brain)
    bg.copy_output(tensor(fake, [0, 0], fake.bfloat16), brain)


@nothing_captured
def test_a_result_lands_in_columns_and_rows_that_pad_are_zeroed(fake: FakeTorch) -> None:
    table, x = tensor(fake, np.full((3, 4), 7)), tensor(fake, [[1, 2], [3, 4], [5, 6]])
    columns = table.as_strided((3, 2), (4, 2))
    columns.requires_grad = True
    with bg.capture() as graph:
        bg.break_here(lambda: x, columns)
    assert values(table) == [[1, 7, 2, 7], [3, 7, 4, 7], [5, 7, 6, 7]]
    graph.replay(valid_rows=1)
    assert values(table) == [[1, 7, 2, 7], [0, 7, 0, 7], [0, 7, 0, 7]]
    graph.close()


def test_a_null_stream_is_the_default_stream_and_no_new_one(fake: FakeTorch) -> None:
    framework = OnSim()
    with framework.stream_scope(7):
        with framework.stream_scope(0):
            assert framework.current_stream() == 0
        assert framework.current_stream() == 7


def test_what_torch_cannot_hold_is_an_error_that_says_so(fake: FakeTorch) -> None:
    framework = OnSim()
    with pytest.raises(BreakgraphError, match="backwards"):
        framework.over(Region(64, (2,), (-4,), np.dtype(np.float32)))
    with pytest.raises(BreakgraphError, match="no tensors of datetime64"):
        framework.over(Region.contiguous_at(64, (2,), np.dtype("M8[s]")))
    conjugated = tensor(fake, [1])
    conjugated.pending = True
    with pytest.raises(BreakgraphError, match="resolve_conj"):
        framework.view(conjugated)


# --- torch itself, no GPU ------------------------------------------------------------------------------------------
@pytest.fixture
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch", reason="torch is not installed")


def test_every_dtype_of_torch_goes_there_and_back(torch: Any) -> None:
    framework = TorchFramework()
    names = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool", "uint8", "int8", "int16")
    names += ("int32", "int64", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
    found = {name: framework._numpy_dtype(getattr(torch, name)) for name in names}
    assert len(set(found.values())) == len(names)
    for name, dtype in found.items():
        assert dtype_name(dtype) == name
        assert dtype.itemsize == getattr(torch, name).itemsize
        assert framework._torch_dtype(dtype) is getattr(torch, name)


def test_a_strided_tensor_lies_where_it_says_also_if_it_requires_a_gradient(torch: Any) -> None:
    framework = TorchFramework()
    whole = torch.arange(24.0, dtype=torch.bfloat16).reshape(4, 6).requires_grad_()
    part = whole[1:, ::2].T
    region = framework.view(part)
    assert (region.ptr, region.shape, region.strides) == (whole.data_ptr() + 12, (3, 3), (4, 12))
    assert framework.view(torch.tensor(3.0)).shape == ()
    with pytest.raises(BreakgraphError, match="resolve_conj"):
        framework.view(torch.ones(2, dtype=torch.complex64).conj())


def test_tensors_of_the_host_and_sparse_ones_are_not_owned(torch: Any) -> None:
    framework = TorchFramework()
    for thing in (torch.ones(3), torch.ones(3).to_sparse(), torch.ones(3, device="meta"), np.ones(3), 3):
        assert not framework.owns(thing)


def test_the_calls_that_the_private_pool_needs_are_torchs(torch: Any) -> None:
    """Their names are not public; this fails first when they change."""
    if torch.version.cuda is None:
        pytest.skip("this torch was built without CUDA, and has no such calls")
    calls = ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool", "clearCublasWorkspaces")
    assert all(hasattr(torch._C, f"_cuda_{call}") for call in calls)


# --- torch itself, on a GPU ----------------------------------------------------------------------------------------
@pytest.fixture
def cuda(gpu: Any, torch: Any) -> Iterator[Any]:
    """A torch that has a device. Its allocator must be left as it was: no pool open, none that holds memory."""
    if not torch.cuda.is_available():
        pytest.skip("this torch finds no GPU")
    gc.collect()
    torch.cuda.empty_cache()
    before = pools(torch)
    yield torch
    gc.collect()
    gpu.synchronize()
    torch.cuda.empty_cache()  # fails, and ends the process, where a pool were still open
    assert pools(torch) == before, "a private pool outlives its graphs"


def pools(torch: Any) -> set[Any]:
    """The private pools that hold memory."""
    return {tuple(one["segment_pool_id"]) for one in torch.cuda.memory_snapshot()} - {(0, 0)}


def pool_of(torch: Any, array: Any) -> Any:
    """The pool from which a tensor was allocated; None for memory that is not torch's."""
    for one in torch.cuda.memory_snapshot():
        if one["address"] <= array.data_ptr() < one["address"] + one["total_size"]:
            return tuple(one["segment_pool_id"])
    return None


def test_a_forward_of_torch_replays_on_fresh_inputs(cuda: Any) -> None:
    torch = cuda
    x, out, kinds = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda"), []
    with torch.no_grad(), bg.capture() as graph:
        y = bg.break_here(lambda a: a * a.max().item(), bg.INFER, x + 1)
        kinds.append(type(y))
        out.copy_(y * 10)
    assert kinds == [torch.Tensor]
    assert out.tolist() == [40] * 4
    x.copy_(torch.tensor([1.0, 2, 3, 7]))
    graph.replay()
    assert out.tolist() == [160, 240, 320, 640]
    graph.close()


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64"])
def test_results_of_any_dtype_come_back_as_they_were(cuda: Any, name: str) -> None:
    torch, kind = cuda, getattr(cuda, name)
    x = torch.arange(6, device="cuda").reshape(2, 3)
    with bg.capture() as graph:
        y = bg.break_here(lambda a: a.float().to(kind), bg.INFER, x)
        z = y.clone()
    assert (y.dtype, y.shape, z.dtype) == (kind, x.shape, kind)
    x += 1
    graph.replay()
    expected = x.float().to(kind)
    assert torch.equal(y.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(y.view(torch.uint8), z.view(torch.uint8))
    graph.close()


def test_half_floats_of_two_kinds_are_told_apart(cuda: Any) -> None:
    torch = cuda
    half, brain = (torch.ones(4, device="cuda", dtype=kind) for kind in (torch.float16, torch.bfloat16))
    with pytest.raises(DTypeMismatch, match="bfloat16"), bg.capture():
        bg.break_here(lambda: brain, half)


@nothing_captured
@pytest.mark.parametrize("how", ["columns", "turned", "channels last"])
def test_strided_tensors_are_results_and_destinations(cuda: Any, how: str) -> None:
    torch = cuda
    shape = (2, 3, 4, 4)
    x = torch.arange(96.0, device="cuda").reshape(shape)
    made = {
        "columns": lambda: torch.zeros((2, 3, 4, 8), device="cuda")[..., ::2],
        "turned": lambda: torch.zeros(shape, device="cuda").transpose(2, 3),
        "channels last": lambda: torch.zeros(shape, device="cuda").to(memory_format=torch.channels_last),
    }[how]()
    with bg.capture() as graph:
        bg.break_here(lambda a: (a * 2).transpose(2, 3), made, x)
        inferred = bg.break_here(lambda a: (a * 2).transpose(2, 3), bg.INFER, x)
    x += 1
    graph.replay(valid_rows=1)
    expected = (x * 2).transpose(2, 3).clone()
    expected[1:] = 0
    assert torch.equal(made, expected)
    assert torch.equal(inferred, expected)
    graph.close()


@nothing_captured
def test_tensors_that_require_a_gradient_are_arguments_results_and_destinations(cuda: Any) -> None:
    torch = cuda
    weight = torch.nn.Parameter(torch.full((4,), 2.0, device="cuda"))
    x = torch.ones(4, device="cuda")
    into = torch.zeros(4, device="cuda", requires_grad=True)
    with bg.capture() as graph:
        y = bg.break_here(lambda w, a: w * a, bg.INFER, weight, x)
        bg.break_here(lambda w, a: w * a, into, weight, x)
    assert not y.requires_grad
    x += 2
    graph.replay()
    assert y.tolist() == into.tolist() == [6] * 4
    graph.close()


@nothing_captured
def test_tensors_of_the_host_are_plain_values(cuda: Any) -> None:
    torch = cuda
    host, x = torch.tensor([3]), torch.ones(2, device="cuda")
    with bg.capture() as graph:
        y, count = bg.break_here(lambda a, h: (a * h.item(), h), bg.INFER, x, host)
    assert count is host
    assert [one.value is host for one in graph.breaks[0].frozen] == [True, True]
    x += 1
    graph.replay()
    assert y.tolist() == [6, 6]
    graph.close()


def test_the_current_stream_is_the_captures_in_segments_and_the_replays_in_breaks(cuda: Any, gpu: Any) -> None:
    torch, seen = cuda, []

    def look() -> None:
        seen.append((torch.cuda.current_stream().cuda_stream, int(bg.current_stream())))

    x, mine = torch.zeros(4, device="cuda"), torch.cuda.Stream()
    with bg.capture() as graph:
        look()
        bg.break_here(look, bg.IN_PLACE)
        x += 1
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(mine):
        graph.replay(stream=mine)
        assert torch.cuda.current_stream() == mine
    graph.replay(stream=0)
    assert [inside == ours for inside, ours in seen[:3]] == [True] * 3
    assert seen[2] == (mine.cuda_stream, mine.cuda_stream)
    assert seen[3][0] == 0
    mine.synchronize()
    assert x.tolist() == [3] * 4
    graph.close()


def test_a_stream_of_torch_may_be_captured_on(cuda: Any) -> None:
    torch = cuda
    x, mine = torch.zeros(4, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with bg.capture(stream=mine) as graph:
        x += 1
    assert int(graph.capture_stream) == mine.cuda_stream
    graph.close()


def test_segments_allocate_from_a_private_pool_and_breaks_and_eager_code_do_not(cuda: Any) -> None:
    torch, x = cuda, cuda.ones(1 << 20, device="cuda")
    with bg.capture() as graph:
        one = x + 1
        inside = []
        bg.break_here(lambda: inside.append(x + 2), bg.IN_PLACE)
        two = x + 3
    found = {
        name: pool_of(torch, array)
        for name, array in {"one": one, "in the break": inside[0], "two": two, "x": x}.items()
    }
    after = x + 4
    assert found["one"] == found["two"] != (0, 0)
    assert found["in the break"] == found["x"] == pool_of(torch, after) == (0, 0)
    graph.close()


def test_one_arena_holds_the_largest_of_many_sizes_not_the_sum(cuda: Any) -> None:
    torch, arena, graphs, sizes = cuda, bg.Arena(), [], {}
    for rows in (4096, 2048, 1024, 512):
        x = torch.ones((rows, 1024), device="cuda")
        with bg.capture(arena=arena) as graph:
            t = x
            for _ in range(4):
                t = t * 2 + 1
            out = graph.output(t)
            del t
        graph.keep(x, out)
        graphs.append(graph)
        private = {
            one["address"]: one["total_size"]
            for one in torch.cuda.memory_snapshot()
            if tuple(one["segment_pool_id"]) != (0, 0)
        }
        sizes[rows] = sum(private.values())
    assert len(pools(torch)) == 1
    assert sizes[512] <= 1.1 * sizes[4096]
    for graph in graphs:
        graph.replay()
    for graph in graphs:
        graph.close()


def test_memory_goes_back_when_the_last_graph_of_an_arena_is_gone(cuda: Any) -> None:
    torch, arena = cuda, bg.Arena()
    x, out = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graphs = []
    for _ in range(2):
        with bg.capture(arena=arena) as graph:
            torch.add(x + 1, 1, out=out)
        graphs.append(graph)
    graphs[0].close()
    torch.cuda.empty_cache()
    junk = [torch.full((1 << 20,), 9.0, device="cuda") for _ in range(4)]
    graphs[1].replay()
    assert out.unique().tolist() == [3]
    assert all(one.unique().tolist() == [9] for one in junk), "nobody is given what a graph writes"
    del junk
    graphs[1].close()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (4 << 20)


def test_a_graph_may_end_while_another_thread_captures(cuda: Any, gpu: Any) -> None:
    """The end of a ``torch.cuda.MemPool`` would abort the process here."""
    torch, failed = cuda, []
    x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    with bg.capture(arena=bg.Arena()) as doomed:
        torch.add(x + 1, 1, out=out)
    torch.cuda.synchronize()
    opened, closed = threading.Event(), threading.Event()

    def work() -> None:
        try:
            gpu.ensure_context()
            with bg.capture(arena=bg.Arena()) as graph:
                t = x + 1
                opened.set()
                assert closed.wait(20)
                torch.add(t, 1, out=out)
            graph.replay()
            torch.cuda.current_stream().synchronize()
            graph.close()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert opened.wait(20)
    doomed.close()
    gc.collect()
    closed.set()
    thread.join()
    assert failed == []
    assert out.tolist() == [3] * 4


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_products_are_captured_and_graphs_of_two_arenas_share_no_workspace(cuda: Any, name: str) -> None:
    torch, kind, graphs = cuda, getattr(cuda, name), []
    torch.manual_seed(0)
    for _ in range(2):
        a, b = (torch.randn((512, 512), device="cuda", dtype=kind) for _ in range(2))
        out = torch.zeros((512, 512), device="cuda", dtype=kind)
        with bg.capture(arena=bg.Arena()) as graph:
            t = bg.break_here(lambda c: c * 2, bg.INFER, a @ b)
            torch.matmul(t, b, out=out)
        graphs.append((graph, a, b, out))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in graphs]
    for _, a, _, _ in graphs:
        a.neg_()
    torch.cuda.synchronize()
    for _ in range(50):
        for (graph, *_), stream in zip(graphs, streams, strict=True):
            graph.replay(stream=stream)
    torch.cuda.synchronize()
    for graph, a, b, out in graphs:
        expected = ((a @ b) * 2) @ b
        assert torch.allclose(out.float(), expected.float(), rtol=1e-2, atol=1e-1 * float(expected.abs().max()) / 10)
        graph.close()


def test_a_module_with_attention_as_the_break_equals_its_eager_self(cuda: Any) -> None:
    torch = cuda
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64).cuda().bfloat16() for _ in range(3)]
    norm = torch.nn.LayerNorm(64).cuda().bfloat16()

    @bg.break_point
    def attention(q: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q[None], q[None], q[None])[0]

    def forward(x: Any) -> Any:
        for layer in layers:
            x = x + attention(torch.nn.functional.gelu(layer(norm(x))))
        return x

    x = torch.randn((32, 64), device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        with bg.capture() as graph:
            y = graph.output(forward(x))
        assert (len(graph.segments), len(graph.breaks)) == (4, 3)
        for _ in range(3):
            x.normal_()
            expected = forward(x)
            graph.replay()
            assert torch.equal(y, expected)
    graph.close()


@pytest.mark.parametrize("mistake", ["item", "random numbers", "cpu"])
def test_what_no_segment_can_hold_fails_the_capture_and_the_next_one_works(cuda: Any, mistake: str) -> None:
    torch = cuda
    x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    wrong = {"item": lambda: x.sum().item(), "random numbers": lambda: torch.rand(4, device="cuda"), "cpu": x.cpu}[
        mistake
    ]
    with pytest.raises(Exception) as raised, bg.capture() as graph:  # noqa: PT011 - torch's own errors
        wrong()
    assert not isinstance(raised.value, CaptureFailed)
    assert graph.state == "failed"
    with bg.capture() as graph:
        bg.break_here(wrong, bg.NO_WRITEBACK)
        torch.add(x + 1, 1, out=out)
    x += 1
    graph.replay()
    assert out.tolist() == [4] * 4
    graph.close()


def test_a_fork_of_torchs_own_is_joined(cuda: Any) -> None:
    torch, side = cuda, cuda.cuda.Stream()
    x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with bg.capture() as graph:
        t = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.mul(t, 2, out=out)
    assert graph.segments[0].joined == 1
    x += 1
    graph.replay()
    assert out.tolist() == [6] * 4
    graph.close()


@nothing_captured
def test_cells_and_arrays_of_cupy_take_results_of_torch_and_the_other_way_round(cuda: Any, xp: Any) -> None:
    torch = cuda
    x, cell = torch.ones(4, device="cuda"), bg.Cell(4, np.float32)
    back = torch.zeros(4, device="cuda")
    with bg.capture() as graph:
        y = bg.break_here(lambda a: a * 2, cell, x)
        bg.break_here(lambda a: a + 1, back, y)
    x += 1
    graph.replay()
    torch.cuda.synchronize()
    assert cell.array.get().tolist() == [4] * 4
    assert back.tolist() == [5] * 4
    graph.close()


def test_what_a_capture_leaves_to_the_current_stream_of_both_libraries_is_refused_where_they_differ(
    cuda: Any, xp: Any
) -> None:
    torch, x, out = cuda, zeros(xp), zeros(xp)
    with bg.capture() as graph:
        np.add(x, 1, out=out)
    refill(x, 3)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(CaptureStateError, match="stream="):
        graph.replay()
    graph.close()
