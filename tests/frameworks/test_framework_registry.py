"""A framework takes part if its library was imported and is of the current driver, or by name.

Proves that none is imported unasked, and what each wrong name is answered.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import Buffer, DeviceNDArray, FakeNumba, FakeTorch
from support import child

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver import Region
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks import Framework, ScopedStreams

pytestmark = pytest.mark.libraries("torch", "numba", "cuda.core")


class Stub(ModuleType):
    """A stand-in for cupy: as much of it as the framework touches before there is an array."""

    def __init__(self) -> None:
        super().__init__("cupy", "stands in for cupy")
        self.ndarray = type("ndarray", (), {})


class CudaDriver:
    """All that the registry asks of a driver."""

    name = "cuda"


@pytest.fixture
def without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process had never imported cupy, and could not."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(frameworks, "_by_type", {})
    for name, module in {"cupy": None, "torch": None, "numba": "numba.cuda", "cuda.core": None, "generic": ""}.items():
        monkeypatch.setattr(frameworks._KNOWN[name], "_made", None)
        if module != "":
            monkeypatch.setitem(sys.modules, module or name, None)


@pytest.fixture
def stub(without_cupy: None, monkeypatch: pytest.MonkeyPatch) -> Stub:
    module = Stub()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_importing_the_library_and_capturing_on_the_simulator_imports_no_cupy() -> None:
    done = child("""
        import sys
        import breakgraph as bg
        from breakgraph import frameworks
        bg.driver.use("sim")
        xp = bg.array_namespace()
        assert frameworks.taking_part(bg.driver.current())[0].name == "sim"
        assert float(xp.ones(3).sum()) == 3
        assert "cupy" not in sys.modules and "torch" not in sys.modules
        print("looked")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "looked\n"


def test_the_simulators_arrays_take_part_on_the_simulator(sim: Any) -> None:
    assert [one.name for one in frameworks.taking_part(sim)] == ["sim"]
    assert [one.name for one in frameworks.taking_part(sim, ["sim"])] == ["sim"]
    assert [one.name for one in frameworks.taking_part(sim, "sim")] == ["sim"]
    assert frameworks.taking_part(sim, ()) == ()


@pytest.mark.usefixtures("without_cupy")
def test_what_the_program_has_not_imported_does_not_take_part() -> None:
    assert [one.name for one in frameworks.taking_part(CudaDriver())] == ["generic"]  # type: ignore[arg-type]
    assert frameworks.of(object(), CudaDriver()) is None  # type: ignore[arg-type]


def test_what_it_has_imported_takes_part_on_its_own_driver_alone(stub: Stub, sim: Any) -> None:
    cupy, generic = frameworks.taking_part(CudaDriver())  # type: ignore[arg-type]
    assert (cupy.name, generic.name) == ("cupy", "generic")
    assert [one.name for one in frameworks.taking_part(sim)] == ["sim"]
    array = stub.ndarray()
    assert frameworks.of(array, CudaDriver()) is cupy  # type: ignore[arg-type]
    assert frameworks.of(array, sim) is None


def test_libraries_are_asked_in_order_and_the_one_that_takes_any_array_is_asked_last(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, fake in {
        "torch": FakeTorch(),
        "numba.cuda": FakeNumba(),
        "cuda.core": SimpleNamespace(Buffer=Buffer),
    }.items():
        monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(cuda=sys.modules["numba.cuda"]))
    driver: Any = CudaDriver()
    assert [one.name for one in frameworks.taking_part(driver)] == ["cupy", "torch", "numba", "cuda.core", "generic"]
    interface = {"version": 3, "data": (0, False), "shape": (0,), "strides": None, "typestr": "<f4"}
    region = Region.contiguous_at(0, (0,), np.dtype(np.float32))
    with_interface = type("array", (stub.ndarray,), {"__cuda_array_interface__": interface})()
    assert frameworks.of(with_interface, driver).name == "cupy"
    numba = type("array", (DeviceNDArray,), {"__cuda_array_interface__": interface})(region, None)
    assert frameworks.of(numba, driver).name == "numba"
    assert frameworks.of(Buffer(0, 0, None), driver).name == "cuda.core"
    assert frameworks.of(SimpleNamespace(__cuda_array_interface__=interface), driver).name == "generic"


@pytest.mark.parametrize(
    ("module", "fake"),
    [
        ("torch", SimpleNamespace(compile=None, cuda=SimpleNamespace(is_available=lambda: False))),
        ("torch", SimpleNamespace()),  # in the middle of its import
        ("numba.cuda", SimpleNamespace(external_stream=None)),  # numba's own simulator
        ("cuda.core", SimpleNamespace(experimental=None)),
    ],
    ids=["torch without a device", "torch half imported", "numba's simulator", "an old cuda.core"],
)
@pytest.mark.usefixtures("without_cupy")
def test_a_library_that_cannot_be_used_does_not_take_part(
    monkeypatch: pytest.MonkeyPatch, module: str, fake: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, fake)
    assert [one.name for one in frameworks.taking_part(CudaDriver())] == ["generic"]  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_cupy")
def test_a_library_named_and_not_installed_is_an_error_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BreakgraphError, match="torch cannot be imported") as refused:
        frameworks.taking_part(CudaDriver(), ["torch"])  # type: ignore[arg-type]
    assert isinstance(refused.value.__cause__, ImportError)


class Mine(ScopedStreams, Framework):
    """The least that a framework is."""

    name, driver_name = "mine", "sim"

    def __init__(self, kind: type) -> None:
        super().__init__()
        self._kind = kind

    def owns(self, obj: object) -> bool:
        return isinstance(obj, self._kind) and getattr(obj, "mine", True)

    def view(self, array: Any) -> Region:
        return Region.contiguous_at(0, (0,), np.dtype(np.float32))

    def over(self, region: Region, owner: object = None) -> Any:
        return self._kind()


def test_a_registered_framework_takes_part_and_is_asked_first(sim: Any, xp: Any) -> None:
    array = xp.zeros(3)
    assert frameworks.of(array, sim).name == "sim"
    frameworks.register(Mine(type(array)))
    assert [one.name for one in frameworks.taking_part(sim)] == ["mine", "sim"]
    assert frameworks.of(array, sim).name == "mine"
    assert bg.array_namespace() is xp, "whoever is asked first, this is the driver's own"


def test_a_name_is_registered_once(sim: Any) -> None:
    frameworks.register(Mine(bytearray))
    for _ in range(2):
        with pytest.raises(BreakgraphError, match="'mine' is known already"):
            frameworks.register(Mine(bytearray))
    assert [one.name for one in frameworks.taking_part(sim)] == ["mine", "sim"]


def test_an_object_of_a_known_type_that_is_no_array_is_none(sim: Any) -> None:
    """As torch has one type for the tensors of every device."""

    class Tensor:
        def __init__(self, mine: bool) -> None:
            self.mine = mine

    frameworks.register(Mine(Tensor))
    assert frameworks.of(Tensor(True), sim).name == "mine"
    assert frameworks.of(Tensor(False), sim) is None
    assert frameworks.of(Tensor(True), sim).name == "mine"


def test_a_name_that_nobody_knows_is_refused_with_those_that_are(sim: Any) -> None:
    with pytest.raises(BreakgraphError, match=r"(?s)'jax' cannot take part.*choose from 'sim'"):
        frameworks.taking_part(sim, ["jax"])


def test_a_framework_of_another_driver_is_refused(sim: Any) -> None:
    with pytest.raises(BreakgraphError, match=r"(?s)'cupy' cannot take part on the sim driver.*in cuda memory"):
        frameworks.taking_part(sim, ["sim", "cupy"])


@pytest.mark.usefixtures("without_cupy")
def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it() -> None:
    with pytest.raises(BreakgraphError, match=r"need cupy(?s:.*)pip install 'breakgraph\[cuda13\]'") as refused:
        frameworks.taking_part(CudaDriver(), ["cupy"])  # type: ignore[arg-type]
    assert isinstance(refused.value.__cause__, ImportError)


def test_an_array_is_recognized_and_remembered_by_its_type(sim: Any, xp: Any) -> None:
    array = xp.zeros(3)
    found = frameworks.of(array, sim)
    assert found is frameworks.of(array[:1], sim)
    assert found is not None
    assert found.name == "sim"


def test_what_is_no_array_has_no_framework_and_is_not_remembered(sim: Any) -> None:
    before = dict(frameworks._by_type)
    for thing in (3, "x", [1.0], {}, object(), None, frameworks):
        assert frameworks.of(thing, sim) is None
    assert frameworks._by_type == before


def test_the_namespace_on_cuda_forwards_to_cupy(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.tanh = lambda x: ("tanh", x)
    monkeypatch.setattr("breakgraph.driver.current", CudaDriver)
    xp = frameworks.array_namespace()
    assert xp.tanh(2) == ("tanh", 2)
    assert "tanh" in dir(xp)
    with pytest.raises(AttributeError):
        xp.absent  # noqa: B018
