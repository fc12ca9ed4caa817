"""Random forwards: run eagerly, captured, and replayed on fresh inputs, they are bit-equal, and nothing is left behind.

A program is data (`program`), drawn from a seed (`generate`), made valid (`plan`), executed (`run`) on either driver:

    python -m tests.fuzz --seeds 0:10000
    python -m tests.fuzz --seeds 0:500 --driver cuda
"""
