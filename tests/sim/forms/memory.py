"""Forms of loads, stores, atomics, asynchronous copies and address arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.sim.forms.base import (
    BITS,
    Array,
    Form,
    default_match,
    kind_of,
    poison,
    seed_of,
    special,
    values,
    width,
)

BLOCK = 64
BYTES = ".shared .align 16 .b8 buffer[4096];"


def data(kind: str, name: str, count: int = BLOCK) -> Array:
    return values(kind, seed_of(name, kind), count)


def loads() -> Iterator[Form]:
    """Every width and vector length; narrow loads extend into a wider register."""
    for ty in ("u8 s8 b8 u16 s16 b16 u32 s32 b32 f32 u64 s64 b64 f64".split()):
        yield load(f"ld.global.{ty}", ty, 1)
    for ty, counts in (("b8", (2, 4)), ("s8", (4,)), ("u16", (2, 4)), ("b32", (2, 4)),
                       ("b64", (2,)), ("f32", (2, 4)), ("f64", (2,))):
        for count in counts:
            yield load(f"ld.global.v{count}.{ty}", ty, count)
    for how in ("ca", "cg", "cs", "lu", "cv", "nc", "nc.L1::no_allocate", "L1::evict_last",
                "L1::evict_first", "L1::no_allocate", "L2::128B"):
        yield load(f"ld.global.{how}.b32", "b32", 1)
    for how in ("volatile.global", "relaxed.gpu.global", "acquire.gpu.global",
                "relaxed.cta.global"):
        yield load(f"ld.{how}.b32", "b32", 1)
    yield load("ld.b32", "b32", 1)
    yield load("ld.v4.f32", "f32", 4)
    yield load("ld.global.nc.v4.b32", "b32", 4)


def wide_register(ty: str) -> tuple[str, str]:
    """The register and store type that a load of `ty` is seen through: it shows the extension."""
    if ty in ("f32", "f64") or width(kind_of(ty)) == 64:
        return ("%w", "b64") if width(kind_of(ty)) == 64 else ("%r", "b32")
    return "%r", "b32"


def load(name: str, ty: str, count: int) -> Form:
    register, seen = wide_register(ty)
    names = [f"{register}{10 + i}" for i in range(count)]
    vector = "{" + ", ".join(names) + "}" if count > 1 else names[0]
    size = width(seen_kind(seen)) // 8
    body = f"{name} {vector}, [%i0];\n" + "\n".join(
        f"st.global.{seen} [%o0+{size * i}], {n};" for i, n in enumerate(names))
    return special(name, body, [poison(seen_kind(seen), count * BLOCK)],
                   [data(kind_of(ty), name, count * BLOCK)], BLOCK)


def seen_kind(ty: str) -> str:
    return "i64" if ty == "b64" else "i32"


def stores() -> Iterator[Form]:
    """What a store leaves in memory; narrow stores take the register's low bits."""
    for ty in ("b8", "u8", "s16", "b16", "u32", "f32", "b64", "f64"):
        yield store(f"st.global.{ty}", ty, 1)
    for ty, count in (("b8", 4), ("b16", 2), ("b16", 4), ("b32", 2), ("f32", 4), ("b64", 2)):
        yield store(f"st.global.v{count}.{ty}", ty, count)
    for how in ("wb", "cg", "cs", "wt", "L1::no_allocate", "L1::evict_first"):
        yield store(f"st.global.{how}.b32", "b32", 1)
    for how in ("volatile.global", "relaxed.gpu.global", "release.gpu.global"):
        yield store(f"st.{how}.b32", "b32", 1)
    yield store("st.v2.b64", "b64", 2)


def store(name: str, ty: str, count: int) -> Form:
    """Registers with all their bits set are cut to the width."""
    wide = width(kind_of(ty)) == 64
    register, held, size = ("%w", "b64", 8) if wide else ("%r", "b32", 4)
    names = [f"{register}{10 + i}" for i in range(count)]
    vector = "{" + ", ".join(names) + "}" if count > 1 else names[0]
    lines = [f"ld.global.{held} {n}, [%i0+{size * i}];" for i, n in enumerate(names)]
    return special(name, "\n".join([*lines, f"{name} [%o0], {vector};"]),
                   [poison(kind_of(ty), count * BLOCK)],
                   [data(seen_kind(held), name, count * BLOCK)], BLOCK)


def spaces() -> Iterator[Form]:
    """Shared, local, constant and parameter memory, and generic addresses of them."""
    ints = data("i32", "spaces")
    out = poison("i32", BLOCK)
    turn = "xor.b32 %r1, %t, 37; shl.b32 %r2, %t, 2; shl.b32 %r3, %r1, 2;"
    yield special(
        "ld.shared st.shared", f"""{BYTES} {turn} mov.u32 %r0, buffer;
        add.u32 %r2, %r2, %r0; add.u32 %r3, %r3, %r0;
        ld.global.b32 %r4, [%i0]; st.shared.b32 [%r2], %r4; bar.sync 0;
        ld.shared.b32 %r5, [%r3]; st.global.b32 [%o0], %r5;""", [out], [ints], BLOCK)
    yield special(
        "ld.shared.v4 st.shared.u8", f"""{BYTES} shl.b32 %r2, %t, 4; mov.u32 %r0, buffer;
        add.u32 %r2, %r2, %r0; ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%i0];
        st.shared.v2.b32 [%r2], {{%r4, %r5}}; st.shared.v2.b32 [%r2+8], {{%r6, %r7}}; bar.sync 0;
        st.shared.u8 [%r2+5], %r7; st.shared.u16 [%r2+10], %r4;
        ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2]; ld.shared.s8 %r8, [%r2+3];
        xor.b32 %r4, %r4, %r8; st.global.v4.u32 [%o0], {{%r4, %r5, %r6, %r7}};""",
        [poison("i32", 4 * BLOCK)], [data("i32", "v4", 4 * BLOCK)], BLOCK)
    yield special(
        "generic shared", f"""{BYTES} {turn} mov.u64 %w0, buffer; cvta.shared.u64 %w1, %w0;
        cvt.u64.u32 %w2, %r2; cvt.u64.u32 %w3, %r3; add.u64 %w2, %w2, %w1; add.u64 %w3, %w3, %w1;
        ld.global.b32 %r4, [%i0]; st.b32 [%w2], %r4; bar.sync 0; ld.b32 %r5, [%w3];
        isspacep.shared %p0, %w3; isspacep.global %p1, %w3; isspacep.global %p2, %o0;
        isspacep.local %p3, %w2; selp.b32 %r6, 1, 0, %p0; @%p1 or.b32 %r6, %r6, 2;
        @%p2 or.b32 %r6, %r6, 4; @%p3 or.b32 %r6, %r6, 8; st.global.b32 [%o0], %r5;
        st.global.b32 [%o1], %r6; cvta.to.shared.u64 %w5, %w3; cvt.u32.u64 %r7, %w5;
        ld.shared.b32 %r8, [%r7]; st.global.b32 [%o2], %r8;""", [out, out, out], [ints], BLOCK)
    yield special(
        "ld.local st.local", """.local .align 8 .b8 mine[64]; mov.u32 %r0, mine;
        and.b32 %r1, %t, 7; shl.b32 %r1, %r1, 2; add.u32 %r1, %r1, %r0; ld.global.b32 %r2, [%i0];
        st.local.v2.b32 [mine], {%t, %r2}; st.local.v2.b32 [mine+8], {%r2, %t};
        st.local.v2.b32 [mine+16], {%t, %l}; st.local.v2.b32 [mine+24], {%r2, %l};
        st.local.u8 [%r1], 7; ld.local.b32 %r3, [%r1]; st.global.b32 [%o0], %r3;
        mov.u64 %w0, mine; cvta.local.u64 %w0, %w0;
        ld.b32 %r5, [%w0+24]; st.global.b32 [%o1], %r5;""", [out, out], [ints], BLOCK)
    table = ", ".join(str(v) for v in data("i32", "table", 64).tolist())
    yield special(
        "ld.const", """mul.wide.u32 %w1, %l, 4; mov.u64 %w0, table; add.u64 %w0, %w0, %w1;
        ld.const.b32 %r2, [%w0+64]; ld.const.v2.b32 {%r3, %r4}, [table+8]; add.u32 %r2, %r2, %r4;
        ld.const.s8 %r5, [%w0]; st.global.b32 [%o0], %r2; st.global.b32 [%o1], %r5;""",
        [out, out], [], BLOCK, outside=f".const .align 8 .b32 table[64] = {{{table}}};")
    floats = ", ".join(f"0f{v:08X}" for v in data("f32", "floats", 64).tolist())
    yield special(
        "ld.global module variable", """mul.wide.u32 %w1, %t, 4; mov.u64 %w0, values;
        add.u64 %w0, %w0, %w1; ld.global.f32 %f0, [%w0]; st.global.f32 [%o0], %f0;
        cvta.global.u64 %w2, %w0; ld.f32 %f1, [%w2]; st.global.f32 [%o1], %f1;""",
        [out, out], [], BLOCK, outside=f".global .align 4 .f32 values[64] = {{{floats}}};")


# -- atomics -------------------------------------------------------------------------------------

INTEGER_OPS = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"), "and": ("b32", "b64"), "or": ("b32", "b64"),
    "xor": ("b32", "b64"), "inc": ("u32",), "dec": ("u32",), "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
}
FLOAT_OPS = {"add": ("f32", "f64"), "add.noftz": ("f16", "f16x2", "bf16", "bf16x2")}
RMW = {**INTEGER_OPS, **FLOAT_OPS}


def atomics() -> Iterator[Form]:
    for space in ("global", "shared"):
        for name, types in RMW.items():
            for ty in types:
                kind = kind_of(ty)
                yield atom(f"atom.{space}.{name}.{ty}", name, ty, kind, space)
    for name, ty in (("add", "u32"), ("add", "f32"), ("add", "f64"), ("max", "s32"), ("min", "u64"),
                     ("and", "b32"), ("or", "b64"), ("xor", "b32"), ("inc", "u32"), ("dec", "u32"),
                     ("add.noftz", "f16x2"), ("add.noftz", "bf16x2"), ("add", "u64")):
        yield contended(f"red.global.{name}.{ty}", name, ty)
    for sem in ("relaxed.gpu", "acq_rel.gpu", "acquire.cta", "release.sys", "relaxed.cta"):
        yield atom(f"atom.{sem}.global.add.u32", "add", "u32", "i32", "global")
    yield atom("atom.add.u32 generic", "add", "u32", "i32", "")
    for ty, vector in (("f32", "v2"), ("f32", "v4"), ("f16x2", "v4"), ("bf16x2", "v2"),
                       ("f16", "v4"), ("bf16", "v8")):
        yield vector_red(ty, vector)


def atom(name: str, operation: str, ty: str, kind: str, space: str) -> Form:
    """Each thread on an element of its own: the old value and what is in memory then.

    cas finds what it compares with in half of the threads.
    """
    bits = width(kind)
    reg = {16: "%h", 32: "%r", 64: "%w"}[bits]
    memory, operand, swap = (values(kind, seed_of(name, i), BLOCK) for i in range(3))
    swaps = f", {reg}22" if operation == "cas" else ""
    if operation == "cas":
        operand = np.where(np.arange(BLOCK) % 2 == 0, memory, operand)
    word = name.split()[0]
    lines = [f"ld.global.b{bits} {reg}21, [%i0]; ld.global.b{bits} {reg}22, [%i1];"]
    place = "[%o1]"
    if space == "shared":
        place = "[%r2]"
        lines = [f"{BYTES} mov.u32 %r0, buffer; mad.lo.u32 %r2, %t, {bits // 8}, %r0;"
                 f"ld.global.b{bits} {reg}23, [%o1]; st.shared.b{bits} [%r2], {reg}23; bar.sync 0;",
                 *lines]
    lines.append(f"{word} {reg}20, {place}, {reg}21{swaps};")
    lines.append(f"st.global.b{bits} [%o0], {reg}20;")
    if space == "shared":
        lines.append(f"bar.sync 0; ld.shared.b{bits} {reg}23, [%r2];"
                     f"st.global.b{bits} [%o1], {reg}23;")
    # What no thread stored is not a result: the old value is as it was, whatever its payload.
    return special(name, "\n".join(lines), [poison(kind, BLOCK), memory], [operand, swap], BLOCK,
                   match=[BITS, default_match(kind)])


def contended(name: str, operation: str, ty: str) -> Form:
    """All threads of two CTAs on four elements: what the order does not show."""
    kind = kind_of(ty)
    bits = width(kind)
    reg = {32: "%r", 64: "%w"}[bits]
    rng = np.random.default_rng(seed_of(name))
    if kind in ("i32", "i64"):
        operand = rng.integers(0, 1 << 31, 2 * BLOCK).astype(f"u{bits // 8}")
        if operation in ("inc", "dec"):
            operand[:] = 77
        memory = rng.integers(0, 1 << 31, 4).astype(f"u{bits // 8}")
    else:
        operand, memory = (whole(ty, rng.integers(-3, 4, n)) for n in (2 * BLOCK, 4))
    body = f"""and.b32 %r0, %t, 3; mul.wide.u32 %w1, %r0, {bits // 8}; add.u64 %w1, %w1, %O0;
    ld.global.b{bits} {reg}21, [%i0]; {name} [%w1], {reg}21;"""
    return special(name, body, [memory], [operand], BLOCK, grid=2)


def whole(ty: str, numbers: Array) -> Array:
    """Small whole numbers as a float type, packed ones with the number and its negative."""
    if ty in ("f32", "f64"):
        return numbers.astype(f"f{int(ty[1:]) // 8}").view(f"u{int(ty[1:]) // 8}")
    base = ty.removesuffix("x2")
    pair = np.stack([numbers, -numbers], axis=1) if ty.endswith("x2") else numbers
    if base == "f16":
        halves = pair.astype(np.float16).view(np.uint16)
    else:
        halves = (pair.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return halves.reshape(-1).view(np.uint32 if ty.endswith("x2") else np.uint16)


def vector_red(ty: str, vector: str) -> Form:
    """red.global of a vector, each thread on its own."""
    count = int(vector[1])
    kind = kind_of(ty)
    bits = width(kind)
    reg = "%r" if bits == 32 else "%h"
    name = f"red.global.add{'' if ty == 'f32' else '.noftz'}.{vector}.{ty}"
    names = [f"{reg}{20 + i}" for i in range(count)]
    body = "\n".join(f"ld.global.b{bits} {n}, [%i0+{bits // 8 * i}];" for i, n in enumerate(names))
    body += f"\n{name} [%o0], {{{', '.join(names)}}};"
    memory, operand = (values(kind, seed_of(name, i), count * BLOCK) for i in range(2))
    return special(name, body, [memory], [operand], BLOCK)


# -- cp.async ------------------------------------------------------------------------------------

def copies() -> Iterator[Form]:
    for how, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        yield copy(f"cp.async.{how} {size}", how, size, "")
        yield copy(f"cp.async.{how} {size} zero-fill", how, size, ", %r8")
    yield copy("cp.async.ca 8 ignore-src", "ca", 8, ", %p1")
    yield copy("cp.async.cg 16 L2::128B", "cg.shared.global.L2::128B", 16, "")
    yield copy("cp.async wait_group", "ca", 16, "", "cp.async.commit_group; cp.async.wait_group 0;")


def copy(name: str, how: str, size: int, last: str, wait: str = "cp.async.wait_all;") -> Form:
    """Each thread copies `size` bytes, %r8 of them (thread modulo size + 1) where that is asked."""
    how = how if "shared" in how else f"{how}.shared.global"
    words = size // 4
    registers = ", ".join(f"%r{20 + i}" for i in range(words))
    vector = f".v{words}" if words > 1 else ""
    held = "{" + registers + "}" if words > 1 else registers
    body = f"""{BYTES} mov.u32 %r0, buffer; mad.lo.u32 %r1, %t, {size}, %r0;
    rem.u32 %r8, %t, {size + 1}; setp.lt.u32 %p1, %l, 9;
    mov.u32 %r2, 0x77777777; xor.b32 %r3, %t, 21; mad.lo.u32 %r3, %r3, {size}, %r0;
    """ + "\n".join(f"st.shared.b32 [%r1+{4 * i}], %r2;" for i in range(words)) + f"""
    bar.sync 0; cp.async.{how} [%r1], [%i0], {size}{last}; {wait} bar.sync 0;
    ld.shared{vector}.b32 {held}, [%r3]; st.global{vector}.b32 [%o0], {held};"""
    return special(name, body, [poison("i32", words * BLOCK)],
                   [data("i32", name, words * BLOCK)], BLOCK)


def hints() -> Iterator[Form]:
    """What changes no value: prefetches, policies, fences, sleeps."""
    body = """prefetch.global.L2 [%i0]; prefetch.global.L1 [%i0]; prefetchu.L1 [%i0];
    createpolicy.fractional.L2::evict_last.b64 %w1, 1.0;
    ld.global.L2::cache_hint.b32 %r1, [%i0], %w1; membar.gl; fence.acq_rel.gpu; fence.sc.cta;
    membar.cta; nanosleep.u32 20; st.global.L2::cache_hint.b32 [%o0], %r1, %w1;"""
    yield special("hints and fences", body, [poison("i32", BLOCK)], [data("i32", "hints")], BLOCK)


def forms() -> Iterator[Form]:
    for part in (loads, stores, spaces, atomics, copies, hints):
        yield from part()
