"""Addresses that stay, and the physical memory behind them, which may come and go."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.driver.cleanup import add_notes, attempt
from breakgraph.errors import DriverError
from breakgraph.memory.blocks import Span

__all__ = ["Mapping"]


#: A growth is made of about so many pieces of physical memory: the more, the less is lost between those that are wholly
#: free; but mapping one costs about 50 us, whatever its size (H200).
_PIECES = 32


@dataclass
class _Window:
    """Addresses behind which physical memory is put, or none.

    ``doubt`` is true from before a call to after it: if an interrupt came in between, nobody knows what the call did.
    """

    ptr: int
    nbytes: int
    mapped: bool = False
    doubt: bool = False

    def map(self, driver: Driver, handle: int) -> None:
        if self.doubt:
            self.unmap(driver)
        self.mapped = self.doubt = True
        try:
            driver.mem_map(self.ptr, self.nbytes, handle)
        except DriverError:
            self.mapped = self.doubt = False
            raise
        self.doubt = False

    def unmap(self, driver: Driver) -> None:
        if not self.mapped:
            return
        before, self.doubt = self.doubt, True
        try:
            driver.mem_unmap(self.ptr, self.nbytes)
        except DriverError:
            if not before:
                self.doubt = False
                raise
        self.mapped = self.doubt = False


@dataclass
class _Page(_Window):
    """A window with one piece of physical memory, whose ``handle`` is 0 where it has been given back.

    ``lost`` is one that was to be given back when mapping it had failed, and could not be.
    """

    handle: int = 0
    lost: bool = False

    def fill(self, driver: Driver, device: int) -> None:
        self.handle = self.handle or driver.mem_create(self.nbytes, device)
        self.map(driver, self.handle)

    def drain(self, driver: Driver) -> None:
        self.unmap(driver)
        if self.handle:
            handle, self.handle = self.handle, 0  # released twice it could be somebody else's
            try:
                driver.mem_release(handle)
            except DriverError:
                self.handle = handle
                raise


@dataclass
class _Second:
    """Pages that are also mapped one after the other at ``ptr``."""

    ptr: int
    nbytes: int
    parts: list[tuple[_Window, _Page]]

    def show(self, driver: Driver, device: int) -> None:
        try:
            for window, page in self.parts:
                window.map(driver, page.handle)
            driver.mem_set_access(self.ptr, self.nbytes, device)
        except BaseException:
            self.hide(driver)
            raise

    def hide(self, driver: Driver) -> None:
        for window, _ in self.parts:
            window.unmap(driver)


class Mapping:
    """A range of reserved addresses, mapped from its beginning on, and second mappings of its pages.

    It outlives its arena by a moment: the arena's finalizer calls `give_back`.
    """

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver = weakref.ref(driver)  # a driver keeps default arenas; they must not keep it
        self.context = context
        self.device = driver.ctx_get_device()
        self.granularity = driver.mem_get_allocation_granularity(self.device)
        self.base = 0
        self.reserved = 0
        self.event = 0  # recorded after the last use on a stream
        self._pages: dict[int, _Page] = {}  # by address, lowest first
        self._seconds: list[_Second] = []
        self._pid = os.getpid()
        self._fence = 0
        self.renew_fence(driver)

    @property
    def mapped(self) -> int:
        """Bytes of physical memory."""
        return sum(page.nbytes for page in self._pages.values() if page.handle or page.mapped)

    @property
    def total(self) -> int:
        """Bytes that have physical memory, or had it when it was last given back."""
        return sum(page.nbytes for page in self._pages.values())

    def reserve(self, driver: Driver, nbytes: int) -> None:
        """Take the addresses; once."""
        self.reserved = nbytes  # first: what has a base has a size
        try:
            self.base = driver.mem_address_reserve(nbytes)
        except DriverError:
            self.reserved = 0
            raise

    def contains(self, ptr: int) -> bool:
        """Whether an address is one of the range, or of a second mapping."""
        return self.base <= ptr < self.base + self.reserved or any(
            second.ptr <= ptr < second.ptr + second.nbytes for second in self._seconds
        )

    @property
    def pages(self) -> list[Span]:
        """The pieces of physical memory, lowest first."""
        return [Span(page.ptr, page.nbytes) for page in self._pages.values() if page.mapped and not page.lost]

    # physical memory ------------------------------------------------------------------------------------
    def grow(self, driver: Driver, nbytes: int) -> None:
        """Map more, a multiple of the granularity, in pages. Where that fails nothing is changed."""
        piece = self.granularity
        while piece * 2 * _PIECES <= nbytes:
            piece *= 2
        self._pages = {page.ptr: page for page in self._pages.values() if page.mapped or page.handle}
        start = max((page.ptr + page.nbytes for page in self._pages.values()), default=self.base)
        pages = [_Page(start + at, min(piece, nbytes - at)) for at in range(0, nbytes, piece)]
        self._pages.update((page.ptr, page) for page in pages)  # first, so that an interrupt loses none
        try:
            self._fill(driver, pages)
        except BaseException:
            for page in pages:
                page.lost = page.mapped or bool(page.handle)
            raise

    def map_again(self, driver: Driver, spans: Sequence[Span]) -> int:
        """Map pages, one after the other, at a second address too, which is returned.

        Legal in a thread-local capture, and takes no device memory. What is written through one address is seen through
        the other by the kernels that follow (CUDA programming guide, "Virtual aliasing support").
        """
        nbytes = sum(span.nbytes for span in spans)
        pages = [self._pages[span.ptr] for span in spans]
        ptr = driver.mem_address_reserve(nbytes)
        starts = accumulate((page.nbytes for page in pages[:-1]), initial=ptr)
        parts = [(_Window(at, page.nbytes), page) for at, page in zip(starts, pages, strict=True)]
        second = _Second(ptr, nbytes, parts)
        self._seconds.append(second)
        try:
            second.show(driver, self.device)
        except BaseException:
            with suppress(DriverError):  # where it cannot be undone now, the end undoes it
                second.hide(driver)
                driver.mem_address_free(ptr, nbytes)
                self._seconds.remove(second)
            raise
        return ptr

    def empty(self, driver: Driver) -> None:
        """Give all physical memory back; the addresses stay reserved. `wait_for_device` comes before it."""
        for second in self._seconds:
            second.hide(driver)
        for page in self._pages.values():
            page.drain(driver)

    def fill(self, driver: Driver) -> None:
        """Map all again at the same addresses. Where that fails all is given back."""
        pages = [page for page in self._pages.values() if not page.lost]
        try:
            self._fill(driver, [page for page in pages if not page.mapped or page.doubt])
            for second in self._seconds:
                second.show(driver, self.device)
            self.renew_fence(driver)
        except BaseException as error:
            undo = [partial(second.hide, driver) for second in self._seconds]
            _undo_after(error, [*undo, *(partial(page.drain, driver) for page in pages)])
            raise

    def _fill(self, driver: Driver, pages: list[_Page]) -> None:
        try:
            for page in pages:
                page.fill(driver, self.device)
            if pages:
                end = pages[-1].ptr + pages[-1].nbytes
                driver.mem_set_access(pages[0].ptr, end - pages[0].ptr, self.device)
        except BaseException as error:
            _undo_after(error, [partial(page.drain, driver) for page in pages])
            raise

    # waiting --------------------------------------------------------------------------------------------
    def renew_fence(self, driver: Driver) -> None:
        """Allocate what `wait_for_device` frees, while the device has a byte left."""
        if not self._fence:
            with drivers.relaxed(driver):
                self._fence = driver.mem_alloc(1)

    def wait_for_device(self, driver: Driver) -> None:
        """Block until the device is done with all work, also that of the arrays' other users.

        Unmapping does not wait for kernels that still use the addresses; freeing a plain allocation waits for all
        of them (probes/records/release-h200-580.json), and is harmless to captures under the relaxed exchange,
        which a context synchronize is not.
        """
        self.renew_fence(driver)
        fence, self._fence = self._fence, 0  # an interrupt while it waits must not free it twice
        try:
            driver.mem_free(fence)
        except DriverError:
            self._fence = fence
            raise

    # the end --------------------------------------------------------------------------------------------
    def give_back(self) -> None:
        """Give memory and addresses back."""
        driver = self._driver()
        if driver is None or os.getpid() != self._pid or sys.is_finalizing():
            return  # a forked child's driver is its parent's; at exit the driver takes all with it (C27)
        driver.finalize(partial(self._give_back, driver))

    def _give_back(self, driver: Driver) -> None:
        try:
            driver.ctx_push_current(self.context)
        except DriverError:
            return  # the context is gone, and its memory with it
        try:
            with drivers.relaxed(driver):
                if self.event:
                    event, self.event = self.event, 0  # a graph in the same garbage may ask afterwards
                    driver.event_destroy(event)
                if self._fence or self.mapped:  # else it sleeps, and has waited, or has never mapped anything
                    self.wait_for_device(driver)
                self.empty(driver)
                for second in self._seconds:
                    driver.mem_address_free(second.ptr, second.nbytes)
                if self.base:
                    driver.mem_address_free(self.base, self.reserved)
        finally:
            driver.ctx_pop_current()


def _undo_after(error: BaseException, calls: Sequence[Callable[[], None]]) -> None:
    notes: list[str] = []
    for call in calls:
        attempt(notes, "giving memory of an arena back", call)
    add_notes(error, notes)
