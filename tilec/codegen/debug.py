"""Lowering of assertions and printing."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen import casts
from tilec.codegen.checks import Check
from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import POINTER, Emit, Reg
from tilec.codegen.memory import DEAD, both, is_copy, live_register, owner
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import Scalar, Tensor, element_of, pointee_of


@lower(ops.Assert)
def _assert(cg: CodeGen, op: ops.Assert) -> None:
    """Each thread checks what it holds; a failure prints as CUDA's own assert does, and traps."""
    e = cg.e
    if isinstance(op.cond.type, Tensor):
        frag = fragment_of(op.cond)
        held = e.lane_list(cg.whole(op.cond))
        failed = None
        for r, lane in enumerate(held):
            live = live_register(cg, frag, r)
            if live == DEAD:
                continue
            bad = e.binary("xor", lane, e.const(True, "i1"))
            if live is not None:
                bad = e.binary("and", bad, live)
            failed = bad if failed is None else e.binary("or", failed, bad)
        assert failed is not None
    else:
        failed = e.binary("xor", cg.scalar(op.cond), e.const(True, "i1"))
    if cg.checks is not None:
        message = f": {op.message}" if op.message else ""
        cg.checks.require(e.binary("xor", failed, e.const(True, "i1")), Check(
            op.loc, f"assertion failed{message}", ""))
        return
    fail, go_on = e.label("fail"), e.label("ok")
    e.branch(failed, fail, go_on)
    e.start(fail)
    texts = [e.text_constant(op.message), e.text_constant(op.loc.file)]
    name = e.text_constant(cg.func.name)
    line = e.const(op.loc.line, "i32")
    e.call_void("__assertfail", [*texts, line, name, e.const(1, "i64")])
    e.do("call void @llvm.trap()")
    e.declared["llvm.trap"] = "declare void @llvm.trap()"
    e.do("unreachable")
    e.start(go_on)


@lower(ops.Assume)
def _assume(cg: CodeGen, op: ops.Assume) -> None:
    """Analyses of the IR have used a promise; LLVM gains nothing from it."""
    if cg.checks is not None:
        cg.checks.require(cg.scalar(op.cond), Check(
            op.loc, "what this `assume` promises does not hold",
            "compiled code relies on it; remove the `assume` or fix the call"))


@lower(ops.Hint)
def _hint(cg: CodeGen, op: ops.Hint) -> None:
    cg.env[op.result] = cg.env[op.x]
    if cg.checks is None:
        return
    promises = _divisible(cg, op), _in_runs(cg, op, "contiguity"), _in_runs(cg, op, "constancy")
    for attribute, holds in zip(("divisibility", "contiguity", "constancy"), promises, strict=True):
        if holds is not None:
            cg.checks.require(holds, Check(
                op.loc, f"this hint promises {attribute} {getattr(op, attribute)}, which does not "
                "hold", "compiled code relies on it; remove the hint or fix the call"))


def _divisible(cg: CodeGen, op: ops.Hint) -> Reg | None:
    """Whether the first element of every run is divisible; None without a promise."""
    e, x = cg.e, cg.whole(op.x)
    if x.elem == POINTER:
        x = e.convert("ptrtoint", x, "i64")
    if not isinstance(op.x.type, Tensor):
        divisor = max(op.divisibility, default=1)
        return None if divisor == 1 else _multiple(cg, x, divisor)
    frag, total = fragment_of(op.x), None
    runs = op.contiguity or cg.axis.get(op.x).contiguity
    for dim, divisor in enumerate(op.divisibility):
        if divisor == 1:
            continue
        for r, lane in enumerate(e.lane_list(x)):
            live = live_register(cg, frag, r)
            if live == DEAD or is_copy(frag, r):
                continue
            place = e.int_op("add", cg.coordinate(frag, dim), frag.register_coords[r][dim])
            inside = e.compare("ne", e.binary("urem", place, e.const(runs[dim], "i32")),
                               e.const(0, "i32"))
            fine = e.binary("or", inside, _multiple(cg, lane, divisor))
            if live is not None:
                fine = e.binary("or", fine, e.binary("xor", live, e.const(True, "i1")))
            total = both(e, total, fine)
    return total


def _multiple(cg: CodeGen, x: Reg, divisor: int) -> Reg:
    return cg.e.compare("eq", cg.e.binary("srem", x, cg.e.const(divisor, x.elem)),
                        cg.e.const(0, x.elem))


def _in_runs(cg: CodeGen, op: ops.Hint, attribute: str) -> Reg | None:
    """Whether neighbours in a run that one thread holds differ by 1, or by nothing; that is what
    its accesses rely on. None without a promise."""
    if not isinstance(op.x.type, Tensor):
        return None
    e, frag, total = cg.e, fragment_of(op.x), None
    x, unit = cg.whole(op.x), int(attribute == "contiguity")
    if x.elem == POINTER:
        x, unit = e.convert("ptrtoint", x, "i64"), unit * pointee_of(op.x.type).bytes
    places = {place: r for r, place in enumerate(frag.register_coords) if not is_copy(frag, r)}
    for dim, run in enumerate(getattr(op, attribute)):
        for place, r in places.items():
            before = places.get((*place[:dim], place[dim] - 1, *place[dim + 1:]))
            if place[dim] % run == 0 or before is None or live_register(cg, frag, r) is not None:
                continue
            step = e.binary("sub", e.lane(x, r), e.lane(x, before))
            total = both(e, total, e.compare("eq", step, e.const(unit, x.elem)))
    return total


@lower(ops.Print)
def _print(cg: CodeGen, op: ops.Print) -> None:
    """A line for every element: `pid (x, y, z) idx (i, ...) prefix: value`."""
    if not op.values:
        with cg.e.when(owner(cg, None), "print"):
            _line(cg, op.prefix, (), None, "", op.hex)
    for number, value in enumerate(op.values):
        prefix = op.prefix + (f" (operand {number})" if len(op.values) > 1 else "")
        _print_value(cg, value, prefix, op.hex)


def _print_value(cg: CodeGen, value: Value, prefix: str, as_hex: bool) -> None:
    held = cg.whole(value)
    element = element_of(value.type)
    name = element.name if isinstance(element, Scalar) else "ptr"
    if not isinstance(value.type, Tensor):
        with cg.e.when(owner(cg, None), "print"):
            _line(cg, prefix, (), held, name, as_hex)
        return
    frag = fragment_of(value)
    for r in range(frag.num_registers):
        live = live_register(cg, frag, r)
        if live == DEAD or is_copy(frag, r):
            continue
        at = [cg.e.int_op("add", cg.coordinate(frag, d), c)
              for d, c in enumerate(frag.register_coords[r])]
        pred = both(cg.e, owner(cg, frag), live)
        lane = cg.e.lane(held, r)
        with cg.e.when(pred, "print"):
            _line(cg, prefix, at, lane, name, as_hex)


def _printable(cg: CodeGen, x: Reg, name: str, as_hex: bool) -> tuple[str, Reg]:
    """(printf conversion, the value as C passes it to printf)."""
    e = cg.e
    if x.elem == POINTER:
        return "0x%016llx", e.convert("ptrtoint", x, "i64")
    if as_hex or not (x.is_float or name.startswith("f8")):
        bits = e.bitcast(x, f"i{x.bits}", 0)
        signed = name[0] == "i" and name != "i1" and not as_hex
        wide = e.resize(bits, "i64" if x.bits == 64 else "i32", signed)
        long = "ll" if x.bits == 64 else ""
        digits = max(1, x.bits // 4)
        return (f"0x%0{digits}{long}x" if as_hex else f"%{long}{'d' if signed else 'u'}"), wide
    if x.elem == "double":
        return "%g", x
    return "%g", e.convert("fpext", casts.to_f32(cg, x, name), "double")


def _line(cg: CodeGen, prefix: str, at: Sequence[Reg], x: Reg | None, name: str, as_hex: bool
          ) -> None:
    e = cg.e
    pid = [cg.special(f"ctaid.{c}") for c in "xyz"]
    text = "pid (%d, %d, %d) idx (" + ", ".join(["%d"] * len(at)) + ") " + prefix.replace("%", "%%")
    args = [*pid, *at]
    if x is not None:
        conversion, shown = _printable(cg, x, name, as_hex)
        text, args = f"{text}: {conversion}", [*args, shown]
    _vprintf(e, text + "\n", args)


def _vprintf(e: Emit, text: str, args: Sequence[Reg]) -> None:
    """Arguments lie in a local buffer, each aligned to its size."""
    places, size = [], 0
    for a in args:
        width = a.bits // 8
        size = -(-size // width) * width
        places.append(size)
        size += width
    buffer = e.local(size)
    for a, place in zip(args, places, strict=True):
        to = e.new(f"getelementptr i8, ptr {buffer.ref}, i64 {place}", "ptr")
        e.store(a, to, a.bits // 8)
    e.call("vprintf", "i32", 0, (e.text_constant(text), buffer))
