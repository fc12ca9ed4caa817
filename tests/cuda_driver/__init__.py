"""Tests of the layer over the real driver, and of the probes, that need no GPU."""
