"""What is gathered is what is here, and nothing that could be secret."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import child

import breakgraph as bg
from breakgraph.doctor import collect as collecting
from breakgraph.doctor.collect import collect, environment
from breakgraph.doctor.facts import Facts


@pytest.fixture(scope="module")
def here() -> Facts:
    """The facts of this machine, with the simulator chosen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BREAKGRAPH_DRIVER", "sim")
        patch.delenv("BREAKGRAPH_DISABLE", raising=False)
        return collect(seconds=60)


def test_the_interpreter_and_the_system_are_this_ones(here: Facts) -> None:
    assert here.python.version == platform.python_version()
    assert here.python.executable == sys.executable
    assert (here.system.name, here.system.release) == (platform.system(), platform.release())


def test_the_package_is_the_one_that_is_imported(here: Facts) -> None:
    assert here.source.version == bg.__version__
    assert here.source.location == str(Path(bg.__file__).parent)


def test_versions_are_those_of_the_distributions(here: Facts) -> None:
    assert here.packages["numpy"] == np.__version__
    assert all(metadata.version(name) == version for name, version in here.packages.items())


def test_the_trial_is_of_the_driver_that_the_environment_names(here: Facts) -> None:
    assert (here.trial.driver, here.trial.chosen_by) == ("sim", "BREAKGRAPH_DRIVER=sim is set")
    assert here.trial.works
    assert here.trial.can_capture is True
    assert here.simulator is None


def test_cuda_is_the_default_and_the_simulator_is_tried_where_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, no_gpu: str
) -> None:
    monkeypatch.delenv("BREAKGRAPH_DRIVER", raising=False)
    facts = collect(seconds=60)
    assert facts.trial.driver == "cuda"
    assert "not set" in facts.trial.chosen_by
    if facts.trial.works:
        assert facts.simulator is None
    else:
        assert facts.simulator is not None
        assert facts.simulator.works
    assert facts.trial.works or no_gpu


def test_packages_are_imported_elsewhere_alone() -> None:
    program = """
        import sys
        from breakgraph.doctor.collect import collect

        collect(60)
        print([name for name in ("cupy", "torch", "numba", "triton", "cuda.bindings.driver") if name in sys.modules])
    """
    assert child(program).stdout.strip() == "[]"


def distribution(folder: Path, name: str, version: str, **files: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (info / file.replace("_json", ".json")).write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the path, in this process and in its children."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("BREAKGRAPH_DRIVER", "sim")
    return tmp_path


def test_every_cupy_is_found_and_a_package_that_cannot_be_imported_says_why(site: Path) -> None:
    distribution(site, "cupy-cuda12x", "14.0.1")
    distribution(site, "cupy_cuda13x", "14.1.0")
    distribution(site, "Nvmath.Python", "0.7.0")
    (site / "cupy.py").write_text("raise ImportError('which of us two?')")
    (site / "nvmath.py").write_text("import os; os.abort()")
    facts = collect(seconds=60)
    assert facts.cupys == ("cupy-cuda12x", "cupy-cuda13x")
    assert facts.packages["nvmath-python"] == "0.7.0"
    assert facts.imports["cupy"] == "ended with 1: ImportError: which of us two?"
    assert facts.imports["nvmath"].startswith("was ended by SIGABRT")


@pytest.mark.parametrize(
    ("line", "built"),
    [("cuda: Optional[str] = '12.8'", "12.8"), ('cuda = "13.0"', "13.0"), ("cuda: Optional[str] = None", "")],
)
def test_what_torch_was_built_for_is_read_without_importing_it(site: Path, line: str, built: str) -> None:
    torch = site / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (torch / "version.py").write_text(f"__version__ = '2.11.0'\ndebug = False\n{line}\nhip: Optional[str] = None\n")
    assert collecting._torch_cuda() == built


def test_of_two_copies_on_the_path_the_one_that_is_imported_counts(site: Path) -> None:
    distribution(site, "rich", "99.0")
    assert collecting._packages()["rich"] == "99.0"


@pytest.mark.parametrize(
    ("origin", "installed"),
    [
        ({"url": "file:///home/me/breakgraph", "dir_info": {"editable": True}}, "editable"),
        ({"url": "https://me:hunter2@example.com/x.git", "vcs_info": {"commit_id": "abc123"}}, "commit abc123"),
        ({"url": "https://me:hunter2@example.com/breakgraph.whl", "archive_info": {}}, "wheel"),
        (None, "wheel"),
    ],
)
def test_how_it_was_installed_is_told_without_the_address(site: Path, origin: Any, installed: str) -> None:
    distribution(site, "breakgraph", "0.1.0", **({"direct_url_json": json.dumps(origin)} if origin else {}))
    assert collecting._installed() == installed


def test_of_the_environment_only_what_matters_is_looked_at() -> None:
    variables = {
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "HF_TOKEN": "hunter2",
        "PATH": "/usr/bin",
        "CUDA_VISIBLE_DEVICES": "",
        "BREAKGRAPH_DISABLE": "0",
        "BREAKGRAPH_DEBUG": "1",
    }
    assert environment(variables) == {"BREAKGRAPH_DEBUG": "1", "BREAKGRAPH_DISABLE": "0", "CUDA_VISIBLE_DEVICES": ""}
