"""Warp roles: `tlg.warp_specialize` gives functions warps of their own.

Source: PTX ISA, "bar" (named barriers) and "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilec.frontend.function import Function
from tilec.ir import ops
from tilec.ir.core import Block
from tilec.language.context import current, error
from tilec.language.gpu.named_barriers import check_counts
from tilec.language.values import builtin, const_ints, const_value, describe, tensor, unwrap

_EXAMPLE = "write tlg.warp_specialize([(load, (a, ring)), (compute, (ring, c))], num_warps=[1, 8])"


@builtin
def warp_specialize(roles: Any, num_warps: Any, regs: Any = None) -> None:
    """Divide the program's warps, in order, among roles that run at the same time:

        tlg.warp_specialize([(load, (a, ring, full)), (compute, (ring, full, c))],
                            num_warps=[4, 8], regs=[24, 240])

    roles: for each a jit function, which returns nothing, and its arguments: scalars, pointers,
    descriptors, constexprs, buffers, mbarriers, or tuples of them, but no tiles. num_warps: how
    many warps each has. Their sum is what the kernel is launched with (here num_warps=12), and
    outside of its roles all of them run the kernel. In a role everything counts the role's warps
    alone: layouts, tlg.barrier, tlg.elect, warpgroups, tlg.num_warps(). Tiles take a power of two
    of warps, so that with a sum of 12 all of them are in roles. regs: how many registers a thread
    of each role has (setmaxnreg), multiples of 8 from 24 to 256, for whole warpgroups; such a call
    ends the kernel.

    mbarriers and named barriers alone order what two roles do. They are made before; a tlg.barrier
    must follow the mbarriers. All warps meet at the end.
    """
    what, context = "tlg.warp_specialize", current()
    if context.in_role:
        raise error(f"{what}: stands in a role of another one", "roles do not nest")
    if context.one_thread:
        raise error(f"{what}: one thread alone has no warps to divide", "move it out of the `if`")
    pairs = _pairs(roles, what)
    warps = const_ints(num_warps, "num_warps")
    registers = (0,) * len(warps) if const_value(regs, "regs") is None else \
        const_ints(regs, "regs")
    for name, given in (("num_warps", warps), ("regs", registers)):
        if len(given) != len(pairs):
            raise error(f"{what}: {name} is {list(given)} for {len(pairs)} roles",
                        "give one number for each role")
    if min(warps) < 1 or regs is not None and min(registers) < 1:
        raise error(f"{what}: num_warps is {list(warps)} and regs {list(registers)}, expected 1 "
                    "or more of each", "leave regs out to have all roles share alike")
    if sum(warps) != context.num_warps:
        raise error(f"{what}: the roles have {sum(warps)} warps, the kernel is launched with "
                    f"num_warps={context.num_warps}", f"launch it with num_warps={sum(warps)}")
    both = Block()
    for (fn, args), count, most in zip(pairs, warps, registers, strict=True):
        body = Block()
        with context.inside_role(body, count):
            result = context.call(fn, args, {})
            if result is not None:
                raise error(f"{what}: `{fn.name}` returns {describe(result)}, and roles return "
                            "nothing", "hand values over in buffers, or store them")
            context.builder.insert(ops.Yield())
        with context.inside(both):
            context.builder.insert(ops.WarpRole(body=body, warps=count, registers=most))
    with context.inside(both):
        context.builder.insert(ops.Yield())
    check_counts(both)
    context.builder.insert(ops.WarpSpecialize(body=both))


def _pairs(roles: Any, what: str) -> list[tuple[Function, tuple[Any, ...]]]:
    """The functions and their arguments, of which none is a tile."""
    roles, found = unwrap(roles), []
    if not isinstance(roles, (tuple, list)) or not roles:
        raise error(f"{what}: found {describe(roles)}, expected a list of roles", _EXAMPLE)
    for role in map(unwrap, roles):
        pair = tuple(map(unwrap, role)) if isinstance(role, (tuple, list)) else ()
        if len(pair) != 2 or not isinstance(pair[0], Function) or \
                type(pair[1]) not in (tuple, list):  # a descriptor is a named tuple
            raise error(f"{what}: found {describe(role)}, expected a jit function and a tuple of "
                        "its arguments", _EXAMPLE)
        fn, args = pair
        for parameter, arg in zip(fn.params, args, strict=False):
            for tile in _tiles(arg):
                raise error(f"{what}: `{parameter.name}` of `{fn.name}` is a {tile}, and roles "
                            "take no tiles from outside",
                            "load it in the role, or hand it over in a buffer")
        found.append((fn, tuple(args)))
    return found


def _tiles(x: Any) -> Iterator[tensor]:
    """The tiles in an argument."""
    x = unwrap(x)
    if isinstance(x, tensor) and x.shape:
        yield x
    if isinstance(x, (tuple, list)):
        for part in x:
            yield from _tiles(part)
