"""Calls on devices, contexts and modules."""

from __future__ import annotations

from breakgraph.driver.sim.call import Needs, call
from breakgraph.driver.sim.contexts import Context, Loss
from breakgraph.driver.sim.machine import Machine
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.errors import Unrecorded

__all__ = ["ContextCalls"]

_VERSION = 13000  # CUDA 13.0, the driver whose answers are recorded


class ContextCalls(Machine):
    """Devices, contexts, modules."""

    # devices --------------------------------------------------------------------------------------------
    @call(Needs.NOTHING)
    def device_get_count(self) -> int:
        return len(self.devices)

    @call(Needs.NOTHING)
    def device_get_name(self, device: int) -> str:
        return f"simulated GPU {self.device(device).ordinal}"

    @call(Needs.NOTHING)
    def driver_get_version(self) -> int:
        return _VERSION

    @call(Needs.NOTHING)
    def device_primary_ctx_retain(self, device: int) -> int:
        owner = self.device(device)
        if owner.primary is None:
            owner.primary = self._new_context(device)
        owner.retained += 1
        return owner.primary.handle

    @call(Needs.NOTHING)
    def device_primary_ctx_release(self, device: int) -> None:
        owner = self.device(device)
        if owner.primary is None:
            raise Refuse(Result.INVALID_CONTEXT, "the primary context is not retained")
        owner.retained -= 1
        if not owner.retained:
            context, owner.primary = owner.primary, None
            self._drop_context(context)

    # contexts -------------------------------------------------------------------------------------------
    @call(Needs.NOTHING)
    def ctx_create(self, device: int) -> int:
        context = self._new_context(device)
        self.thread.stack.append(context)
        return context.handle

    @call(Needs.NOTHING)
    def ctx_destroy(self, ctx: int) -> None:
        context = self._context(ctx)
        if context.device.primary is context:
            raise Refuse(Result.INVALID_CONTEXT, "a primary context is released, not destroyed")
        self._drop_context(context)
        if self.thread.context is context:
            self.thread.stack.pop()

    @call(Needs.NOTHING)
    def ctx_get_current(self) -> int:
        context = self.thread.context
        return context.handle if context is not None else 0

    @call(Needs.NOTHING)
    def ctx_set_current(self, ctx: int) -> None:
        stack = self.thread.stack
        context = self._context(ctx) if ctx else None
        if stack:
            stack.pop()
        if context is not None:
            stack.append(context)

    @call(Needs.NOTHING)
    def ctx_push_current(self, ctx: int) -> None:
        self.thread.stack.append(self._context(ctx))

    @call(Needs.NOTHING)
    def ctx_pop_current(self) -> int:
        handle = self.context.handle
        self.thread.stack.pop()
        return handle

    @call()
    def ctx_get_device(self) -> int:
        return self.context.device.ordinal

    @call(Needs.NOTHING)
    def ctx_get_id(self, ctx: int) -> int:
        return self._context(ctx).id if ctx else self.context.id

    @call()
    def ctx_synchronize(self) -> None:
        self.captures.refuse_context_wait(self.context)
        self.wait_for_context(self.context)

    # modules --------------------------------------------------------------------------------------------
    @call()
    def module_load_data(self, image: bytes) -> int:
        return self.modules.add(self.new_handle(), self.context)

    @call(unsafe=True, frees=True)
    def module_unload(self, module: int) -> None:
        self.modules.pop(module)

    # what they share ------------------------------------------------------------------------------------
    def _new_context(self, device: int) -> Context:
        context = Context(self.new_handle(), self.device(device))
        self.contexts.add(context.handle, context)
        return context

    def _context(self, handle: int) -> Context:
        try:
            return self.contexts.get(handle)
        except Refuse as refused:
            raise Refuse(Result.INVALID_CONTEXT, refused.why) from None

    def _drop_context(self, context: Context) -> None:
        if any(capture.origin.context is context for capture in self.captures.open):
            raise Unrecorded("a context was destroyed while a stream of it is capturing")
        if context.loss is None:
            self.wait_for_context(context)
        self.engine.drop(context)
        self.contexts.pop(context.handle)
        context.loss = Loss(Result.CONTEXT_IS_DESTROYED, "the context was destroyed")  # other threads may hold it
        self.streams.drop(lambda stream: stream.context is context)
        self.events.drop(lambda event: event.context is context)
        self.execs.drop(lambda made: made.context is context)
        self.modules.drop(lambda owner: owner is context)
        for allocation in [one for one in self.heaps.live.values() if one.context is context]:
            self.heaps.retire(allocation)
            self.heaps.close(allocation)
