"""Lowering of assertions and printing."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen import casts
from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import POINTER, Emit, Reg
from tilec.codegen.memory import DEAD, both, is_copy, live_register, owner
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import Scalar, Tensor, element_of


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
