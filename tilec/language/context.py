"""What a builtin of `tilec.language` finds around it while a kernel is being compiled.

The front end makes a `Context` per kernel and activates it; builtins reach it by `current()`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tilec.errors import CompilationError, Location
from tilec.ir.core import UNKNOWN, Block, Builder, Func, Op
from tilec.target import Target


@dataclass
class Context:
    """One compilation in progress.

    builder: where ops go; its `loc` is the author's current place. options: num_warps,
    num_stages, debug. call(fn, args, kwargs): inlines a jit function and gives its value. func: the
    kernel, with the ops made so far. one_thread: whether ops are made for one thread alone.
    in_role: whether for a warp role, whose num_warps then are those of the options.
    named_barriers: how many the kernel has so far.
    """

    builder: Builder
    options: Mapping[str, Any]
    target: Target
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    func: Func | None = None
    one_thread: bool = False
    in_role: bool = False
    named_barriers: int = 0

    @property
    def num_warps(self) -> int:
        """How many warps run the ops that are made."""
        return int(self.options["num_warps"])

    @property
    def last(self) -> Op | None:
        """The op made last in the current block."""
        assert self.builder.block is not None
        return self.builder.block.last

    def made_since(self, last: Op | None) -> list[Op]:
        """The ops of the current block behind `last`; all of them if it is None."""
        assert self.builder.block is not None
        return list(takewhile(lambda op: op is not last, reversed(self.builder.block)))

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Send ops to the end of `block` for a while; the place in the source is kept."""
        builder = self.builder
        saved = builder.block, builder.before, builder.loc
        builder.block, builder.before = block, None
        try:
            yield
        finally:
            builder.block, builder.before, builder.loc = saved

    @contextmanager
    def inside_role(self, block: Block, num_warps: int) -> Iterator[None]:
        """Send ops to the end of `block`, a warp role of so many warps, for a while."""
        saved = self.options, self.in_role
        self.options, self.in_role = {**self.options, "num_warps": num_warps}, True
        try:
            with self.inside(block):
                yield
        finally:
            self.options, self.in_role = saved


class CallableInKernels:
    """Value of `__tilec_builtin__` of a class that kernels may call: true of the class, and not
    of its instances."""

    def __get__(self, instance: object, owner: type) -> bool:
        return instance is None


class _Active(threading.local):
    context: Context | None = None


_active = _Active()


def active() -> Context | None:
    """The context of the kernel being compiled in this thread; None outside of one."""
    return _active.context


def current(what: str = "a tilec.language function") -> Context:
    """The active context; CompilationError, naming `what`, outside of a kernel."""
    if _active.context is None:
        raise CompilationError(f"{what} can only be used inside a @tilec.jit kernel", None,
                               "decorate the function with @tilec.jit, launch it by fn[grid](...)")
    return _active.context


@contextmanager
def activate(context: Context) -> Iterator[Context]:
    """Make `context` the current one of this thread for a while."""
    saved = _active.context
    _active.context = context
    try:
        yield context
    finally:
        _active.context = saved


def here() -> Location | None:
    """The author's current place; None if it is not known."""
    context = _active.context
    if context is None or context.builder.loc is UNKNOWN:
        return None
    return context.builder.loc


def error(message: str, advice: str = "") -> CompilationError:
    """A CompilationError at the author's current place, to be raised."""
    return CompilationError(message, here(), advice)
