"""The demo behind ``breakgraph demo``: handwritten digits through a captured forward with breaks in it.

`network` trains on a part of the digits with NumPy alone, `forward` is the captured forward, `run` captures it
once and replays it over every held-out digit, `report` shows and records what came out.
"""
