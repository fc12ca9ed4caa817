"""The package is what it says: its wheel, its dependencies, and the order of its rooms.

Proves that the wheel carries every module, the type marker, the page and the probes, and the C extension where there
is a compiler; that building it leaves nothing in the tree; that the library works without the extension, and with NumPy
alone; and that each room imports only rooms below it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from support import ROOT, child

import breakgraph as bg

PACKAGE = ROOT / "breakgraph"
PROBES = sorted(path.name for path in (ROOT / "probes").glob("*.py"))
ROOMS = ("errors", "driver", "frameworks", "memory", "segments", "service", "inspect")
FACADE = len(ROOMS)  # `import breakgraph`: for the command, the demo and users
CALLERS = ("cli", "compare", "demo", "doctor", "record", "__main__")


def tree() -> set[str]:
    """Every path of the checkout but what Python, git and the tools keep for themselves."""
    kept = {"__pycache__", ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
    return {str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if not kept & set(path.parts)}


def build(target: Path, **environment: str) -> zipfile.ZipFile:
    """The wheel, built from the checkout by the backend itself (no network)."""
    before = tree()
    program = f"from setuptools import build_meta; print(build_meta.build_wheel({str(target)!r}))"
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert tree() == before, "building the wheel left files in the tree"
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_without_compiler(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(tmp_path_factory.mktemp("wheel"), CC="false")


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def test_the_wheel_carries_every_module_of_the_package_and_the_type_marker(wheel: zipfile.ZipFile) -> None:
    modules = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")}
    assert modules | {"breakgraph/py.typed"} <= set(wheel.namelist())


def test_the_wheel_carries_the_parts_of_the_page(wheel: zipfile.ZipFile) -> None:
    parts = {str(path.relative_to(ROOT)) for path in (PACKAGE / "inspect" / "web").iterdir()}
    assert {path.rpartition(".")[2] for path in parts} == {"html", "css", "js"}
    assert parts <= set(wheel.namelist())


@pytest.mark.parametrize("probe", PROBES)
def test_the_wheel_carries_the_same_probes_as_the_checkout(wheel: zipfile.ZipFile, probe: str) -> None:
    assert {"rebegin.py", "legality.py"} <= set(PROBES)
    assert wheel.read(f"breakgraph/_probes/{probe}") == (ROOT / "probes" / probe).read_bytes()


def extensions(wheel: zipfile.ZipFile) -> list[str]:
    return [name for name in wheel.namelist() if name.endswith((".so", ".pyd"))]


def used_from(wheel: zipfile.ZipFile, folder: Path) -> list[str]:
    """Whether the extension is in use, and what a replay gives, where nothing but the wheel is on the path."""
    wheel.extractall(folder)
    program = """
        import numpy as np
        import breakgraph as bg
        from breakgraph.driver import quick

        xp = bg.array_namespace()
        x, out = xp.zeros(4, np.float32), xp.zeros(4, np.float32)
        with bg.capture() as graph:
            np.add(bg.break_here(lambda a: a * 2, bg.INFER, x + 1), 3, out=out)
        x.set(np.full(4, 10, np.float32))
        graph.replay()
        print(bg.__file__, quick.NATIVE, out.get().tolist(), sep="\\n")
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(folder), "BREAKGRAPH_DRIVER": "sim"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, *found = done.stdout.splitlines()
    assert Path(file).is_relative_to(folder)
    return found


@pytest.mark.skipif(not shutil.which("cc") and not shutil.which("gcc"), reason="there is no C compiler here")
def test_where_there_is_a_compiler_the_wheel_carries_the_extension_and_uses_it(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    (extension,) = extensions(wheel)
    assert extension.startswith("breakgraph/driver/_native.")
    assert used_from(wheel, tmp_path) == ["True", "[25.0, 25.0, 25.0, 25.0]"]


def test_where_there_is_no_compiler_the_wheel_has_no_extension_and_all_else(
    wheel: zipfile.ZipFile, wheel_without_compiler: zipfile.ZipFile, tmp_path: Path
) -> None:
    assert extensions(wheel_without_compiler) == []
    assert set(wheel_without_compiler.namelist()) == set(wheel.namelist()) - set(extensions(wheel))
    assert used_from(wheel_without_compiler, tmp_path) == ["False", "[25.0, 25.0, 25.0, 25.0]"]


@pytest.mark.parametrize("file", ["test_replay.py", "test_chains.py"])
def test_replays_are_the_same_without_the_extension(file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{file}"],
        cwd=ROOT,
        env={**os.environ, "BREAKGRAPH_NATIVE": "0", "BREAKGRAPH_DRIVER": "sim"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


@pytest.mark.parametrize("chosen", ["0", "1", ""])
def test_the_extension_can_be_switched_off(chosen: str) -> None:
    done = child(
        """
        import sys
        from importlib.util import find_spec
        from breakgraph.driver import portable, quick

        loaded = "breakgraph.driver._native" in sys.modules
        print(find_spec("breakgraph.driver._native") is not None, quick.NATIVE, loaded, quick.Round is portable.Round)
        """,
        BREAKGRAPH_NATIVE=chosen,
    )
    assert done.returncode == 0, done.stderr
    built, *found = done.stdout.split()
    used = built == "True" and chosen != "0"
    assert found == [str(used), str(used), str(not used)]


def test_the_wheel_holds_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel.namelist()} == {"breakgraph"}


def test_the_wheel_has_the_version_that_the_package_says(metadata: Message) -> None:
    assert metadata["Version"] == bg.__version__


def test_numpy_is_the_only_hard_dependency(metadata: Message) -> None:
    hard = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert [need.partition(">")[0] for need in hard] == ["numpy"]


def test_each_cuda_generation_has_an_extra_with_its_own_bindings_and_cupy(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist", [])
    for extra, bindings, cupy in (("cuda12", "<13", "cupy-cuda12x"), ("cuda13", ">=13", "cupy-cuda13x")):
        own = [need for need in needs if f'extra == "{extra}"' in need]
        assert any(need.startswith("cuda-python") and bindings in need for need in own), own
        assert any(need.startswith(cupy) for need in own), own
    assert {"cuda12", "cuda13", "demo", "test", "dev"} <= set(metadata.get_all("Provides-Extra", []))


def test_the_licence_is_apache(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    (text,) = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("LICENSE")]
    assert "Apache License" in text


def test_a_capture_works_with_numpy_alone_installed() -> None:
    done = child("""
        import importlib.abc, sys

        class OnlyNumPy(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in ("numpy", "breakgraph"):
                    raise ModuleNotFoundError(f"{name} is blocked", name=name)

        sys.meta_path.insert(0, OnlyNumPy())
        import numpy as np
        import breakgraph as bg

        xp = bg.array_namespace()
        x, out = xp.zeros(4, np.float32), xp.zeros(4, np.float32)
        with bg.capture() as graph:
            np.add(bg.break_here(lambda a: a * 2, bg.INFER, x + 1), 3, out=out)
        x.set(np.full(4, 10, np.float32))
        graph.replay()
        print(out.get())
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[25. 25. 25. 25.]"


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(module: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports, wherever in it."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: imports here are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield node.lineno, ast.literal_eval(node.args[0])


def floor_of(name: str) -> int | None:
    """How high a breakgraph name lies; None if it is not breakgraph's."""
    first, _, rest = name.partition(".")
    if first != "breakgraph":
        return None
    room = rest.partition(".")[0]
    return ROOMS.index(room) if room in ROOMS else FACADE


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_below_it(module: Path) -> None:
    room = room_of(module)
    own = FACADE if room in CALLERS else ROOMS.index(room)
    above = [(line, name) for line, name in imported(module) if (floor_of(name) or 0) > own]
    assert not above, f"breakgraph/{module.relative_to(PACKAGE)} imports from above: {above}"


def test_only_one_file_imports_the_bindings_and_one_the_library_over_them() -> None:
    users: dict[str, set[str]] = {}
    for module in modules():
        for _, name in imported(module):
            if name.partition(".")[0] == "cuda":
                users.setdefault(".".join(name.split(".")[:2]), set()).add(str(module.relative_to(PACKAGE)))
    assert users == {"cuda.bindings": {"driver/cuda.py"}, "cuda.core": {"frameworks/cuda_core.py"}}
