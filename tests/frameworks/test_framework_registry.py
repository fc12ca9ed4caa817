"""A framework takes part if its library was imported and is of the current driver, or by name.

Proves that none is imported unasked, and what each wrong name is answered.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from support import child

from breakgraph import frameworks
from breakgraph.errors import BreakgraphError


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
    monkeypatch.setattr(frameworks._KNOWN["cupy"], "_made", None)
    monkeypatch.setattr(frameworks, "_by_type", {})


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
    assert frameworks.taking_part(CudaDriver()) == ()  # type: ignore[arg-type]
    assert frameworks.of(object(), CudaDriver()) is None  # type: ignore[arg-type]


def test_what_it_has_imported_takes_part_on_its_own_driver_alone(stub: Stub, sim: Any) -> None:
    (cupy,) = frameworks.taking_part(CudaDriver())  # type: ignore[arg-type]
    assert cupy.name == "cupy"
    assert [one.name for one in frameworks.taking_part(sim)] == ["sim"]
    array = stub.ndarray()
    assert frameworks.of(array, CudaDriver()) is cupy  # type: ignore[arg-type]
    assert frameworks.of(array, sim) is None


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
