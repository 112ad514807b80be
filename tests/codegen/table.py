"""Compiles every op for every dtype it takes, for one target; run as a process of its own.

LLVM ends the process on what it cannot select, so the caller sees which kernel that was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from tests.codegen.kernels import DTYPES, FLAT, FLOATS, FP8, INTS, module, pointers
from tilec.codegen.cubin import link
from tilec.codegen.llvm import emit_ptx
from tilec.codegen.lower import to_llir
from tilec.ir.ops.memory import RMW_KINDS, has_atomic
from tilec.ir.types import SCALARS
from tilec.target import Target

BINARY = ["add", "sub", "mul", "div", "rem", "minimum", "maximum"]
BITWISE = ["and", "or", "xor", "shl", "shr"]
MATH = ["exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "floor", "ceil"]
N = 128


def expressions(dtype: str, dtypes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(op text in %a, %b, %c, result dtype) of everything `dtype` has, casts to `dtypes` too."""
    yield "tile.neg(%a)", dtype
    yield "tile.abs(%a)", dtype
    yield "tile.select(%c, %a, %b)", dtype
    for other in dtypes:
        yield "tile.cast(%a)", other
        if dtype in FLOATS and other in ("f16", "bf16", "f32") and DTYPES[other].itemsize <= \
                DTYPES[dtype].itemsize:
            yield 'tile.cast(%a) {rounding = "rtz"}', other
    if dtype in FP8:
        return
    for op in BINARY:
        yield f"tile.{op}(%a, %b)", dtype
    for predicate in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield f'tile.cmp(%a, %b) {{predicate = "{predicate}"}}', "i1"
    if dtype in FLOATS:
        yield "tile.fma(%a, %b, %a)", dtype
        yield "tile.div(%a, %b) {rounded = true}", dtype
        yield "tile.minimum(%a, %b) {propagate_nan = true}", dtype
        yield "tile.maximum(%a, %b) {propagate_nan = true}", dtype
        for op in MATH:
            yield f"tile.{op}(%a)", dtype
    else:
        yield "tile.not(%a)", dtype
        for op in BITWISE:
            yield f"tile.{op}(%a, %b)", dtype


def reductions(dtype: str) -> Iterator[str]:
    """Reductions over lanes and warps by every op that `dtype` has, and scans by some."""
    ops = ["add", "mul", "minimum", "maximum"] + (BITWISE[:3] if dtype not in FLOATS else [])
    for i, op in enumerate(ops):
        yield (f"%r{i} = tile.reduce(%a) {{axis = 0}} {{ ^(%l{i}: {dtype}, %h{i}: {dtype}):\n"
               f"%s{i} = tile.{op}(%l{i}, %h{i}) : {dtype}\nscf.yield(%s{i})\n}} : {dtype}\n"
               f"tile.store(%x, %r{i})")
    kind = f"tensor<{N}x{dtype}, {FLAT}>"
    for i, op in enumerate(ops[:3]):
        yield (f"%k{i} = tile.scan(%a) {{axis = 0}} {{ ^(%e{i}: {dtype}, %g{i}: {dtype}):\n"
               f"%n{i} = tile.{op}(%e{i}, %g{i}) : {dtype}\nscf.yield(%n{i})\n}} : {kind}\n"
               f"tile.store(%xp, %k{i})")


def atomics(dtype: str, kind: str) -> list[str]:
    """Every atomic of a type, of tiles and scalars, with and without old values."""
    lines, scalar = [], f"tile.load(%x) : {dtype}"
    for name in (*RMW_KINDS, "cas"):
        if not has_atomic(name, SCALARS[dtype]):
            continue
        for i, (sem, scope) in enumerate([("relaxed", "gpu"), ("acq_rel", "sys"),
                                          ("release", "cta"), ("acquire", "gpu")]):
            v, order = f"{name}{i}", f'sem = "{sem}", scope = "{scope}"'
            op, attrs = ("cas", f"{{{order}}}") if name == "cas" else \
                ("rmw", f'{{kind = "{name}", {order}}}')
            tile, one = ("%a, %b", f"%s{v}, %s{v}") if name == "cas" else ("%a, %c", f"%s{v}")
            lines += [f"%s{v} = {scalar}",
                      f"%q{v} = tile.atomic_{op}(%xp, {tile}) {attrs} : {kind}",
                      f"%w{v} = tile.atomic_{op}(%x, {one}) {attrs} : {dtype}"]
            if i % 2:
                lines += [f"tile.store(%xp, %q{v})", f"tile.store(%x, %w{v})"]
    return lines


def gathers(dtype: str) -> Iterator[str]:
    """Elements by indices of every width."""
    for i, index in enumerate(("i8", "u16", "i32", "u64")):
        kind = f"tensor<{N}x{index}, {FLAT}>"
        yield (f"%z{i} = tile.constant() {{value = {3 * i + 1}}} : {kind}\n"
               f"%h{i} = tile.gather(%a, %z{i}) {{axis = 0}} : tensor<{N}x{dtype}, {FLAT}>\n"
               f"tile.store(%xp, %h{i})")


def kernel(dtype: str, dtypes: Iterable[str]) -> tuple[str, str]:
    """(parameters, body) of one kernel with all of them."""
    kind = f"tensor<{N}x{dtype}, {FLAT}>"
    used = {dtype: "x"}
    lines = [pointers("x", dtype, (N,), FLAT), pointers("m", "i1", (N,), FLAT),
             f"%a = tile.load(%xp) : {kind}", f"%b = tile.load(%yp) : {kind}",
             f"%c = tile.load(%mp) : tensor<{N}xi1, {FLAT}>"]
    lines.insert(1, pointers("y", dtype, (N,), FLAT))
    params = [f"%x: ptr<{dtype}>", f"%y: ptr<{dtype}>", "%m: ptr<i1>"]
    used.setdefault("i1", "m")
    for i, (text, result) in enumerate(expressions(dtype, dtypes)):
        if result not in used:
            used[result] = f"t_{result}"
            params.append(f"%t_{result}: ptr<{result}>")
        name = used[result]
        lines.append(f"%v{i} = {text} : tensor<{N}x{result}, {FLAT}>")
        if name.startswith("t_") and f"%{name}p" not in " ".join(lines):
            lines.append(pointers(name, result, (N,), FLAT))
        lines.append(f"tile.store(%{name}p, %v{i})")
    if dtype not in FP8:
        lines += reductions(dtype)
    lines += gathers(dtype)
    if dtype in INTS:
        counted = f"tensor<200xi32, {FLAT}>"
        lines.append(f"%bin0 = tile.histogram(%a) {{bins = 200}} : {counted}\n"
                     f"%bin1 = tile.cast(%bin0) : tensor<200x{dtype}, {FLAT}>\n"
                     f"%bin2 = tile.gather(%bin1, %z2) {{axis = 0}} : {kind}\n"
                     "tile.store(%xp, %bin2)")
    lines += atomics(dtype, kind)
    lines.append(f'tile.print(%a) {{prefix = "{dtype}"}}')
    return ", ".join(params), "\n".join(lines)


def main() -> None:
    target = Target.parse(sys.argv[1])
    assert set(DTYPES) == {*INTS, *FLOATS, *FP8, "i1"}
    dtypes = [d for d in DTYPES if d != "bf16" or target.has("cvt.bf16")]
    for dtype in dtypes:
        print(dtype, end=" ", flush=True)
        params, body = kernel(dtype, dtypes)
        llir = to_llir(module(params, body), target)
        ptx = emit_ptx(llir.text, target)
        result = link(ptx, target, name=llir.name)
        assert not result.advisories and result.n_spills == 0, result.log
        print("ok", flush=True)


if __name__ == "__main__":
    main()
