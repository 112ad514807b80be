"""Keeping what a kernel writes: which arguments that is, and putting them back between runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tilec.ir.origins import accessed, pointer_roots
from tilec.runtime import device, host
from tilec.runtime.arguments import Const, Key, place_of
from tilec.runtime.kernel import CompiledKernel

Span = tuple[int, int]  # an address in device memory, and a number of bytes


def spans(kernel: CompiledKernel, keys: Sequence[Key], named: Mapping[str, Any],
          restore: tuple[Collection[str], set[Span]], zero: tuple[Collection[str], set[Span]]
          ) -> None:
    """Find the memory to put back after `kernel` ran, and that to clear instead.

    keys: of the arguments, one a parameter; named: the arguments. restore, zero: names of
    parameters, and the set that the memory is added to; what the kernel writes is restored too.
    """
    writes, at = written(kernel), 0
    for p, key in zip(kernel.fn.params, keys):
        if p.is_constexpr:
            continue
        for leaf, value in host.opened(key, named[p.name]):
            if isinstance(leaf, Const):  # takes no place among the launch arguments
                continue
            changes = writes is None or at in writes or p.name in restore[0]
            at += 1
            if place_of(leaf) is not None and p.name in zero[0]:
                zero[1].add(host.span(value))
            elif place_of(leaf) is not None and changes:
                restore[1].add(host.span(value))


@contextlib.contextmanager
def preserved(kept: Collection[Span], zeroed: Collection[Span], index: int, stream: int
              ) -> Iterator[Callable[[], None]]:
    """Gives a function that puts `kept` back as it is now and clears `zeroed`; called at the end
    too."""
    device.use(index)
    copies = [(address, size, device.DeviceBuffer(size, index)) for address, size in kept]
    for address, size, buffer in copies:
        device.copy(buffer.pointer, address, size, stream)

    def restore() -> None:
        for address, size, buffer in copies:
            device.copy(address, buffer.pointer, size, stream)
        for address, size in zeroed:
            device.zero(address, size, stream)

    try:
        yield restore
    finally:
        restore()
        device.synchronize(index)
        for _, _, buffer in copies:
            buffer.free()


def written(kernel: CompiledKernel) -> set[int] | None:
    """Indices of the launch arguments that a kernel may write to; None if it may be any."""
    func = kernel.build().funcs[0]
    found: set[int] = set()
    for op in func.walk():
        if "write" not in op.class_effects:
            continue
        pointer = accessed(op)
        roots = None if pointer is None else pointer_roots(pointer, func)
        if roots is None:
            return None
        found |= {r.index for r in roots}
    return found
