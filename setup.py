"""The C extension; and build files kept out of the tree, where a stale one could end up in a wheel.

pyproject.toml says all else.
"""

import tempfile
from glob import glob

from setuptools import Extension, setup

# Not needed: without a compiler breakgraph/driver/portable.py does the same, slower.
native = Extension(
    "breakgraph.driver._native",
    sorted(glob("breakgraph/driver/native/*.c")),
    depends=["breakgraph/driver/native/native.h"],
    optional=True,
)

with tempfile.TemporaryDirectory() as scratch:
    setup(ext_modules=[native], options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}})
