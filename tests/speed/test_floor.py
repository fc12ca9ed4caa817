"""The floor is what it says: a C loop that launches each exec once, in order, and returns its own time.

The driver here is a library of four lines that writes down who called it, built by the same compiler.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import speed_support  # noqa: F401 - the benchmarks on the path

import breakgraph as bg
from benchmarks import _floor
from benchmarks._peers import Missing

DRIVER = """
static long calls[64]; static int made, fail_at = -1;
int cuGraphLaunch(void *exec, void *stream) { calls[made++] = (long)exec; return made == fail_at ? 719 : 0; }
int cuStreamSynchronize(void *stream) { calls[made++] = -(long)stream; return 0; }
long *calls_made(int *count) { *count = made; return calls; }
void start_over(int fail) { made = 0; fail_at = fail; }
"""


class Driver:
    """The library, and what it wrote down."""

    def __init__(self, folder: Path) -> None:
        source = folder / "driver.c"
        source.write_text(DRIVER)
        self.path = str(folder / "libdriver.so")
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        assert compiler
        subprocess.run([compiler, "-shared", "-fPIC", "-o", self.path, str(source)], check=True)
        self._library = ctypes.CDLL(self.path)
        self._library.calls_made.restype = ctypes.POINTER(ctypes.c_long)

    def start_over(self, fail_at: int = -1) -> None:
        self._library.start_over(fail_at)

    @property
    def calls(self) -> list[int]:
        count = ctypes.c_int()
        calls = self._library.calls_made(ctypes.byref(count))
        return calls[: count.value]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler: neither cc, gcc nor clang")
    return Driver(tmp_path_factory.mktemp("floor"))


def test_it_launches_each_exec_once_in_order_and_returns_its_time(recorder: Driver) -> None:
    loop = _floor.launches([11, 22, 33], stream=7, driver=recorder.path)
    recorder.start_over()
    assert 0 < loop() < 1e9
    assert recorder.calls == [11, 22, 33]


def test_it_waits_for_the_stream_where_it_is_asked_to(recorder: Driver) -> None:
    loop = _floor.launches([11, 22], stream=7, wait=True, driver=recorder.path)
    recorder.start_over()
    loop()
    assert recorder.calls == [11, 22, -7]


def test_a_launch_that_fails_ends_it_and_raises_its_error(recorder: Driver) -> None:
    loop = _floor.launches([11, 22, 33], stream=7, wait=True, driver=recorder.path)
    recorder.start_over(fail_at=2)
    with pytest.raises(bg.errors.DriverError) as raised:
        loop()
    assert raised.value.code == 719
    assert recorder.calls == [11, 22]


def test_a_driver_that_is_not_there_is_a_reason_not_an_error_of_the_loader() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler: neither cc, gcc nor clang")
    with pytest.raises(Missing, match=r"no driver to call: .*libnowhere"):
        _floor.launches([1], stream=0, driver="libnowhere.so.1")


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_floor.shutil, "which", lambda name: None)
    _floor._opened.cache_clear()
    with pytest.raises(Missing, match="no C compiler to build the C loop with"):
        _floor.launches([1], stream=0, driver="another.so")


def test_the_loop_by_ctypes_launches_and_calls_in_turn(recorder: Driver) -> None:
    seen: list[list[int]] = []
    loop = _floor.by_ctypes([11, 22, 33], 7, lambda: seen.append(recorder.calls), driver=recorder.path)
    recorder.start_over()
    assert 0 < loop() < 1e9
    assert seen == [[11], [11, 22]]
    assert recorder.calls == [11, 22, 33]


def test_the_loop_by_ctypes_raises_the_error_of_its_last_launch(recorder: Driver) -> None:
    loop = _floor.by_ctypes([11, 22], 7, lambda: None, driver=recorder.path)
    recorder.start_over(fail_at=2)
    with pytest.raises(bg.errors.DriverError) as raised:
        loop()
    assert raised.value.code == 719


def test_without_a_driver_the_loop_by_ctypes_says_so() -> None:
    with pytest.raises(Missing, match=r"no driver to call: .*libnowhere"):
        _floor.by_ctypes([1], 0, lambda: None, driver="libnowhere.so.1")
