"""Claims: the C extension and its twin in Python do the same.

Proves for both that a claim has one owner at a time, whom it does not keep alive, and none once that one is dead.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import ModuleType

import pytest
from twins import Owner, growth, twin_called

from breakgraph.driver import portable


def test_a_claim_has_one_owner_at_a_time_and_is_given_back_by_that_one_alone(twin: ModuleType) -> None:
    claim, first, second, thread = twin.Claim(), Owner(), Owner(), Owner()
    assert (claim.is_open, claim.owner, claim.thread) == (True, None, None)
    assert claim.take(weakref.ref(first), weakref.ref(thread)) is True
    assert claim.take(weakref.ref(second), weakref.ref(second)) is False
    assert claim.take(weakref.ref(first), weakref.ref(thread)) is False
    assert (claim.owner, claim.thread) == (first, thread)
    assert claim.give(second) is False
    assert claim.owner is first
    assert claim.give(first) is True
    assert claim.give(first) is False
    assert (claim.owner, claim.thread) == (None, thread)
    assert claim.take(weakref.ref(second), weakref.ref(second)) is True
    assert (claim.owner, claim.thread) == (second, second)


def test_the_claim_of_an_owner_that_is_dead_is_free_and_its_owner_is_told(twin: ModuleType) -> None:
    claim, owner, thread, told = twin.Claim(), Owner(), Owner(), []
    claim.take(weakref.ref(owner, told.append), weakref.ref(thread))
    del owner, thread
    gc.collect()
    assert len(told) == 1
    assert (claim.owner, claim.thread) == (None, None)
    heir = Owner()
    assert claim.take(weakref.ref(heir), weakref.ref(heir)) is True
    assert claim.owner is heir


def test_a_claim_keeps_neither_owner_nor_thread_alive(twin: ModuleType) -> None:
    claim, owner = twin.Claim(), Owner()
    before = sys.getrefcount(owner)
    claim.take(weakref.ref(owner), weakref.ref(owner))
    assert sys.getrefcount(owner) == before
    claim.give(owner)
    assert sys.getrefcount(owner) == before


def test_giving_back_what_nobody_has_is_nothing(twin: ModuleType) -> None:
    claim = twin.Claim()
    assert claim.give(None) is False
    assert claim.give(Owner()) is False


def test_one_of_many_threads_gets_a_claim(twin: ModuleType) -> None:
    claim, owners = twin.Claim(), [Owner() for _ in range(8)]
    for _ in range(50):
        got: list[Owner] = []
        gate = threading.Barrier(len(owners))

        def take(owner: Owner, gate: threading.Barrier = gate, got: list[Owner] = got) -> None:
            gate.wait(10)
            if claim.take(weakref.ref(owner), weakref.ref(owner)):
                got.append(owner)

        threads = [threading.Thread(target=take, args=(owner,)) for owner in owners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(got) == 1
        assert claim.owner is got[0]
        claim.give(got[0])


def test_whoever_finds_the_owner_of_a_claim_finds_its_thread() -> None:
    """In between any two stores of a take; the extension makes them without letting another thread run."""
    pairs = []

    class Watched(portable.Claim):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name in ("_owner", "_thread") and hasattr(self, "_thread"):
                pairs.append((self.owner, self.thread))

    claim, first, second = Watched(), Owner(), Owner()
    for owner in (first, second):
        claim.take(weakref.ref(owner), weakref.ref(owner))
        claim.give(owner)
    assert pairs
    assert all(owner in (None, thread) for owner, thread in pairs)


def test_the_extension_takes_weak_references_alone() -> None:
    claim = twin_called("native").Claim()
    for given in ((1, 2), (None, None), (weakref.ref(Owner), 2)):
        with pytest.raises(TypeError):
            claim.take(*given)
    assert claim.owner is None


def test_claims_that_are_taken_refused_given_and_dropped_leave_no_memory_behind(twin: ModuleType) -> None:
    claim = twin.Claim()

    def work() -> None:
        first, second = Owner(), Owner()
        claim.take(weakref.ref(first), weakref.ref(second))
        claim.take(weakref.ref(second), weakref.ref(second))
        claim.give(second)
        if claim.owner is first and claim.thread is second:
            claim.give(first)
        claim.take(weakref.ref(second), weakref.ref(first))
        twin.Claim().take(weakref.ref(first), weakref.ref(first))

    assert growth(work) < 0.1
