"""Every op's eval rule: shapes with and without program axes, dtypes, and that none is missing."""

import numpy as np
import pytest

from tilec.eval.dtypes import dtype_of
from tilec.eval.rules import evaluate, exact, round_to_tf32, rule
from tilec.interp import control, effects  # noqa: F401
from tilec.interp.machine import interp_rules
from tilec.ir import ops
from tilec.ir.core import OP_CLASSES, Block
from tilec.ir.types import SCALARS, Pointer, Tensor, bf16, f16, f32, f64, i1, i8, i32, i64, u32

# Ends of regions: the ops around them read their operands.
NO_RULE = {"Yield", "Condition", "Return"}


def test_every_op_has_an_eval_or_an_interpreter_rule():
    without = rule.missing(OP_CLASSES.values()) & interp_rules.missing(OP_CLASSES.values())
    assert without == NO_RULE


def values(*types):
    return Block(types).args


def make(cls, *types, **named):
    return cls(*values(*types), **named)


def test_binary_rules_broadcast_over_programs():
    op = make(ops.Sub, Tensor((3,), i32), Tensor((3,), i32))
    a = np.arange(6, dtype=np.int32).reshape(2, 3)
    b = np.array([[10, 20, 30]], np.int32)
    assert evaluate(op, a, b).tolist() == [[-10, -19, -28], [-7, -16, -25]]
    assert evaluate(op, a[0], b[0]).tolist() == [-10, -19, -28]
    assert evaluate(make(ops.Sub, i32, i32), np.int32(2), np.int32(5)) == -3


@pytest.mark.parametrize("leading", [(), (1,), (4,)])
def test_shape_rules_count_axes_from_the_end(leading):
    x = np.arange(24 * int(np.prod(leading))).reshape(*leading, 2, 3, 4).astype(np.float32)
    t = Tensor((2, 3, 4), f32)
    flat = evaluate(make(ops.Reshape, t, types=[Tensor((6, 4), f32)]), x)
    assert np.array_equal(flat, x.reshape(*leading, 6, 4))
    turned = evaluate(make(ops.Trans, t, order=(2, 0, 1)), x)
    assert np.array_equal(turned, np.moveaxis(x, -1, -3))
    for axis in range(4):
        wide = evaluate(make(ops.ExpandDims, t, axis=axis), x)
        assert wide.shape == leading + (2, 3, 4)[:axis] + (1,) + (2, 3, 4)[axis:]
    one = x[..., :1, :]
    spread = evaluate(make(ops.Broadcast, Tensor((2, 1, 4), f32), types=[t]), one)
    assert np.array_equal(spread, np.repeat(one, 3, -2))
    pairs = evaluate(make(ops.Join, t, t), x, x[..., ::-1])
    assert pairs.shape == (*leading, 2, 3, 4, 2)
    for i, want in enumerate((x, x[..., ::-1])):
        half = evaluate(make(ops.Split, Tensor((2, 3, 4, 2), f32), index=i), pairs)
        assert np.array_equal(half, want)
    scalar = x[..., 0, 0, 0]
    filled = evaluate(make(ops.Splat, f32, types=[t]), scalar)
    assert filled.shape == (*leading, 2, 3, 4)
    assert np.array_equal(filled[..., 1, 2, 3], scalar)


@pytest.mark.parametrize("element", list(SCALARS.values()), ids=str)
def test_constants_of_every_dtype(element):
    value = True if element == i1 else 1.5 if element.is_float else 1
    for t in (element, Tensor((2, 3), element)):
        out = evaluate(ops.Constant(value=value, types=[t]))
        assert out.dtype == dtype_of(element) and out.shape == getattr(t, "shape", ())
        assert out.astype(np.float64).min() == float(value)


def test_arange_select_compare_and_pointers():
    assert evaluate(ops.Arange(start=3, end=7)).tolist() == [3, 4, 5, 6]
    t = Tensor((3,), f32)
    select = make(ops.Select, Tensor((3,), i1), t, t)
    a, b = np.array([1, np.nan, 3], np.float32), np.array([4, 5, np.inf], np.float32)
    assert evaluate(select, np.array([True, False, True]), a, b).tolist() == [1, 5, 3]
    less = make(ops.Cmp, t, t, predicate="lt")
    assert evaluate(less, a, b).tolist() == [True, False, True]
    for offset, value, want in ((i32, -2, 1000 - 8), (u32, 2**32 - 1, 1000 + 4 * (2**32 - 1)),
                                (i8, -128, 1000 - 512), (i64, 3, 1012)):
        op = make(ops.AddPtr, Pointer(f32), offset)
        assert evaluate(op, np.int64(1000), np.array(value, dtype_of(offset))) == want


def test_casts_take_the_result_type_and_rounding():
    x = np.array([1.999999, -300.7, np.nan], np.float32)
    to = Tensor((3,), i8)
    assert evaluate(make(ops.Cast, Tensor((3,), f32), types=[to]), x).tolist() == [1, -128, 0]
    near = make(ops.Cast, Tensor((3,), f32), types=[Tensor((3,), bf16)])
    zero = make(ops.Cast, Tensor((3,), f32), types=[Tensor((3,), bf16)], rounding="rtz")
    assert float(evaluate(near, x)[0]) == 2.0 and float(evaluate(zero, x)[0]) == 1.9921875
    bits = make(ops.Bitcast, Tensor((3,), f32), types=[Tensor((3,), u32)])
    assert evaluate(bits, np.ones(3, np.float32)).tolist() == [0x3F800000] * 3


@pytest.mark.parametrize("cls", [ops.Exp, ops.Exp2, ops.Log, ops.Log2, ops.Sin, ops.Cos, ops.Tanh,
                                 ops.Erf, ops.Sqrt, ops.Rsqrt, ops.Floor, ops.Ceil])
def test_math_rules_are_found_by_name(cls):
    out = evaluate(make(cls, Tensor((1,), f64)), np.array([1.5]))
    want = {"Exp": 4.4816890703, "Exp2": 2.8284271247, "Log": 0.4054651081, "Log2": 0.5849625007,
            "Sin": 0.9974949866, "Cos": 0.0707372017, "Tanh": 0.9051482536, "Erf": 0.9661051465,
            "Sqrt": 1.2247448714, "Rsqrt": 0.8164965809, "Floor": 1.0, "Ceil": 2.0}
    assert out[0] == pytest.approx(want[cls.__name__], abs=1e-9)


def test_tf32_rounds_ties_away_and_keeps_specials():
    ulp = 2.0**-10
    x = np.array([1 + ulp / 2, 1 + ulp / 2 - 2.0**-23, -(1 + 1.5 * ulp), np.inf, np.nan, 0])
    x = x.astype(np.float32)
    got = round_to_tf32(x)
    assert got[:4].tolist() == [1 + ulp, 1, -(1 + 2 * ulp), np.inf]
    assert np.isnan(got[4]) and got[5] == 0


@pytest.mark.parametrize("leading", [(), (3,)])
def test_dot(leading):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((*leading, 4, 5)).astype(np.float32)
    b = rng.standard_normal((*leading, 5, 6)).astype(np.float32)
    c = rng.standard_normal((*leading, 4, 6)).astype(np.float32)
    types = [Tensor((4, 5), f32), Tensor((5, 6), f32), Tensor((4, 6), f32)]
    want = (a.astype(float) @ b.astype(float) + c).astype(np.float32)
    assert np.array_equal(evaluate(make(ops.Dot, *types, input_precision="ieee"), a, b, c), want)
    rough = evaluate(make(ops.Dot, *types, input_precision="tf32"), a, b, c)
    assert 0 < np.abs(rough - want).max() < 1e-2
    ints = [Tensor((4, 5), i8), Tensor((5, 6), i8), Tensor((4, 6), i32)]
    p, q = (rng.integers(-128, 128, (*leading, *s), np.int8) for s in ((4, 5), (5, 6)))
    acc = np.full((*leading, 4, 6), 2**31 - 1, np.int32)
    got = evaluate(make(ops.Dot, *ints), p, q, acc)
    assert np.array_equal(got, p.astype(np.int32) @ q.astype(np.int32) + acc)


@pytest.mark.parametrize(("element", "acc", "step"), [
    (f16, f32, 16), (f16, f16, 16), (bf16, f32, 16), (f32, f32, 8), (f64, f64, 4), (i8, i32, 32)])
def test_a_dot_cut_along_k_has_the_same_bits(element, acc, step):
    rng = np.random.default_rng(step)
    a, b, c = (rng.standard_normal(s).astype(dtype_of(t)) * 9 for s, t in (
        ((2, 24, 4 * step), element), ((2, 4 * step, 24), element), ((2, 24, 24), acc)))
    a, b, c = a.astype(dtype_of(element)), b.astype(dtype_of(element)), c.astype(dtype_of(acc))

    def dot(x, y, z):
        types = [Tensor((24, x.shape[-1]), element), Tensor((x.shape[-1], 24), element),
                 Tensor((24, 24), acc)]
        return evaluate(make(ops.Dot, *types), x, y, z)

    whole, total = dot(a, b, c), c
    for k in range(0, 4 * step, step):
        total = dot(a[..., k:k + step], b[..., k:k + step, :], total)
    assert whole.dtype == dtype_of(acc) and whole.tobytes() == total.tobytes()


def test_what_may_be_folded():
    def unary(cls, t=f32):
        return make(cls, t)

    assert exact(make(ops.Add, f32, f32)) and exact(make(ops.Fma, f16, f16, f16))
    assert exact(make(ops.Div, i32, i32)) and exact(make(ops.Div, f64, f64))
    assert exact(unary(ops.Sqrt)) and exact(unary(ops.Floor)) and exact(unary(ops.Neg))
    assert not exact(make(ops.Div, f32, f32)) and not exact(make(ops.Rem, f32, f32))
    assert not exact(unary(ops.Exp)) and not exact(unary(ops.Rsqrt))
    assert not exact(ops.ProgramId(axis=0))
