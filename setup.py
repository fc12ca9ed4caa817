"""Keeps build files out of the tree, where a stale one could end up in a wheel. pyproject.toml says all else."""

import tempfile

from setuptools import setup

with tempfile.TemporaryDirectory() as scratch:
    setup(options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}})
