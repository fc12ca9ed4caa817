"""The bindings have what ``cuda.py`` and the probes call, with the shape they expect, in 12.9 and in 13.x.

What is called is read from the source, never listed by hand. The two committed snapshots say what a release
offers; the installed bindings, if any, are checked against theirs. No driver is needed.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pytest

from .surface import ENTRIES, PROBES, SNAPSHOTS, SOURCES, Use, asked_by, fields_read, functions_named_in, surface_of

ASKED = asked_by(SOURCES)


def snapshot(major: int) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(SNAPSHOTS[major].read_text())
    return loaded


def misfit(use: Use, shape: dict[str, Any]) -> str:
    """Why a call does not fit what a release offers; empty if it does."""
    if use.arguments > len(shape["parameters"]):
        return f"line {use.line}: {use.name} is given {use.arguments} of {shape['parameters']}"
    if use.arguments < shape["required"] and not use.starred:
        return f"line {use.line}: {use.name} is given {use.arguments} and needs {shape['required']}"
    offered = len(shape["returns"]) - 1
    if use.values is not None and (offered < use.values or (offered > use.values and not use.at_least)):
        return f"line {use.line}: {use.name} gives {offered} values, {use.values} are taken"
    return ""


@pytest.mark.parametrize("major", SNAPSHOTS)
def test_every_function_that_the_driver_layer_calls_exists(major: int) -> None:
    offered = snapshot(major)["functions"]
    versioned = {name for name in ASKED.functions if name[-3:-1] == "_v"}  # used where they are, with a bare form too
    assert ASKED.functions - versioned <= offered.keys()
    assert len(ASKED.functions) > 60


@pytest.mark.parametrize("major", SNAPSHOTS)
def test_every_call_of_the_driver_layer_fits_the_shape_offered(major: int) -> None:
    offered = snapshot(major)["functions"]
    assert [
        misfit(use, offered[use.name]) for use in ASKED.uses if use.name in offered if misfit(use, offered[use.name])
    ] == []
    assert {use.name for use in ASKED.uses} | functions_named_in([ENTRIES]) >= ASKED.functions


@pytest.mark.parametrize("major", SNAPSHOTS)
def test_every_type_and_field_that_the_driver_layer_names_exists(major: int) -> None:
    offered = snapshot(major)["types"]
    assert {name: sorted(members) for name, members in sorted(ASKED.types.items())} == offered


@pytest.mark.parametrize("major", SNAPSHOTS)
def test_every_function_that_a_probe_names_exists(major: int) -> None:
    assert functions_named_in(PROBES) <= snapshot(major)["functions"].keys()


def test_the_newer_form_with_edge_data_is_beside_the_older_in_12_9_and_bare_in_13() -> None:
    old, new = snapshot(12)["functions"], snapshot(13)["functions"]
    assert old["cuStreamGetCaptureInfo_v3"] == new["cuStreamGetCaptureInfo"]
    assert old["cuGraphGetEdges_v2"] == new["cuGraphGetEdges"]
    assert len(old["cuStreamGetCaptureInfo"]["returns"]) == 6


@pytest.mark.parametrize(
    "use",
    [
        Use("f", 1, 3, False, None),
        Use("f", 1, 1, False, None),
        Use("f", 1, 2, False, 2),
        Use("f", 1, 2, False, 0),
        Use("f", 1, 2, False, 2, at_least=True),
    ],
)
def test_a_call_that_does_not_fit_is_seen(use: Use) -> None:
    assert misfit(use, {"parameters": ["a", "b"], "required": 2, "returns": ["CUresult", "value"]})


@pytest.fixture
def bindings() -> ModuleType:
    """The bindings that are installed, which need no driver to be looked at."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        pytest.skip(f"no bindings are installed ({error})")


@pytest.mark.parametrize(
    ("function", "structure"),
    [
        ("graph_kernel_node_get_params", "CUDA_KERNEL_NODE_PARAMS"),
        ("graph_memcpy_node_get_params", "CUDA_MEMCPY3D"),
        ("graph_memset_node_get_params", "CUDA_MEMSET_NODE_PARAMS"),
    ],
)
def test_the_structures_of_the_installed_bindings_have_the_fields_that_are_read(
    bindings: ModuleType, function: str, structure: str
) -> None:
    (source,) = (path for path in SOURCES if path.name == "cuda_nodes.py")
    fields = fields_read(source, function)
    assert fields
    assert fields <= set(dir(getattr(bindings, structure)()))


def test_the_installed_bindings_are_as_their_snapshot_says(bindings: ModuleType) -> None:
    known = snapshot(bindings.CUDA_VERSION // 1000)
    live = surface_of(bindings, version("cuda-bindings"), set(known["functions"]), ASKED.types)
    assert live["types"] == known["types"]
    assert live["functions"] == known["functions"]
