"""What the project asks of ``cuda.bindings.driver``, read from its source, and what a release offers, read from it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SNAPSHOTS = {12: HERE / "surface_12_9.json", 13: HERE / "surface_13.json"}
ENTRIES = ROOT / "breakgraph/driver/entries.py"  # whose functions are called by address
SOURCES = [ROOT / "breakgraph/driver" / name for name in ("cuda.py", "cuda_nodes.py", "entries.py", "results.py")]
PROBES = sorted((ROOT / "probes").glob("*.py"))


@dataclass(frozen=True)
class Use:
    """One call of a function of the bindings, as the source writes it."""

    name: str
    line: int
    arguments: int  #: written out; more may come through a starred one
    starred: bool
    values: int | None  #: how many values beside the result code are taken; None where none is looked at
    at_least: bool = False  #: ``values`` is a minimum, because a starred target takes the rest


@dataclass
class Asked:
    """Everything a set of sources asks for."""

    functions: set[str] = field(default_factory=set)
    types: dict[str, set[str]] = field(default_factory=dict)  #: a type and the members that are named
    uses: list[Use] = field(default_factory=list)


def asked_by(sources: list[Path]) -> Asked:
    asked = Asked(functions=functions_named_in([ENTRIES]) if ENTRIES in sources else set())
    for source in sources:
        tree = ast.parse(source.read_text())
        newest = _names_with_two_forms(tree)
        asked.functions.update(name for names in newest.values() for name in names)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match(r"cu[A-Z]", node.attr):
                asked.functions.add(node.attr)
            if isinstance(node, ast.Attribute) and re.match(r"CU[a-z]", node.attr):
                asked.types.setdefault(node.attr, set())
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Attribute)
                and node.attr.startswith("CU_")
            ):
                asked.types.setdefault(node.value.attr, set()).add(node.attr)
            if isinstance(node, ast.FunctionDef):
                for type_name, member in _fields_set(node):
                    asked.types.setdefault(type_name, set()).add(member)
        asked.uses += _uses(tree, newest)
    return asked


def fields_read(source: Path, function: str) -> set[str]:
    """Fields of a returned structure, which the source calls ``native``, that one of its functions reads."""
    (found,) = (
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    return {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "native"
    }


def functions_named_in(sources: list[Path]) -> set[str]:
    """Functions that probes name as strings in their calls (``call("cuInit", 0)``)."""
    text = "\n".join(source.read_text() for source in sources)
    inner = {"cuGraphInstantiateWithFlags"}  # an entry point that the bindings reach under another name
    return set(re.findall(r'"(cu[A-Z][A-Za-z0-9]+)"', text)) - inner


def _names_with_two_forms(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """``self._get_edges = newest(cu, "cuGraphGetEdges", "_v2", ...)`` by attribute."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            function, target = node.value.func, node.targets[0]
            if isinstance(function, ast.Name) and function.id == "newest" and isinstance(target, ast.Attribute):
                bare, suffix = (ast.literal_eval(argument) for argument in node.value.args[1:3])
                found[target.attr] = (bare, bare + suffix)
    return found


def _fields_set(function: ast.FunctionDef) -> list[tuple[str, str]]:
    """Fields of the bindings' structures that a function sets, as (type, field)."""
    made: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call):
            of = node.value.func
            if isinstance(of, ast.Attribute) and re.match(r"CU[a-z]", of.attr):
                made[node.targets[0].id] = of.attr
    stored = [n for n in ast.walk(function) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return [(made[n.value.id], n.attr) for n in stored if isinstance(n.value, ast.Name) and n.value.id in made]


def _uses(tree: ast.AST, newest: dict[str, tuple[str, str]]) -> list[Use]:
    taken: dict[ast.AST, tuple[int, bool]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            targets = node.targets[0].elts
            stars = sum(isinstance(target, ast.Starred) for target in targets)
            taken[node.value] = (len(targets) - stars, bool(stars))
    uses: list[Use] = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        called = node.args[0]
        if node.func.id not in ("call", "integer", "ready") or not isinstance(called, ast.Attribute):
            continue
        values, at_least = taken.get(node, (None, False))
        if node.func.id == "integer":
            values = 1
        if node.func.id == "ready":
            values = 0
        arguments = [argument for argument in node.args[1:] if not isinstance(argument, ast.Starred)]
        starred = len(arguments) < len(node.args) - 1
        names = newest.get(called.attr) or (called.attr,)
        uses += [Use(name, node.lineno, len(arguments), starred, values, at_least) for name in names]
    return uses


# --- what a release offers ----------------------------------------------------------------------------


def surface_of(bindings: ModuleType, release: str, functions: set[str], types: dict[str, set[str]]) -> dict[str, Any]:
    """The part of the bindings that is asked for, as a snapshot holds it. What is not there is left out."""
    return {
        "cuda-bindings": release,
        "CUDA_VERSION": int(bindings.CUDA_VERSION),
        "functions": {name: describe(getattr(bindings, name)) for name in sorted(functions) if hasattr(bindings, name)},
        "types": {
            name: sorted(member for member in members if hasattr(getattr(bindings, name), member))
            for name, members in sorted(types.items())
            if hasattr(bindings, name)
        },
    }


def describe(function: Any) -> dict[str, Any]:
    """Parameter names, how many of them are required, and what is returned, from the docstring."""
    lines = (function.__doc__ or "").splitlines()
    inside = lines[0][lines[0].index("(") + 1 : lines[0].rindex(")")]
    parameters = [_parameter(text) for text in _split(inside)]
    returns = ["CUresult"]
    start = next(at for at, line in enumerate(lines) if line.strip() == "Returns") + 2
    for line in lines[start:]:
        if line.strip() in ("See Also", "Notes", "Raises"):
            break
        named = re.match(r"\s{0,4}(\w+) : ", line)
        if named:
            returns.append(named[1])
    return {
        "parameters": [name for name, _ in parameters],
        "required": sum(not optional for _, optional in parameters),
        "returns": returns,
    }


def _split(inside: str) -> list[str]:
    """Split a parameter list at its outer commas."""
    parts, depth = [""], 0
    for letter in inside:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _parameter(text: str) -> tuple[str, bool]:
    """``size_t numEdges=0`` as its name and whether it may be left out."""
    declared, _, default = text.partition("=")
    return declared.partition(":")[0].split()[-1].lstrip("*"), bool(default)
