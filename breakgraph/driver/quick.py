"""The quickest form there is of what replay and capture do most: the C extension's, or without it Python's own.

``BREAKGRAPH_NATIVE=0`` chooses Python's, read once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__all__ = ["NATIVE", "Call", "Claim", "Ending", "Room", "Round", "Sequence", "Tally", "Usual", "detour"]

#: Whether the C extension is in use.
NATIVE = False

if TYPE_CHECKING or os.environ.get("BREAKGRAPH_NATIVE", "") == "0":
    from breakgraph.driver.portable import Call, Claim, Ending, Room, Round, Sequence, Tally, Usual, detour
else:
    try:
        from breakgraph.driver._native import Call, Claim, Ending, Room, Round, Sequence, Tally, Usual, detour

        NATIVE = True
    except ImportError:  # there was no compiler when the package was installed
        from breakgraph.driver.portable import Call, Claim, Ending, Room, Round, Sequence, Tally, Usual, detour
