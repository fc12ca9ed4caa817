"""One suite, two drivers: the ``driver`` fixture runs a test on the simulator and on a GPU where there is one.

Each test must leave the driver as it found it. The fixtures check that afterwards, so that no test has to:
nothing captures, no graph or exec outlives its owner, thread capture mode, current context and garbage
collector are as before, and the simulator's race finder has found nothing.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

# Most cases need a capture, and the kill switch is read once per process: it is cleared before the library
# can read it. A test in test_refusals.py shows in a child process that the switch works.
DISABLED = os.environ.pop("BREAKGRAPH_DISABLE", None)

from twins import twin_called  # noqa: E402

import breakgraph as bg  # noqa: E402
from breakgraph import frameworks  # noqa: E402
from breakgraph.driver.api import CaptureMode, CaptureStatus, Driver  # noqa: E402

CHOSEN = os.environ.get("BREAKGRAPH_DRIVER", "")
SEED = int(os.environ.get("BREAKGRAPH_TEST_SEED", "7"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "races: this test plants races; the fixture does not complain about them")
    config.addinivalue_line("markers", "keeps_handles: this test leaves driver handles on purpose")
    config.addinivalue_line("markers", "libraries(*names): array libraries that take part beside the driver's own")
    for warning in ("pytest.PytestUnraisableExceptionWarning", "pytest.PytestUnhandledThreadExceptionWarning"):
        config.addinivalue_line("filterwarnings", f"error::{warning}")
    config.addinivalue_line("filterwarnings", "error::breakgraph.errors.BreakgraphWarning")
    # The fixtures ask for races themselves, after the test has said which value was wrong by them.
    config.addinivalue_line("filterwarnings", "ignore::breakgraph.driver.sim.RaceWarning")


@pytest.fixture(scope="module", autouse=True)
def _frozen_heap() -> None:
    """The fixtures below collect after each test, and would walk what pytest and other modules hold each time."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> list[str]:
    lines = [f"breakgraph: the simulator (seed {SEED}), and " + (_no_gpu() or "a GPU")]
    if DISABLED is not None:
        lines.append(f"breakgraph: BREAKGRAPH_DISABLE={DISABLED} is cleared here, since most cases need a capture")
    return lines


def _no_gpu() -> str:
    """Why no test can run on a GPU; empty where one can."""
    if CHOSEN == "sim":
        return "no GPU, because BREAKGRAPH_DRIVER=sim"
    try:
        with bg.driver.use("cuda") as driver:
            driver.synchronize()
    except bg.errors.DriverNotFound as error:
        return f"no GPU: {error.what}" + (f" ({error.why})" if error.why else "")
    return ""


@pytest.fixture(autouse=True)
def _registry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has imported what the test asks for: other tests' imports stay in this process."""
    marker = request.node.get_closest_marker("libraries")
    hidden = {"torch", "numba", "cuda.core"}.difference(marker.args if marker else ())
    known = {name: one for name, one in frameworks._KNOWN.items() if name not in hidden}
    monkeypatch.setattr(frameworks, "_KNOWN", known)
    monkeypatch.setattr(frameworks, "_by_type", {})


@pytest.fixture(scope="session")
def no_gpu() -> str:
    return _no_gpu()


@pytest.fixture(params=["sim", "cuda"])
def driver(request: pytest.FixtureRequest, no_gpu: str) -> Iterator[Driver]:
    """The current driver: ``sim`` (schedule ``lazy``, so that a missing wait shows) or ``cuda``.

    Other schedules: ``support.every_schedule``.
    """
    name, _, schedule = request.param.partition("-")
    if name == "cuda" and no_gpu:
        if CHOSEN == "cuda":
            pytest.fail(f"BREAKGRAPH_DRIVER=cuda, but {no_gpu}")
        pytest.skip(no_gpu)
    options = {"schedule": schedule or "lazy", "seed": SEED} if name == "sim" else {}
    with bg.driver.use(name, **options) as made, _left_as_found(made, request):
        yield made


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A fresh simulated device for tests that ask its log, its counts or its faults."""
    with (
        bg.driver.use("sim", schedule=getattr(request, "param", "lazy"), seed=SEED) as made,
        _left_as_found(made, request),
    ):
        yield made


@pytest.fixture
def gpu(no_gpu: str, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """The real driver, for what only it answers."""
    if no_gpu:
        if CHOSEN == "cuda":
            pytest.fail(f"BREAKGRAPH_DRIVER=cuda, but {no_gpu}")
        pytest.skip(no_gpu)
    with bg.driver.use("cuda") as made, _left_as_found(made, request):
        yield made


@pytest.fixture
def xp(request: pytest.FixtureRequest) -> ModuleType:
    """The array namespace of the current driver."""
    if not {"sim", "driver", "gpu"} & set(request.fixturenames):
        pytest.fail("a test that asks for xp asks for a driver too")
    for name in ("driver", "sim", "gpu"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    return bg.array_namespace()


@pytest.fixture(params=["native", "portable"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    """The C extension, and its twin in Python."""
    return twin_called(request.param)


@contextmanager
def _left_as_found(driver: Driver, request: pytest.FixtureRequest) -> Iterator[None]:
    driver.synchronize()  # makes the primary context current where there is none
    collecting, mode, context = gc.isenabled(), thread_mode(driver), driver.ctx_get_current()
    depth = driver.context_depth if driver.name == "sim" else 0
    yield
    assert gc.isenabled() == collecting, "automatic garbage collection was not restored (C8)"
    gc.collect()  # an exception that a test kept holds its frames, and they hold graphs
    assert not bg.is_capturing(), "the capture slot of this thread is still taken"
    assert bg.current_forward() is None, "a forward context is still published"
    assert bg.current_valid_rows() is None, "a row count is still published"
    assert thread_mode(driver) == mode, "the thread's capture mode was not restored"
    assert driver.ctx_get_current() == context, "the current context was not restored (C31)"
    assert driver.stream_is_capturing(0) == CaptureStatus.NONE
    if driver.name != "sim":
        driver.synchronize()
        return
    assert driver.context_depth == depth, "the context stack was not restored (C31)"
    assert not driver.live()["capture"], "a stream is still capturing"
    if not request.node.get_closest_marker("keeps_handles"):
        left = {kind: handles for kind, handles in driver.live().items() if kind in ("graph", "graph_exec") and handles}
        assert not left, f"driver objects were left behind: {left} (C27)"
    if not request.node.get_closest_marker("races"):
        driver.synchronize()
        assert not driver.races, "\n".join(map(str, driver.races))


def thread_mode(driver: Driver) -> CaptureMode:
    """The calling thread's capture mode, unchanged."""
    mode = driver.thread_exchange_stream_capture_mode(CaptureMode.RELAXED)
    driver.thread_exchange_stream_capture_mode(mode)
    return mode
