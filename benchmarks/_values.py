"""Comparing arrays bit for bit, on the device that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Comparison"]


@dataclass
class Comparison:
    """How many float32 values were compared so far, and how many of them had other bits."""

    values: int = 0
    mismatches: int = 0

    def compare(self, got: Any, expected: Any) -> None:
        """Compare two arrays of one shape and count. NaN equals NaN of the same bits."""
        if got.shape != expected.shape:
            raise ValueError(f"{got.shape} was to be compared with {expected.shape}")
        self.values += got.size
        self.mismatches += int(np.count_nonzero(got.view(np.uint32) != expected.view(np.uint32)))
