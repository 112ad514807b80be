"""form_fma: a float product that only an addition reads becomes a fused multiply-add.

The one place where rounding changes, and in tile IR, so that no later choice changes a bit.
"""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Value
from tilec.ir.rewriter import Values, pattern, rewrite
from tilec.ir.types import bf16, f16, f32, f64, scalar_of
from tilec.passes.base import Pass
from tilec.passes.fold import constant, make_constant


def _product(value: Value) -> ops.Mul | None:
    """The multiplication that makes a value, if nothing else reads it."""
    op = value.op
    return op if isinstance(op, ops.Mul) and len(value.uses) == 1 and \
        scalar_of(value.type) in (f16, bf16, f32, f64) else None


def _negate(value: Value, builder: Builder) -> Value:
    number = constant(value)
    if number is not None:
        return make_constant(builder, -number, value.type)
    return builder.emit(ops.Neg(value))


@pattern(ops.Add)
def fma_of_add(op: ops.Add, builder: Builder) -> Values | None:
    """a * b + c, c + a * b -> fma(a, b, c); of two products the left one is fused"""
    for product, addend in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        mul = _product(product)
        if mul is not None:
            return [builder.emit(ops.Fma(mul.lhs, mul.rhs, addend, types=[op.result.type]))]
    return None


@pattern(ops.Sub)
def fma_of_sub(op: ops.Sub, builder: Builder) -> Values | None:
    """a * b - c -> fma(a, b, -c); c - a * b -> fma(-a, b, c)"""
    left, right = _product(op.lhs), _product(op.rhs)
    if left is not None:
        operands = [left.lhs, left.rhs, _negate(op.rhs, builder)]
    elif right is not None:
        operands = [_negate(right.lhs, builder), right.rhs, op.lhs]
    else:
        return None
    return [builder.emit(ops.Fma(operands, types=[op.result.type]))]


PATTERNS = (fma_of_add, fma_of_sub)


class FormFma(Pass):
    """Fuse multiplications and additions of floats; integers are left alone.

        %0 = tile.mul(%a, %b) : f32
        %1 = tile.add(%0, %c) : f32      ->    %1 = tile.fma(%a, %b, %c) : f32
    """

    reorders = True

    def run(self, module: Module) -> None:
        rewrite(module, PATTERNS)
