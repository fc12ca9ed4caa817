"""The parts of ``examples/tensor_parallel.py``: read `block` and `exchange` first, they are the example."""
