"""Layouts as values known at compile time: `tlg.Blocked(...)` is `tilec.ir.layouts.Blocked`.

Their fields are those that the IR prints, and docs/layouts.md explains, in snake case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from tilec.ir import layouts as ir
from tilec.ir import ops
from tilec.ir.layout_base import camel_case
from tilec.language.context import current, error
from tilec.language.semantic import emit
from tilec.language.shape import require_tile
from tilec.language.values import builtin, const_value, describe, tensor


def _maker(cls: type[ir.Layout], name: str) -> Callable[..., ir.Layout]:
    """A function, of kernels and of Python, that makes layouts of a class."""
    names = [f.name for f in fields(cls)]

    def make(*args: Any, **kwargs: Any) -> ir.Layout:
        given = {n: _plain(v, n) for n, v in (*zip(names, args), *kwargs.items())}
        wrong = [n for n in kwargs if n not in names] + [n for n in names if n not in given]
        if len(args) + len(kwargs) != len(names) or wrong:
            raise error(f"tlg.{name}: found {', '.join(given) or 'nothing'}, expected "
                        f"{', '.join(names)}", "docs/layouts.md explains them")
        try:
            return ir.layout_from_fields(cls.name, {camel_case(n): v for n, v in given.items()})
        except ValueError as e:
            raise error(f"tlg.{name}: {e}", "docs/layouts.md explains the fields") from None

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"{cls.__doc__}\n\n    Fields: {', '.join(names)}."
    make.__tilec_builtin__ = True  # type: ignore[attr-defined]
    return make


def _plain(value: Any, what: str) -> Any:
    """A field's value, lists as tuples."""
    value = const_value(value, f"the field {what} of a layout")
    return tuple(_plain(v, what) for v in value) if isinstance(value, (tuple, list)) else value


Blocked = _maker(ir.Blocked, "Blocked")
Slice = _maker(ir.Slice, "Slice")
Mma = _maker(ir.Mma, "Mma")
DotOperand = _maker(ir.DotOperand, "DotOperand")
Linear = _maker(ir.Linear, "Linear")
Swizzled = _maker(ir.SwizzledShared, "Swizzled")
NvmmaShared = _maker(ir.NvmmaShared, "NvmmaShared")
SharedLinear = _maker(ir.SharedLinear, "SharedLinear")


@builtin
def num_warps() -> int:
    """How many warps run the program, or in a role the role; known at compile time."""
    return current().num_warps


@builtin
def convert_layout(x: Any, layout: Any) -> tensor:
    """`x` held in registers in this layout, which no pass changes.

    layout: tlg.Blocked, Slice, Mma, DotOperand or Linear, of x's rank, for the warps that
        run this: the kernel's, or the role's.
    """
    x, layout = require_tile(x, "tlg.convert_layout"), const_value(layout, "a layout")
    if not isinstance(layout, ir.RegisterLayout):
        raise error(f"tlg.convert_layout: found {describe(layout)}, expected a layout of registers",
                    "tlg.Blocked, Slice, Mma, DotOperand and Linear make them")
    if not x.shape:
        raise error(f"tlg.convert_layout: found {x}, expected a tile", "scalars have no layout")
    op = ops.SetLayout(x.handle, layout=layout)
    if layout.num_warps != num_warps():
        where = "role" if current().in_role else "kernel"
        raise error(f"tlg.convert_layout: {layout} is for {layout.num_warps} warps, the {where} "
                    f"has {num_warps()}", "tlg.num_warps() says how many there are")
    return emit(op)
