"""Use lists, insertion and removal, cloning, builders, op declarations."""

from __future__ import annotations

import pytest

from tilec.errors import IRError, Location
from tilec.ir import ops
from tilec.ir.core import OP_CLASSES, UNKNOWN, Block, Builder, Func, Module, Op, attr, operand
from tilec.ir.printer import equal, print_module
from tilec.ir.types import Pointer, Tensor, f32, i1, i32, i64
from tilec.ir.verifier import verify


def kernel(*types: object) -> tuple[Func, Builder]:
    func = Func("k", Block(types))  # type: ignore[arg-type]
    return func, Builder(func.body)


def test_use_lists_follow_the_operand_setter() -> None:
    func, b = kernel(i32, i32)
    x, y = func.args
    op = b.insert(ops.Add(x, x))
    assert list(x.uses) == [(op, 0), (op, 1)] and x.users == [op]
    op.set_operand(1, y)
    assert list(x.uses) == [(op, 0)] and list(y.uses) == [(op, 1)]
    op.set_operands([y, x])
    assert list(x.uses) == [(op, 1)] and list(y.uses) == [(op, 0)]
    assert op.lhs is y and op.rhs is x


def test_replace_by_moves_all_uses_and_the_name() -> None:
    func, b = kernel(i32)
    (x,) = func.args
    x.name = ""
    old = b.emit(ops.Add(x, x))
    old.name = "total"
    user = b.insert(ops.Mul(old, old))
    old.op.replace_by([x])  # type: ignore[union-attr]
    assert user.operands == [x, x] and not old.uses and x.name == "total"
    assert [op.name for op in func.body] == ["tile.mul"]


def test_erase_refuses_a_used_result() -> None:
    func, b = kernel(i32)
    x = b.emit(ops.Neg(func.args[0]))
    b.emit(ops.Neg(x))
    with pytest.raises(AssertionError, match="in use"):
        x.op.erase()  # type: ignore[union-attr]


def test_insertion_keeps_the_list_linked() -> None:
    func, b = kernel(i32)
    x = func.args[0]
    first, second = b.insert(ops.Neg(x)), b.insert(ops.Not(x))
    middle = Builder(before=second).insert(ops.Abs(x))
    names = ["tile.neg", "tile.abs", "tile.not"]
    assert [op.name for op in func.body] == names
    assert [op.name for op in reversed(func.body)] == names[::-1]
    second.move_before(first)
    assert [op.name for op in func.body] == ["tile.not", "tile.neg", "tile.abs"]
    assert func.body.last is middle and middle.next is None
    for op in func.body:  # erasing while iterating
        op.erase()
    assert func.body.first is func.body.last is None and not x.uses


def loop(b: Builder, n: object, x: object) -> Op:
    body = Block([i32, f32])
    inner = Builder(body)
    inner.insert(ops.Yield([inner.emit(ops.Add(body.args[1], body.args[1]))]))
    return b.insert(ops.For(n, n, n, [x], body=body))  # type: ignore[arg-type]


def test_clone_is_deep() -> None:
    func, b = kernel(i32, f32)
    op = loop(b, *func.args)
    b.insert(ops.Print([op.results[0]], prefix="x"))
    b.insert(ops.Return())
    module = Module([func], {"level": "tile", "num_warps": 8})
    copy = module.clone()
    verify(copy)
    assert equal(module, copy) and copy.num_warps == 8
    text = print_module(module)
    for op in copy.funcs[0].body:
        if isinstance(op, ops.For):
            op.unroll = 4
    copy.attributes["num_warps"] = 1
    assert print_module(module) == text and not equal(module, copy)


def test_walk_and_ancestors() -> None:
    func, b = kernel(i32, f32)
    outer = loop(b, *func.args)
    names = [op.name for op in func.walk()]
    assert names == ["scf.for", "tile.add", "scf.yield"]
    inner = outer.regions[0].first
    assert inner is not None and list(inner.ancestors()) == [outer]
    assert outer.regions[0].parent_op is outer and func.body.parent_op is None


def test_effects_come_from_nested_ops_and_attributes() -> None:
    func, b = kernel(Pointer(f32), i1)
    p, c = func.args
    then, orelse = Block(), Block()
    x = Builder(then).emit(ops.Load(p))
    Builder(then).insert(ops.Store(p, x))
    for block in (then, orelse):
        Builder(block).insert(ops.Yield())
    branch = b.insert(ops.If(c, then=then, orelse=orelse))
    assert branch.effects == {"read", "write"} and not branch.pure
    assert ops.Load(p).effects == {"read"}
    assert ops.Load(p, volatile=True).effects == {"read", "write"}
    assert ops.Neg(x).pure and not ops.Return().pure


def test_flow_names_where_values_come_from() -> None:
    func, b = kernel(i32, f32)
    n, x = func.args
    op = loop(b, n, x)
    assert isinstance(op, ops.For)
    yielded = op.body.terminator.operands[0]
    arg, result = op.body.args[1], op.results[0]
    assert op.flow() == [(arg, x), (arg, yielded), (result, x), (result, yielded)]


def test_attributes_equal_to_their_default_are_not_stored() -> None:
    func, _ = kernel(Pointer(f32))
    load = ops.Load(func.args[0], cache="", volatile=False)
    assert load.attributes == {}
    load.cache = ".cg"
    assert load.attributes == {"cache": ".cg"}
    load.cache = ""
    assert load.attributes == {} and load.cache == ""


def test_types_are_inferred_and_checked() -> None:
    func, _ = kernel(Tensor((4,), f32), Tensor((4,), i32))
    x, y = func.args
    assert ops.Cmp(x, x, predicate="lt").result.type == Tensor((4,), i1)
    with pytest.raises(IRError, match="operand types differ"):
        ops.Add(x, y)
    with pytest.raises(IRError, match="result type is i64, expected f32"):
        ops.Add(func.body.add_arg(f32), func.body.add_arg(f32), types=[i64])
    with pytest.raises(IRError, match="expected an integer"):
        ops.And(x, x)


def test_builder_gives_its_location() -> None:
    func, _ = kernel(i32)
    here, there = Location("k.py", 3), Location("k.py", 4)
    b = Builder(func.body, loc=here)
    assert b.insert(ops.Neg(func.args[0])).loc == here
    assert b.insert(ops.Neg(func.args[0], loc=there)).loc == there
    assert ops.Neg(func.args[0]).loc is UNKNOWN


def test_an_attribute_that_the_op_lacks_is_refused() -> None:
    func, _ = kernel(i32)
    with pytest.raises(IRError, match="tile.neg: there is no attribute `axis`"):
        ops.Neg(func.args[0], axis=0)


def test_one_class_declares_an_op() -> None:
    class Scale(Op, name="test.scale", commutative=True, effects=("read",)):
        """A test's op."""

        x = operand()
        by: int = attr(int)

        def infer(self) -> list[object]:  # type: ignore[override]
            return [self.x.type]

    try:
        assert OP_CLASSES["test.scale"] is Scale
        assert Scale.commutative and not Scale.terminator
        func, b = kernel(i32)
        op = b.insert(Scale(func.args[0], by=3))
        assert op.by == 3 and op.result.type == i32 and not op.pure  # type: ignore[attr-defined]
        assert "%1 = test.scale(%0) {by = 3} : i32" in print_module(Module([func]))
    finally:
        del OP_CLASSES["test.scale"]


@pytest.mark.parametrize("cls", OP_CLASSES.values(), ids=lambda c: c.name)
def test_every_op_is_documented(cls: type[Op]) -> None:
    assert cls.__doc__ and cls.__doc__.strip().endswith((".", ";", ")"))
