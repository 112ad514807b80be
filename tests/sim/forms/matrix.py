"""Forms of ldmatrix, stmatrix and mma.sync."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from tests.sim.forms.base import BITS, Array, Form, Match, poison, seed_of, special, values

KINDS = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
    "f64": np.float64, "s8": np.int8, "u8": np.uint8, "s32": np.int32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}
BYTES = ".shared .align 128 .b8 tiles[2048]; mov.u32 %r0, tiles;"


def registers(count: int, first: int, wide: bool = False) -> str:
    return "{" + ", ".join(f"%{'w' if wide else 'r'}{first + i}" for i in range(count)) + "}"


def moves() -> Iterator[Form]:
    """Rows lie 48 bytes apart and in an order of their own."""
    rows = "mul.lo.u32 %r1, %l, 13; and.b32 %r1, %r1, 31; mad.lo.u32 %r1, %r1, 48, %r0;"
    fill = """.reg .b32 %at, %word; mov.b32 %at, 0; FILL: add.u32 %r3, %at, %l;
        shl.b32 %r4, %r3, 2; cvt.u64.u32 %w1, %r4; add.u64 %w1, %w1, %I0;
        ld.global.b32 %word, [%w1]; add.u32 %r4, %r4, %r0; st.shared.b32 [%r4], %word;
        add.u32 %at, %at, 32; setp.lt.u32 %p1, %at, 512; @%p1 bra FILL; bar.sync 0;"""
    dump = """mov.b32 %at, 0; bar.sync 0; DUMP: add.u32 %r3, %at, %l; shl.b32 %r4, %r3, 2;
        cvt.u64.u32 %w1, %r4; add.u64 %w1, %w1, %O0; add.u32 %r4, %r4, %r0;
        ld.shared.b32 %word, [%r4]; st.global.b32 [%w1], %word; add.u32 %at, %at, 32;
        setp.lt.u32 %p1, %at, 512; @%p1 bra DUMP;"""
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            held = [f"st.global.b32 [%o0+{4 * i}], %r{20 + i};" for i in range(count)]
            yield special(name, f"{BYTES} {fill} {rows} {name} {registers(count, 20)}, [%r1];"
                          + "".join(held), [poison("i32", 32 * count)],
                          [values("i32", seed_of(name), 512)])
            name = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            held = [f"ld.global.b32 %r{20 + i}, [%i1+{4 * i}];" for i in range(count)]
            yield special(name, f"{BYTES} {fill} {rows} {''.join(held)}"
                          f"{name} [%r1], {registers(count, 20)}; {dump}", [poison("i32", 512)],
                          [values("i32", seed_of(name), 512),
                           values("i32", seed_of(name, 1), 32 * count)])


EIGHT = ("e4m3", "e5m2")
FORMS = [  # m, k, d, a, b
    *[(16, k, d, "f16", "f16") for k in (8, 16) for d in ("f32", "f16")],
    *[(16, k, "f32", "bf16", "bf16") for k in (8, 16)],
    *[(16, k, "f32", "tf32", "tf32") for k in (4, 8)],
    *[(16, k, "s32", a, b) for k in (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")],
    *[(16, 32, d, a, b) for d in ("f32", "f16") for a in EIGHT for b in EIGHT],
    *[(16, 16, "f32", a, a) for a in EIGHT],
    (8, 4, "f64", "f64", "f64"),
]


def products() -> Iterator[Form]:
    for m, k, d, a, b in FORMS:
        yield mma(m, k, d, a, b, "whole", BITS)
        if d == "s32":
            yield mma(m, k, d, a, b, "whole", BITS, ".satfinite")
            continue
        # The units add in an order and a width of their own: of positive terms, to this error.
        error = {"f16": 2.0**-9, "f64": 2.0**-50}.get(d, 2.0**-13 if a[0] == "e" else 2.0**-20)
        yield mma(m, k, d, a, b, "positive", Match(d, relative=error))
    for a in ("f16", "bf16", "tf32"):
        yield mma(16, 8, "f32", a, a, "special", Match("f32"))
    yield mma(16, 16, "f16", "f16", "f16", "special", Match("f16"))
    yield mma(16, 8, "f32", "tf32", "tf32", "low bits set", BITS)


def mma(m: int, k: int, d: str, a: str, b: str, way: str, match: Match, sat: str = "") -> Form:
    """One product of a warp; each thread's registers come from memory as they are."""
    name = f"mma.sync.aligned.m{m}n8k{k}.row.col{sat}.{d}.{a}.{b}.{d}"
    wide = d == "f64"
    word = 8 if wide else 4
    sizes = [(np.dtype(KINDS[ty]).itemsize, elements)
             for ty, elements in ((d, 8 * m), (a, m * k), (b, 8 * k), (d, 8 * m))]
    counts = [size * elements // (32 * word) for size, elements in sizes]
    firsts = [20, 30, 40, 50]
    rng = np.random.default_rng(seed_of(name, way))
    inputs = [operand(ty, way, size[1], rng) for ty, size in zip((a, b, d), sizes[1:], strict=True)]
    prefix, ty = ("w", "b64") if wide else ("r", "b32")
    lines = [f"ld.global.{ty} %{prefix}{first + j}, [%i{i}+{word * j}];"
             for i, (count, first) in enumerate(zip(counts[1:], firsts[1:], strict=True))
             for j in range(count)]
    held = [registers(n, first, wide)
            for n, first in zip(counts, firsts, strict=True)]
    lines.append(f"{name} {', '.join(held)};")
    lines += [f"st.global.{ty} [%o0+{word * j}], %{prefix}{20 + j};" for j in range(counts[0])]
    out = poison("i64" if wide else "i32", 32 * counts[0])
    return special(f"{name} {way}", "\n".join(lines), [out], inputs, match=[match])


def operand(ty: str, way: str, count: int, rng: np.random.Generator) -> Array:
    """Whole numbers, whose products and sums are exact; or positive ones; or with infinities."""
    kind = np.dtype(KINDS[ty])
    if way == "small":
        chosen = rng.choice([0, 0, 0, 0, 0, 1, 1, 1 if ty == "u8" else -1], count)
        held = chosen.astype(np.float32).astype(kind)
    elif ty in ("s8", "u8", "s32"):
        info = np.iinfo(kind)
        held = rng.integers(info.min, info.max, count, np.int64, endpoint=True).astype(kind)
    elif way == "positive":
        held = rng.uniform(0.5, 2, count).astype(np.float32).astype(kind)
    else:
        held = rng.integers(-4, 5, count).astype(np.float32).astype(kind)
        if way == "special":
            chosen = rng.random(count) < 0.04
            limits = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32).astype(kind)
            held = np.where(chosen, rng.choice(limits, count), held)
        if way == "low bits set":
            held = (held.view(np.uint32) | rng.integers(0, 1 << 13, count, np.uint32)
                    ).view(np.float32) if ty == "tf32" else held
    return np.ascontiguousarray(held).view(np.uint8).view(np.uint64 if ty == "f64" else np.uint32)


def forms() -> Iterator[Form]:
    yield from moves()
    yield from products()
