"""Delta debugging of a module: edits that make it smaller, kept as long as it still fails.

An edit works on a copy; what comes of it is verified before it is tried. Each edit names its places
by their order in the text, which a copy keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tilec.errors import IRError
from tilec.ir import ops
from tilec.ir.core import MISSING, UNFIT, Block, Module, Op, OperandField, Value
from tilec.ir.printer import print_module
from tilec.ir.types import Scalar, Tensor, Type, element_of, i1
from tilec.ir.verifier import verify
from tilec.passes.regions import drop_carried, drop_yielded, inline

Fails = Callable[[Module], bool]
Edit = Callable[[Module], bool]  # in place; False where there is nothing to do


def shrink(module: Module, fails: Fails) -> Module:
    """The smallest module found for which `fails` holds, as it must for this one."""
    search = _Search(module.clone(), fails)
    before = None
    while before != (before := measure(search.best)):
        for step in STEPS:
            step(search)
    return search.best


def measure(module: Module) -> tuple[int, int, int, int]:
    """What is to shrink: ops, of which constants count a little less, and parameters; elements;
    operands and attributes; constants."""
    weight = elements = details = magnitude = 0
    for op in module.walk():
        weight += 9 if isinstance(op, ops.Constant) else 10
        elements += sum(t.size if isinstance(t := r.type, Tensor) else 1 for r in op.results)
        details += len(op.operands) + len(op.attributes)
        if isinstance(op, ops.Constant) and abs(op.value) < 1e9:
            magnitude += math.ceil(abs(op.value))
    for func in module.funcs:
        weight += 5 * len(func.args)
        details += sum(map(len, func.arg_attrs))
    return weight, elements, details, magnitude


class _Search:
    """The smallest module so far, and what was tried."""

    def __init__(self, module: Module, fails: Fails) -> None:
        self.best, self.fails = module, fails
        self.tried: set[str] = set()

    def attempt(self, edit: Edit) -> bool:
        """Keep what an edit makes if it is smaller and still fails."""
        candidate = self.best.clone()
        try:
            if not edit(candidate):
                return False
            _sweep(candidate)
            verify(candidate)
        except (IRError, *UNFIT):
            return False
        text = print_module(candidate)
        if measure(candidate) >= measure(self.best) or text in self.tried:
            return False
        self.tried.add(text)
        if not self.fails(candidate):
            return False
        self.best = candidate
        return True

    def some(self, sites: Callable[[Module], list[Any]], edit: Callable[[Any], bool]) -> None:
        """Edit all sites at once, then halves of them, ... then each; from the last on."""
        size = len(sites(self.best))
        while size:
            end = len(sites(self.best))
            while end > 0:
                start = max(0, end - size)
                self.attempt(partial(_edited, sites, edit, start, end))
                end = min(start, len(sites(self.best)))
            size //= 2

    def each(self, sites: Callable[[Module], list[Any]], edits: Sequence[Callable[[Any], bool]]
             ) -> None:
        """Try the edits at each site, from the last on."""
        at = len(sites(self.best)) - 1
        while at >= 0:
            for edit in edits:
                if self.attempt(partial(_edited, sites, edit, at, at + 1)):
                    break
            at = min(at, len(sites(self.best))) - 1


def _edited(sites: Callable[[Module], list[Any]], edit: Callable[[Any], bool], start: int, end: int,
            module: Module) -> bool:
    """Whether any of some sites of a module could be edited."""
    done = [edit(site) for site in sites(module)[start:end]]
    return any(done)


def _sweep(module: Module) -> None:
    """Erase what is pure and unused. (The pass that does this may be the one at fault.)"""
    again = True
    while again:
        again = False
        for op in reversed(list(module.walk())):
            if op.parent is not None and op.pure and not any(r.uses for r in op.results):
                op.erase()
                again = True


# -- ops --------------------------------------------------------------------------------------

def _ops(holds: Callable[[Op], bool]) -> Callable[[Module], list[Op]]:
    return lambda module: [op for op in module.walk() if not op.terminator and holds(op)]


def _unused(op: Op) -> bool:
    return not any(r.uses for r in op.results)


def _erase(op: Op) -> bool:
    if op.parent is None:
        return False
    op.erase()
    return True


def _drop_effects(search: _Search) -> None:
    search.some(_ops(_unused), _erase)


def _number(t: Type, n: int) -> Any:
    element = element_of(t)
    if element == i1:
        return bool(n)
    return float(n) if isinstance(element, Scalar) and element.is_float else n


def _holds_numbers(op: Op) -> bool:
    return bool(op.results) and not isinstance(op, ops.Constant) and any(
        r.uses for r in op.results) and all(
            isinstance(r.type, (Scalar, Tensor)) and isinstance(element_of(r.type), Scalar)
            for r in op.results)


def _by_constant(n: int) -> Callable[[Op], bool]:
    def edit(op: Op) -> bool:
        if op.parent is None:
            return False
        for r in op.results:
            constant = ops.Constant(value=_number(r.type, n), types=[r.type], loc=op.loc)
            r.replace_by(op.parent.insert(constant, op).result)
        if not op.pure:
            _erase(op)
        return True
    return edit


def _by_constants(search: _Search) -> None:
    for n in (0, 1):
        search.some(_ops(_holds_numbers), _by_constant(n))


def _by_operand(index: int) -> Callable[[Op], bool]:
    def edit(op: Op) -> bool:
        same = [v for v in op.operands if v.type == op.result.type]
        if index >= len(same):
            return False
        op.result.replace_by(same[index])
        return True
    return edit


def _by_operands(search: _Search) -> None:
    search.each(_ops(lambda op: len(op.results) == 1 and not op.regions and bool(op.result.uses)),
                [_by_operand(i) for i in range(3)])


def _by_others(search: _Search) -> None:
    """Values that there are anyway."""
    def nth(n: int) -> Callable[[Op], bool]:
        def edit(op: Op) -> bool:
            found = [v for v in _visible(op) if v.type == op.result.type]
            if n >= len(found):
                return False
            op.result.replace_by(found[n])
            return True
        return edit

    search.each(_ops(lambda op: len(op.results) == 1 and bool(op.result.uses)),
                [nth(n) for n in range(2)])


def _visible(op: Op) -> Iterator[Value]:
    """What may be used where an op stands, from the outside in."""
    for inner in [*reversed(list(op.ancestors())), op]:
        assert inner.parent is not None
        yield from inner.parent.args
        for other in inner.parent:
            if other is inner:
                break
            yield from other.results


# -- control flow -----------------------------------------------------------------------------

def _one_round(op: Op) -> bool:
    if not isinstance(op, ops.For):
        return False
    op.replace_by(inline(op.body, [op.lo, *op.init], op))
    return True


def _no_round(op: Op) -> bool:
    if not isinstance(op, ops.For | ops.While) or [v.type for v in op.init] != \
            [r.type for r in op.results]:
        return False
    op.replace_by(list(op.init))
    return True


def _branch(index: int) -> Callable[[Op], bool]:
    def edit(op: Op) -> bool:
        if not isinstance(op, ops.If):
            return False
        op.replace_by(inline(op.regions[index], [], op))
        return True
    return edit


def _control(search: _Search) -> None:
    search.each(_ops(lambda op: isinstance(op, ops.ControlFlow)),
                [_no_round, _one_round, _branch(0), _branch(1)])


def _carried(module: Module) -> list[tuple[Op, int]]:
    return [(op, i) for op in module.walk() if isinstance(op, ops.For | ops.If)
            for i in range(len(op.results))]


def _drop_carried(search: _Search) -> None:
    def edit(site: tuple[Op, int]) -> bool:
        op, i = site
        if isinstance(op, ops.For):
            op.results[i].replace_by(op.init[i])
            op.body.args[i + 1].replace_by(op.init[i])
            drop_carried(op, {i})
        elif isinstance(op, ops.If) and not op.results[i].uses:
            drop_yielded(op, {i})
        return True

    search.each(_carried, [edit])


# -- shapes, parameters, details --------------------------------------------------------------

def _extents(module: Module) -> list[int]:
    return sorted({n for op in module.walk() for r in op.results if isinstance(r.type, Tensor)
                   for n in r.type.shape if n > 1})


def _resize(old: int, new: int, module: Module) -> bool:
    """Give every tile new extents where it has old ones."""
    def resized(t: Type) -> Type:
        if not isinstance(t, Tensor):
            return t
        return Tensor(tuple(new if n == old else n for n in t.shape), t.element, t.layout)

    def visit(block: Block) -> None:
        for arg in block.args:
            arg.type = resized(arg.type)
        for op in block:
            for r in op.results:
                r.type = resized(r.type)
            if op.given_types is not None:
                op.given_types = tuple(map(resized, op.given_types))
            if isinstance(op, ops.Arange) and op.end - op.start == old:
                op.end = op.start + new
            for region in op.regions:
                visit(region)

    for func in module.funcs:
        visit(func.body)
    return True


def _smaller_shapes(search: _Search) -> None:
    for old in reversed(_extents(search.best)):
        for new in sorted({1, 2, 4, 16, old // 2, old - 1} - {0, old}):
            if new < old and search.attempt(partial(_resize, old, new)):
                break


def _smaller_constants(search: _Search) -> None:
    def to(f: Callable[[Any], Any]) -> Callable[[Op], bool]:
        def edit(op: Op) -> bool:
            assert isinstance(op, ops.Constant)
            op.value = type(op.value)(f(op.value))
            return True
        return edit

    search.each(_ops(lambda op: isinstance(op, ops.Constant) and op.value == op.value
                     and abs(op.value) != float("inf")),
                [to(lambda v: 0), to(lambda v: 1), to(lambda v: v // 2)])


def _optional(module: Module) -> list[Op]:
    return [op for op in module.walk() if op.operand_fields and op.operand_fields[-1].optional
            and len(op.operands) > sum(map(_needed, op.operand_fields))]


def _needed(field: OperandField) -> bool:
    return not (field.optional or field.variadic)


def _fewer_operands(search: _Search) -> None:
    def edit(op: Op) -> bool:
        op.set_operands(op.operands[:-1])
        return True

    search.each(_optional, [edit])


def _attributes(module: Module) -> list[tuple[dict[str, Any], str]]:
    found = [(op.attributes, name) for op in module.walk() for name in op.attributes
             if name in op.attr_fields and op.attr_fields[name].default is not MISSING]
    return found + [(have, name) for f in module.funcs for have in f.arg_attrs for name in have]


def _fewer_attributes(search: _Search) -> None:
    search.each(_attributes, [lambda site: site[0].pop(site[1]) is not None or True])


def _fewer_parameters(search: _Search) -> None:
    def edit(site: tuple[Module, int]) -> bool:
        func = site[0].funcs[0]
        if func.args[site[1]].uses or any("base" in have for have in func.arg_attrs):
            return False  # tensor maps name parameters by number
        func.body.remove_arg(site[1])
        del func.arg_attrs[site[1]]
        return True

    search.each(lambda m: [(m, i) for i in range(len(m.funcs[0].args))], [edit])


STEPS = (_drop_effects, _control, _smaller_shapes, _by_constants, _by_operands, _by_others,
         _drop_carried, _fewer_operands, _fewer_parameters, _smaller_constants, _fewer_attributes)
