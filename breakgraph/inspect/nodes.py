"""The nodes of a segment's graph, asked of the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from breakgraph.driver import Driver
from breakgraph.driver.api import KernelNode, MemoryType, NodeType
from breakgraph.errors import DriverError
from breakgraph.inspect.layout import places
from breakgraph.inspect.schema import NodeDescription

__all__ = ["describe_nodes"]

T = TypeVar("T")

_ENDS = {MemoryType.HOST: "host", MemoryType.DEVICE: "device", MemoryType.ARRAY: "array", MemoryType.UNIFIED: "memory"}


def describe_nodes(driver: Driver, graph: int) -> tuple[list[NodeDescription], list[list[int]]]:
    """The nodes of a graph, and its edges as pairs of places among them."""
    handles = driver.graph_get_nodes(graph)
    place_of = {handle: at for at, handle in enumerate(handles)}
    edges = sorted([place_of[edge.tail], place_of[edge.head]] for edge in driver.graph_get_edges(graph))
    nodes = [_describe(driver, handle) for handle in handles]
    for node, place in zip(nodes, places(len(nodes), edges), strict=True):
        node["layer"], node["lane"] = place
    return nodes, edges


def _describe(driver: Driver, handle: int) -> NodeDescription:
    kind = driver.graph_node_get_type(handle)
    node = NodeDescription(
        kind=kind.name.lower(),
        name=kind.name.lower().replace("_", " "),
        grid=None,
        block=None,
        shared_bytes=None,
        bytes=None,
        layer=0,
        lane=0,
    )
    if kind is NodeType.KERNEL:
        kernel = _asked(driver.graph_kernel_node_get_params, handle)
        node["name"] = _name(driver, kernel) if kernel else "unnamed kernel"
        if kernel:
            node["grid"], node["block"] = list(kernel.grid), list(kernel.block)
            node["shared_bytes"] = kernel.shared_bytes
    elif kind is NodeType.MEMCPY and (copy := _asked(driver.graph_memcpy_node_get_params, handle)):
        node["name"], node["bytes"] = f"memcpy {_ENDS[copy.source]} to {_ENDS[copy.destination]}", copy.nbytes
    elif kind is NodeType.MEMSET and (fill := _asked(driver.graph_memset_node_get_params, handle)):
        node["bytes"] = fill.nbytes
    return node


def _name(driver: Driver, kernel: KernelNode) -> str:
    name = _asked(driver.func_get_name, kernel.func) if kernel.func else None
    if name is None and kernel.kern:
        name = _asked(driver.kernel_get_name, kernel.kern)
    return name or "unnamed kernel"


def _asked(question: Callable[[int], T], handle: int) -> T | None:
    """The driver's answer; None where it has none, such as a name before 12.3 or of a module that is unloaded."""
    try:
        return question(handle)
    except DriverError as error:
        if error.sticky:
            raise
        return None
