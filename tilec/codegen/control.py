"""Lowering of control flow, program ids, barriers and promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilec.codegen.context import CodeGen, lower
from tilec.codegen.emit import POINTER, Reg
from tilec.codegen.values import Index, Tile, whole
from tilec.errors import note
from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.types import scalar_of

_AXES = "xyz"
_SMALL_STEP = 1 << 16


@lower(ops.ProgramId)
def _program_id(cg: CodeGen, op: ops.ProgramId) -> None:
    cg.env[op.result] = cg.special(f"ctaid.{_AXES[op.axis]}")


@lower(ops.NumPrograms)
def _num_programs(cg: CodeGen, op: ops.NumPrograms) -> None:
    cg.env[op.result] = cg.special(f"nctaid.{_AXES[op.axis]}")


@lower(ops.Barrier)
def _barrier(cg: CodeGen, op: ops.Barrier) -> None:
    cg.barrier()


@lower(ops.GridDependencyWait, ops.GridDependencyLaunch)
def _grid_dependency(cg: CodeGen, op: Op) -> None:
    what = "wait" if isinstance(op, ops.GridDependencyWait) else "launch_dependents"
    cg.e.asm(f"griddepcontrol.{what};", "", (), (), convergent=True)


@lower(ops.Breakpoint)
def _breakpoint(cg: CodeGen, op: ops.Breakpoint) -> None:
    note(op.loc, f"{op.loc}: breakpoint() is left out of PTX; it acts where a kernel runs at tile, "
         "gpu or lowered (TILEC_RUN)")


@lower(ops.Return)
def _return(cg: CodeGen, op: ops.Return) -> None:
    cg.e.do("ret void")


# ---- carried values
@dataclass(frozen=True)
class Form:
    """How a carried value is held: a scalar (size 0), or a tile's size, index, offsets, zeros."""

    elem: str
    lanes: int
    size: int = 0
    index: Index = None
    offset: Index = None
    zeros: int = 0


def _form(held: Reg | Tile) -> Form:
    """The form to carry a value in: compressed for integers and pointers, which tend to stay so."""
    if isinstance(held, Reg):
        return Form(held.elem, held.n)
    if held.reg.elem == POINTER or not held.reg.is_float and held.reg.elem != "i1":
        return Form(held.reg.elem, held.reg.n, held.size, held.index, held.offset, held.zeros)
    return _full(held)


def _full(held: Tile) -> Form:
    return Form(held.reg.elem, held.size if held.size > 1 else 0, held.size)


def _same(held: Tile, form: Form) -> bool:
    return (held.index, held.offset, held.reg.n) == (form.index, form.offset, form.lanes)


def _fits(held: Reg | Tile, form: Form) -> bool:
    return isinstance(held, Reg) or _same(held, form) and not form.zeros & ~held.zeros


def _fit(cg: CodeGen, held: Reg | Tile, form: Form) -> Reg | None:
    """The register that holds a value in `form`, or None if it does not fit that form."""
    if isinstance(held, Reg):
        return held
    if _same(held, form):
        return held.reg if not form.zeros & ~held.zeros else None
    return whole(cg.e, held) if form.index is None and form.offset is None else None


def _unfit(held: Reg | Tile, form: Form) -> Form:
    """A weaker form, that fits both."""
    assert isinstance(held, Tile)
    return replace(form, zeros=form.zeros & held.zeros) if _same(held, form) else _full(held)


def _bind(value: Value, reg: Reg, form: Form, cg: CodeGen) -> None:
    cg.env[value] = Tile(reg, form.size, form.index, form.offset, form.zeros) if form.size else reg


def _loop(cg: CodeGen, hint: str, init: Sequence[Reg | Tile], args: Sequence[Value],
          test: Callable[[], Reg], body: Callable[[], Sequence[Reg | Tile]]) -> None:
    """Write a loop: `args` hold `init`, then what `body` returns, as long as `test` holds.

    Carried values have forms that survive an iteration: where what comes around does not fit, the
    text is dropped and written again with weaker ones.
    """
    forms: list[Form] | None = [_form(v) for v in init]
    e = cg.e
    mark, block, dbg = len(e.lines), e.block, e.dbg
    while forms is not None:
        del e.lines[mark:]
        e.block, e.dbg = block, dbg
        forms = _write_loop(cg, hint, forms, init, args, test, body)


def _write_loop(cg: CodeGen, hint: str, forms: list[Form], init: Sequence[Reg | Tile],
                args: Sequence[Value], test: Callable[[], Reg],
                body: Callable[[], Sequence[Reg | Tile]]) -> list[Form] | None:
    """None, or weaker forms to try again with."""
    e = cg.e
    first, weaker = _check(cg, init, forms)
    if weaker is not None:
        return weaker
    head, inside, done = e.label(hint), e.label("body"), e.label("done")
    before = e.block
    e.jump(head)
    e.start(head)
    phis = [e.phi_later(form.elem, form.lanes) for form in forms]
    for arg, (reg, _), form in zip(args, phis, forms, strict=True):
        _bind(arg, reg, form, cg)
    e.branch(test(), inside, done)
    e.start(inside)
    last, weaker = _check(cg, body(), forms)
    if weaker is not None:
        return weaker
    for (_, close), start, again in zip(phis, first, last, strict=True):
        close((start, before), (again, e.block))
    e.jump(head)
    e.start(done)
    return None


def _check(cg: CodeGen, held: Sequence[Reg | Tile], forms: Sequence[Form]
           ) -> tuple[list[Reg], list[Form] | None]:
    """(registers in the forms, None), or weaker forms to try again with."""
    regs = [_fit(cg, v, f) for v, f in zip(held, forms, strict=True)]
    if all(r is not None for r in regs):
        return [r for r in regs if r is not None], None
    return [], [f if r is not None else _unfit(v, f)
                for v, f, r in zip(held, forms, regs, strict=True)]


@lower(ops.For)
def _for(cg: CodeGen, op: ops.For) -> None:
    lo, hi, step = (cg.scalar(v) for v in (op.lo, op.hi, op.step))
    e, known = cg.e, cg.axis.get(op.step).constant
    sign = "s" if scalar_of(op.lo.type).is_signed else "u"
    iv, *args = op.body.args
    if known is None:
        hi = e.select(e.compare(sign + "gt", step, e.const(0, step.elem)), hi, lo)
    elif known <= 0:
        hi = lo
    start = cg.axis.get(op.lo).constant
    # By ones, no index is passed over. A signed one that wraps is negative: below such a start, and
    # after a small step below all but those at the very end of the type. Else it stops at `hi`,
    # which costs registers, as it hides from LLVM that the index grows by the step.
    wraps_below = sign == "s" and known is not None and (
        known < _SMALL_STEP or start is not None and start >= 0)

    def test() -> Reg:
        inside = e.compare(sign + "lt", cg.scalar(iv), hi)
        if known == 1 or not wraps_below:
            return inside
        return e.binary("and", inside, e.compare("sge", cg.scalar(iv), lo))

    def body() -> list[Reg | Tile]:
        yielded = cg.block(op.body)
        after = e.binary("add", cg.scalar(iv), step)
        if known != 1 and not wraps_below:
            after = e.select(e.compare(sign + "gt", after, cg.scalar(iv)), after, hi)
        return [after, *(cg.env[v] for v in yielded)]

    _loop(cg, "for", [lo, *(cg.env[v] for v in op.init)], op.body.args, test, body)
    for result, arg in zip(op.results, args, strict=True):
        cg.env[result] = cg.env[arg]


@lower(ops.While)
def _while(cg: CodeGen, op: ops.While) -> None:
    passed = op.before.terminator.operands[1:]

    def test() -> Reg:
        return cg.scalar(cg.block(op.before)[0])

    def body() -> list[Reg | Tile]:
        for arg, value in zip(op.after.args, passed, strict=True):
            cg.env[arg] = cg.env[value]
        return [cg.env[v] for v in cg.block(op.after)]

    _loop(cg, "while", [cg.env[v] for v in op.init], op.before.args, test, body)
    for result, value in zip(op.results, passed, strict=True):
        cg.env[result] = cg.env[value]


@lower(ops.If)
def _if(cg: CodeGen, op: ops.If) -> None:
    e = cg.e
    yes, no, done = e.label("then"), e.label("else"), e.label("join")
    cond = cg.scalar(op.cond)
    e.branch(cond, yes, no)
    arms = [_arm(cg, op.then, yes, done), _arm(cg, op.orelse, no, done)]
    regs: list[list[Reg]] = [[], []]
    forms = []
    for held in zip(arms[0].values, arms[1].values, strict=True):
        form = _form(held[0])
        if not all(_fits(v, form) for v in held):
            form = _full(held[0]) if isinstance(held[0], Tile) else form
        forms.append(form)
    # The second arm first: widening a value inserts lines, which would move the arms after it.
    for k in (1, 0):
        regs[k] = _widen_arm(cg, arms[k], forms)
    e.start(done)
    for i, (result, form) in enumerate(zip(op.results, forms, strict=True)):
        sources = [(regs[k][i], arms[k].block) for k in (0, 1)]
        _bind(result, e.phi(form.elem, form.lanes, sources), form, cg)


class _Arm(NamedTuple):
    values: list[Reg | Tile]
    end: int
    block: str


def _arm(cg: CodeGen, block: Block, label: str, done: str) -> _Arm:
    e = cg.e
    e.start(label)
    values = [cg.env[v] for v in cg.block(block)]
    end = len(e.lines)
    e.jump(done)
    return _Arm(values, end, e.block)


def _widen_arm(cg: CodeGen, arm: _Arm, forms: Sequence[Form]) -> list[Reg]:
    """The arm's values in the forms of the join, with the lines that takes put at its end."""
    e = cg.e
    tail = e.lines[arm.end:]
    del e.lines[arm.end:]
    regs = [_fit(cg, v, f) for v, f in zip(arm.values, forms, strict=True)]
    e.lines += tail
    assert all(r is not None for r in regs)
    return [r for r in regs if r is not None]
