"""What axis analysis claims of random address arithmetic holds of the values it computes."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.eval.rules import evaluate
from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis, AxisInfo, low_bit
from tilec.ir.core import Block, Builder, Func, Value
from tilec.ir.parser import parse
from tilec.ir.types import Pointer, Tensor, f32, i1, i8, i32, i64, shape_of, u8, u32


class Maker:
    """Grows a random expression and its value together."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.block = Block([i32, i32, Pointer(f32)], ["n", "stride", "p"])
        self.builder = Builder(self.block)
        divs = [int(2 ** rng.integers(0, 6)) for _ in range(3)]
        self.func = Func("f", self.block, [{"divisibility": d} for d in divs])
        multiples = rng.integers(1, 9, 3)
        self.values: dict[Value, np.ndarray] = {
            a: np.asarray(int(m) * d, np.int64 if i == 2 else np.int32)
            for i, (a, m, d) in enumerate(zip(self.block.args, multiples, divs, strict=True))}

    def emit(self, op: object) -> Value:
        result = self.builder.emit(op)
        self.values[result] = evaluate(op, *(self.values[v] for v in op.operands))
        return result

    def splat(self, x: Value, shape: tuple[int, ...]) -> Value:
        return self.emit(ops.Splat(x, types=[Tensor(shape, x.type)]))

    def number(self, low: int, high: int, shape: tuple[int, ...]) -> Value:
        value = int(self.rng.integers(low, high))
        t = Tensor(shape, i32) if shape else i32
        return self.emit(ops.Constant(value=value, types=[t]))

    def leaf(self, n: int) -> Value:
        match self.rng.integers(0, 4):
            case 0:
                start = int(self.rng.choice([0, 0, 4, 7, 32]))
                return self.emit(ops.Arange(start=start, end=start + n))
            case 1:
                return self.splat(self.block.args[int(self.rng.integers(0, 2))], (n,))
            case 2:
                return self.number(0, 40, (n,))
        return self.emit(ops.Arange(start=0, end=n))

    def grow(self, n: int, depth: int) -> Value:
        if depth == 0:
            return self.leaf(n)
        a, b = self.grow(n, depth - 1), self.grow(n, depth - 1)
        small = self.number(1, 17, (n,))
        power = self.number(0, 5, (n,))
        cond = self.emit(ops.Cmp(a, b, predicate=str(self.rng.choice(["lt", "le", "gt", "ge"]))))
        options = [
            lambda: ops.Add(a, b), lambda: ops.Add(a, b), lambda: ops.Sub(a, b),
            lambda: ops.Mul(a, b), lambda: ops.Mul(a, small), lambda: ops.Div(a, small),
            lambda: ops.Rem(a, small), lambda: ops.Select(cond, a, b), lambda: ops.Shl(a, power),
            lambda: ops.Minimum(a, b), lambda: ops.Maximum(a, b), lambda: ops.Neg(a),
            lambda: ops.Cast(ops_cast(self, a), types=[Tensor((n,), i32)]),
        ]
        return self.emit(options[int(self.rng.integers(0, len(options)))]())


def ops_cast(maker: Maker, a: Value) -> Value:
    return maker.emit(ops.Cast(a, types=[Tensor(shape_of(a.type), i64)]))


def check(info: AxisInfo, x: np.ndarray, step: int = 1) -> None:
    """Every claim of `info` about `x`; a run grows by `step` an element."""
    x = np.atleast_1d(x).astype(np.int64)
    for dim, n in enumerate(x.shape):
        along = np.moveaxis(x, dim, -1).reshape(-1, n)
        run, same = info.contiguity[dim], info.constancy[dim]
        starts = along[:, np.arange(n) // run * run]
        np.testing.assert_array_equal(along, starts + np.arange(n) % run * step)
        np.testing.assert_array_equal(along[:, ::run] % info.divisibility[dim], 0)
        np.testing.assert_array_equal(along, along[:, np.arange(n) // same * same])
    if info.constant is not None:
        np.testing.assert_array_equal(x, info.constant)
    if info.within(0):
        assert x.min() >= 0


@pytest.mark.parametrize("seed", range(60))
def test_claims_hold_of_random_expressions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    maker = Maker(rng)
    for _ in range(4):
        n, m = (int(k) for k in rng.choice([1, 8, 12, 48, 64], 2))
        row, col = maker.grow(n, int(rng.integers(1, 4))), maker.grow(m, int(rng.integers(1, 4)))
        tall = maker.emit(ops.ExpandDims(row, axis=1))
        wide = maker.emit(ops.ExpandDims(col, axis=0))
        whole = Tensor((n, m), i32)
        total = maker.emit(ops.Add(maker.emit(ops.Broadcast(tall, types=[whole])),
                                   maker.emit(ops.Broadcast(wide, types=[whole]))))
        maker.emit(ops.Trans(total, order=(1, 0)))
        maker.emit(ops.Reshape(total, types=[Tensor((n * m,), i32)]))
        maker.emit(ops.Cmp(total, maker.splat(maker.block.args[0], (n, m)), predicate="lt"))
    maker.builder.insert(ops.Return())
    analysis = AxisAnalysis(maker.func)
    for value, x in maker.values.items():
        if value.type != i1:
            check(analysis.get(value), x)


def test_it_sees_what_coalescing_needs() -> None:
    module = parse("""module { func @f(%p: ptr<f32> {divisibility = 16},
        %n: i32 {divisibility = 16}, %s: i32 {divisibility = 16}) {
      %pid = tile.program_id() {axis = 0} : i32
      %row = tile.mul(%pid, %s) : i32
      %r = tile.arange() {start = 0, end = 64} : tensor<64xi32>
      %b = tile.splat(%row) : tensor<64xi32>
      %o = tile.add(%b, %r) : tensor<64xi32>
      %q = tile.splat(%p) : tensor<64xptr<f32>>
      %a = tile.addptr(%q, %o) : tensor<64xptr<f32>>
      %ns = tile.splat(%n) : tensor<64xi32>
      %m = tile.cmp(%r, %ns) {predicate = "lt"} : tensor<64xi1>
      func.return() } }""")
    by_name = {r.name: r for op in module.walk() for r in op.results}
    analysis = AxisAnalysis(module.funcs[0])
    address = analysis.get(by_name["a"])
    assert (address.contiguity, address.divisibility) == ((64,), (16,))
    assert analysis.get(by_name["m"]).constancy == (16,)


def test_a_loop_weakens_what_its_step_breaks() -> None:
    module = parse("""module { func @f(%n: i32) {
      %c0 = tile.constant() {value = 0} : i32
      %c8 = tile.constant() {value = 8} : i32
      %c12 = tile.constant() {value = 12} : i32
      %x = scf.for(%c0, %n, %c8, %c0) { ^(%i: i32, %k: i32):
        %k2 = tile.add(%k, %c12) : i32
        scf.yield(%k2) } : i32
      func.return() } }""")
    loop = next(op for op in module.walk() if isinstance(op, ops.For))
    analysis = AxisAnalysis(module.funcs[0])
    assert analysis.get(loop.body.args[0]).divisibility == (8,)
    assert analysis.get(loop.results[0]).divisibility == (4,)


def test_low_bit() -> None:
    assert [low_bit(n) for n in (1, 2, 12, -8, 0)] == [1, 2, 4, 8, 1 << 30]


def test_the_constant_of_an_unsigned_difference_wraps() -> None:
    block = Block([])
    builder = Builder(block)
    one, two = (builder.emit(ops.Constant(value=n, types=[u32])) for n in (1, 2))
    down, up = builder.emit(ops.Sub(one, two)), builder.emit(ops.Sub(two, one))
    analysis = AxisAnalysis(Func("f", block))
    assert analysis.get(down).constant == 2**32 - 1 and analysis.get(up).constant == 1


@pytest.mark.parametrize("narrow", [i8, u8])
@pytest.mark.parametrize(("extent", "run"), [(64, 64), (128, 128), (192, 64), (256, 128),
                                             (512, 128)])
def test_runs_have_at_most_half_of_the_numbers_of_a_type(narrow, extent: int, run: int) -> None:
    block = Block([])
    builder = Builder(block)
    wide = builder.emit(ops.Arange(start=0, end=extent))
    cut = builder.emit(ops.Cast(wide, types=[Tensor((extent,), narrow)]))
    info = AxisAnalysis(Func("f", block)).get(cut)
    assert info.contiguity == (run,)
    assert info.divisibility == (1 << 30 if run == extent else run,)


def test_what_even_numbers_are_as_booleans() -> None:
    """All that are not 0 are true."""
    block = Block([i32])
    builder = Builder(block)
    two = builder.emit(ops.Constant(value=2, types=[i32]))
    flags = [builder.emit(ops.Cast(x, types=[i1])) for x in (block.args[0], two)]
    analysis = AxisAnalysis(Func("f", block, [{"divisibility": 16}]))
    for info in map(analysis.get, flags):
        assert info.divisibility == (1,) and info.constant is None and info.within(0, 1)


def test_a_promise_beyond_an_extent_says_nothing_of_what_it_grows_to() -> None:
    """A run of eight in a dimension of one element is that element, which broadcasting repeats."""
    module = parse("""module { func @f() {
      %r = tile.arange() {start = 0, end = 64} : tensor<64xi32>
      %x = tile.expand_dims(%r) {axis = 0} : tensor<1x64xi32>
      %h = tile.hint(%x) {contiguity = [8, 64]} : tensor<1x64xi32>
      %b = tile.broadcast(%h) : tensor<16x64xi32>
      func.return() } }""")
    by_name = {r.name: r for op in module.walk() for r in op.results}
    info = AxisAnalysis(module.funcs[0]).get(by_name["b"])
    assert (info.contiguity, info.constancy) == ((1, 64), (16, 1))
    check(info, np.broadcast_to(np.arange(64), (16, 64)))
