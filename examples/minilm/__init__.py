"""The parts of ``examples/minilm.py``: read `model` and `encoder` first, they are the example."""
