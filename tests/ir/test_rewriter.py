"""The worklist driver: fixpoints, dead ops, ops that patterns insert, erase or change in place."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Builder, Value
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.rewriter import FIRED, pattern, rewrite
from tilec.ir.verifier import verify

HEAD = "module { func @k(%x: i32, %p: ptr<i32>) {\n"
TAIL = "\nfunc.return() } }"


def after(body: str, *patterns: object, remove_dead: bool = True) -> list[str]:
    module = parse(HEAD + body + TAIL)
    rewrite(module, patterns, remove_dead=remove_dead)  # type: ignore[arg-type]
    verify(module)
    return [op.name for op in module.walk()]


@pattern(ops.Neg)
def neg_to_not(op: ops.Neg, builder: Builder) -> Sequence[Value] | None:
    return [builder.emit(ops.Not(op.x))]


@pattern(ops.Not)
def not_twice(op: ops.Not, builder: Builder) -> Sequence[Value] | None:
    return [op.x.op.x] if isinstance(op.x.op, ops.Not) else None


@pattern(ops.Store)
def erase_store(op: ops.Store, builder: Builder) -> Sequence[Value] | None:
    op.erase()
    return ()


@pattern(ops.Elementwise)
def swap_to_x(op: ops.Elementwise, builder: Builder) -> Sequence[Value] | None:
    if not isinstance(op, ops.Sub) or op.rhs is op.lhs:
        return None
    op.set_operand(1, op.lhs)
    return ()


def test_patterns_feed_each_other() -> None:
    body = "%0 = tile.neg(%x) : i32 %1 = tile.neg(%0) : i32 tile.store(%p, %1)"
    FIRED.clear()
    assert after(body, neg_to_not, not_twice) == ["tile.store", "func.return"]
    assert FIRED == {"neg_to_not": 2, "not_twice": 1}


def test_unused_pure_ops_go_with_what_fed_them() -> None:
    body = "%0 = tile.neg(%x) : i32 %1 = tile.abs(%0) : i32 %2 = tile.load(%p) : i32"
    assert after(body) == ["tile.load", "func.return"]
    assert after(body, remove_dead=False) == ["tile.neg", "tile.abs", "tile.load", "func.return"]


def test_erasing_in_a_pattern_frees_the_operands() -> None:
    body = "%0 = tile.neg(%x) : i32 %1 = tile.abs(%0) : i32 tile.store(%p, %1)"
    assert after(body, erase_store) == ["func.return"]


def test_a_change_in_place_frees_operands_and_matches_bases() -> None:
    body = "%0 = tile.neg(%x) : i32 %1 = tile.sub(%x, %0) : i32 tile.store(%p, %1)"
    assert after(body, swap_to_x) == ["tile.sub", "tile.store", "func.return"]


def test_unused_control_flow_goes_with_its_regions() -> None:
    body = """%0 = tile.neg(%x) : i32
      %r = scf.for(%x, %0, %x, %x) { ^(%i: i32, %a: i32):
        %1 = tile.add(%a, %0) : i32
        %2 = tile.neg(%1) : i32
        scf.yield(%2) } : i32"""
    assert after(body, neg_to_not, not_twice) == ["func.return"]


def test_reports_whether_anything_changed_in_any_function() -> None:
    text = HEAD + "tile.store(%p, %x)" + TAIL[:-1] + \
        "func @b(%x: i32) { %0 = tile.neg(%x) : i32 tile.print(%0) func.return() } }"
    module = parse(text)
    assert rewrite(module, [neg_to_not])
    printed = print_module(module)
    assert not rewrite(module, [neg_to_not]) and print_module(module) == printed


@pattern(ops.If)
def keep_then(op: ops.If, builder: Builder) -> Sequence[Value] | None:
    for inner in op.then:
        if not inner.terminator:
            inner.move_before(op)
    op.erase()
    return ()


def test_a_region_erased_by_a_pattern_is_not_visited() -> None:
    body = """%c = tile.cmp(%x, %x) {predicate = "lt"} : i1 %0 = tile.abs(%x) : i32
      scf.if(%c) { %1 = tile.neg(%x) : i32 tile.store(%p, %1) scf.yield() },
      { %2 = tile.neg(%0) : i32 %3 = tile.sub(%2, %0) : i32 tile.print(%3) scf.yield() }"""
    assert after(body, keep_then, neg_to_not, swap_to_x) == \
        ["tile.not", "tile.store", "func.return"]
