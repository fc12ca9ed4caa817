"""Scripts that measure what the project claims. Their answers are under ``benchmarks/records/``."""
