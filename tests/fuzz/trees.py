"""Trees of two arrays, as breaks return them and land in them: a tuple, a list, a mapping, an object, ..."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Box", "TREES", "fill", "label_of", "parts_of", "set_label", "tree_of"]

TREES = 7  #: how many variants there are


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Box:
    a: Any
    b: Any
    n: int = 0


class Holder:
    def __init__(self, a: Any, b: Any, n: int) -> None:
        self.a, self.b, self.n = a, b, n


def tree_of(variant: int, a: Any, b: Any, n: int) -> Any:
    """Two arrays, and in some variants a plain value, in a tree."""
    return (
        lambda: (a, b),
        lambda: [a, b],
        lambda: {"a": a, "n": n, "b": b, "none": None},
        lambda: Pair(a, b),
        lambda: Box(a, b, n),
        lambda: (a, {"x": [b]}, 7),
        lambda: Holder(a, b, n),
    )[variant]()


def parts_of(variant: int, tree: Any) -> tuple[Any, Any]:
    """The two arrays."""
    if variant in (4, 6):
        return tree.a, tree.b
    if variant == 2:
        return tree["a"], tree["b"]
    return (tree[0], tree[1]["x"][0]) if variant == 5 else (tree[0], tree[1])


def label_of(variant: int, tree: Any) -> int | None:
    """The plain value of a destination, which each run sets anew; None in a variant that has none."""
    return tree.n if variant in (4, 6) else tree["n"] if variant == 2 else None


def fill(variant: int, tree: Any, a: Any, b: Any) -> Any:
    """The tree with other arrays in it: the same one, where it can be changed."""
    if variant == 1:
        tree[:] = a, b
    elif variant == 2:
        tree.update(a=a, b=b)
    elif variant in (4, 6):
        tree.a, tree.b = a, b
    else:
        return tree_of(variant, a, b, 0)
    return tree


def set_label(variant: int, tree: Any, label: int) -> None:
    if variant in (4, 6):
        tree.n = label
    elif variant == 2:
        tree["n"] = label
