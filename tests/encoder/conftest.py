"""What the tests of ``examples/minilm`` share: the weights, and the shipped sentences as tokens.

The weights are 83 MB and come in a package of their own: without it the cases that need them are skipped, unless
``MINILM_PATH`` says where they should be.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from support import ROOT

import breakgraph as bg

sys.path.append(str(ROOT / "examples"))
from minilm.text import HostArray, read_sentences, tokenize
from minilm.weights import Folder, Weights, find, load


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The simulator's matrices are small, and BLAS threads that wait for each other cost more than they bring."""
    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def folder() -> Folder:
    try:
        return find()
    except bg.errors.BreakgraphError as error:
        if os.environ.get("MINILM_PATH"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tokens(folder: Folder) -> list[HostArray]:
    return tokenize(folder, read_sentences())


@pytest.fixture
def weights(driver: Any, folder: Folder) -> Weights:
    return load(folder, np.float32)
