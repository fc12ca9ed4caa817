"""Random programs by seed: the same seed is the same program, on both drivers."""

from __future__ import annotations

import random

from .plan_breaks import FORMS
from .program import Action, Drawn, GraphUse, Intent, Program, Spec

__all__ = ["ACTION_WEIGHTS", "INTENT_WEIGHTS", "program"]

DTYPES = ("float32", "float32", "int32", "float64")
SHAPES = ((4, 4), (4, 4), (4, 4), (6,), (3, 5), (1, 4), (8, 2), (2,))

#: How often a step of a forward is of which kind.
INTENT_WEIGHTS = {
    "unary": 8,
    "binary": 8,
    "reduce": 3,
    "concatenate": 2,
    "update": 5,
    "view": 4,
    "free": 6,
    "output": 1,
    "fork": 5,
    "join": 5,
    "record": 2,
    "wait": 3,
    **{f"break: {form}": 1 for form in FORMS},
}

#: How often an action on a graph is of which kind.
ACTION_WEIGHTS = {
    "replay": 12,
    "burst": 3,
    "capture": 4,
    "fail": 2,
    "fault": 3,
    "sleep": 2,
    "wake": 2,
    "reset": 1,
    "close": 1,
    "drop": 1,
    "release": 2,
}


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = random.Random(seed)
    forwards = tuple(_forward(draw) for _ in range(draw.choice((1, 1, 2, 2, 3))))
    graphs = tuple(_graph(draw, len(forwards)) for _ in range(draw.choice((1, 2, 2, 3))))
    captures = [Action("capture", (at, 0, draw.randrange(3))) for at in range(len(graphs))]
    actions = [_action(draw) for _ in range(draw.randrange(4, 12))]
    for capture in captures:  # most of them early, so that there is something to do
        actions.insert(draw.randrange(1 + len(actions) // 2) if draw.random() < 0.5 else 0, capture)
    return Program(
        forwards,
        graphs,
        tuple(actions),
        schedule=draw.choice(("fifo", "lazy", "random")),
        seed=seed,
        blocking=tuple(at for at in range(5) if draw.random() < 0.1),
    )


def _forward(draw: random.Random) -> Drawn:
    streams = draw.choice((0, 1, 2, 3))
    sides = range(1, streams + 1)
    width = draw.choice((20_000, 70_000)) if draw.random() < 0.02 else 0
    kinds, weights = list(INTENT_WEIGHTS), list(INTENT_WEIGHTS.values())
    shortest, longest = (1, 12) if width else draw.choices([(1, 30), (30, 70)], [19, 1])[0]
    length = draw.randrange(shortest, longest)
    return Drawn(
        intents=tuple(Intent(kind, _numbers(draw)) for kind in draw.choices(kinds, weights, k=length)),
        inputs=tuple(Spec(draw.choice(SHAPES), draw.choice(DTYPES)) for _ in range(draw.choice((1, 1, 2)))),
        streams=streams,
        aux=tuple(at for at in sides if draw.random() < 0.4),
        break_on=draw.choice((None, None, None, None, ("a",), ("a", "b"), ())),
        context=draw.random() < 0.3,
        width=width,
    )


def _graph(draw: random.Random, forwards: int) -> GraphUse:
    return GraphUse(
        forward=draw.randrange(forwards),
        arena=draw.choice((0, 0, 0, 1, None)),
        cached=draw.random() < 0.3,
        stream=draw.choice((None, None, 0, 1)),
        caller=draw.choice((None, None, None, 0, 1)),
        mode=draw.choice(("thread_local", "thread_local", "global", "relaxed")),
        execute=draw.random() < 0.85,
        debug=draw.random() < 0.5,
    )


def _action(draw: random.Random) -> Action:
    kinds, weights = list(ACTION_WEIGHTS), list(ACTION_WEIGHTS.values())
    return Action(draw.choices(kinds, weights)[0], _numbers(draw))


def _numbers(draw: random.Random) -> tuple[int, ...]:
    return tuple(draw.randrange(60) for _ in range(10))
