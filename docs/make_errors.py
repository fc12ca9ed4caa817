"""Write errors.md: each exception of `breakgraph.errors`, with what it says when a program of errors.toml raises it.

``python docs/make_errors.py`` runs every program on the simulator, and stops at one that does not raise its exception.
"""

from __future__ import annotations

import difflib
import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from breakgraph import errors  # noqa: E402

EXAMPLES: dict[str, dict[str, str]] = tomllib.loads((HERE / "errors.toml").read_text())

_HEAD = """\
# Errors

Every exception of `breakgraph.errors`, a program that raises it, and how to mend that. `python docs/make_errors.py`
writes this page: each program was run on the simulator, and what it says is what it said. The numbers are
those of [the contract](contract.md).

An error says what happened, why that is refused, and what to do. Notes below it say at which break or segment it was
reported. All are `BreakgraphError`; those with a code are the driver's answers, and `DriverError`.

| error | code | |
|---|---|---|
"""


def page() -> str:
    """The text of errors.md."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = dict(zip(EXAMPLES, pool.map(message, EXAMPLES), strict=True))
    return _HEAD + "\n".join(map(_row, EXAMPLES)) + "\n" + "".join(_entry(name, said[name]) for name in EXAMPLES)


def run(program: str) -> str:
    """What a program says on stderr, as ``example.py`` on a fresh simulator with warnings as errors."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "example.py")
        file.write_text(program.lstrip("\n"))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
        done = subprocess.run(
            [sys.executable, "-W", "error", str(file)],
            env={**inherited, "PYTHONPATH": str(HERE.parent), "BREAKGRAPH_DRIVER": "sim"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stderr.replace(folder + os.sep, "")


def message(name: str) -> str:
    """What the program of an example says when it ends, from the name of its exception on."""
    stderr = run(EXAMPLES[name]["program"])
    module, _, said = stderr.rpartition(f"\n{errors.__name__}.{name}: ")
    if not module:
        raise SystemExit(f"the example of {name} does not raise it:\n{stderr}")
    return f"{name}: {said.rstrip()}"


def _row(name: str) -> str:
    code, meaning = _code_and_meaning(name)
    return f"| [{name}](#{name.lower()}) | {code} | {meaning} |"


def _entry(name: str, said: str) -> str:
    example = EXAMPLES[name]
    code, meaning = _code_and_meaning(name)
    return f"""
## {name}

{_filled(f"Result {code}. " * bool(code) + meaning)}

{_filled("**Cause.** " + example["cause"])}

```py
{example["program"].strip()}
```

```text
{_wrapped(said)}
```

{_filled("**Mend.** " + example["mend"])}

```diff
{_difference(example["program"], example["mended"])}
```
"""


def _code_and_meaning(name: str) -> tuple[str, str]:
    """The result code that a docstring begins with, if it does, and the rest of its first paragraph."""
    meaning = (inspect.getdoc(getattr(errors, name)) or "").partition("\n\n")[0]
    code, colon, rest = meaning.partition(": ")
    if not (colon and code.isdigit()):
        code, rest = "", meaning
    return code, (rest[0].upper() + rest[1:]).replace("``", "`").replace("\n", " ")


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def _wrapped(said: str) -> str:
    """The lines of a message, at most 118 columns wide, those that go on indented."""
    return "\n".join(
        textwrap.fill(line, 118, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False)
        for line in said.splitlines()
    )


def _difference(program: str, mended: str) -> str:
    changes = difflib.unified_diff(program.strip().splitlines(), mended.strip().splitlines(), lineterm="", n=2)
    return "\n".join(line.rstrip() for line in changes if not line.startswith(("---", "+++", "@@"))).strip("\n")


if __name__ == "__main__":
    (HERE / "errors.md").write_text(page())
