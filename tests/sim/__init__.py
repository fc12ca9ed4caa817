"""Tests of the simulated driver itself. A package, so that its file names may be those of tests above it."""
