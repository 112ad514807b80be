"""Forms that each lane executes by itself: integers, bits, floats, comparisons, selections."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.sim.forms.base import Form, Match, any_nan, kind_of, lanes

INTEGER = "u16 s16 u32 s32 u64 s64"
FIELD = Match(defined=lambda inputs: (inputs[-2] < 256) & (inputs[-1] < 256))
"""Of positions and lengths the ISA takes the low 8 bits; nvJitLink's code for the 64-bit forms,
which the hardware does not have, takes all."""


def same(mnemonics: str, types: str, count: int, tail: str = "") -> Iterator[Form]:
    """Every mnemonic with every type, sources and result of that type."""
    for mnemonic in mnemonics.split():
        for ty in types.split():
            yield op(f"{mnemonic}.{ty}", " ".join([kind_of(ty)] * count), kind_of(ty), tail)


def op(mnemonic: str, ins: str, outs: str, tail: str = "", match: Match | None = None,
       name: str = "") -> Form:
    """`mnemonic %d, %a, ...`; a second result is written %d|%q."""
    sources = ", ".join(f"%{n}" for n in "abce"[: len(ins.split())])
    results = "%d|%q" if len(outs.split()) == 2 else "%d"
    return lanes(name or mnemonic, f"{mnemonic} {results}, {sources}{tail};", ins, outs, match)


def integer() -> Iterator[Form]:
    yield from same("add sub mul.lo mul.hi min max div rem", INTEGER, 2)
    yield from same("add.sat sub.sat", "s32", 2)
    yield from same("add min max", "u16x2 s16x2", 2)
    yield from same("min.relu max.relu", "s32 s16x2", 2)
    yield from same("mad.lo mad.hi", INTEGER, 3)
    yield from same("mad.hi.sat", "s32", 3)
    yield from same("sad", INTEGER, 3)
    yield from same("abs neg", "s16 s32 s64", 1)
    yield from same("mul24.lo mul24.hi", "u32 s32", 2)
    yield from same("mad24.lo mad24.hi", "u32 s32", 3)
    yield from same("mad24.hi.sat", "s32", 3)
    for narrow, wide in (("16", "32"), ("32", "64")):
        for sign in "us":
            yield op(f"mul.wide.{sign}{narrow}", f"i{narrow} i{narrow}", f"i{wide}")
            yield op(f"mad.wide.{sign}{narrow}", f"i{narrow} i{narrow} i{wide}", f"i{wide}")
    for signs in ("u32.u32", "u32.s32", "s32.u32", "s32.s32"):
        for mnemonic in ("dp4a", "dp2a.lo", "dp2a.hi"):
            yield op(f"{mnemonic}.{signs}", "i32 i32 i32", "i32")
    for bits in ("32", "64"):
        for chain in ("add sub".split()):
            yield lanes(f"{chain}c.cc.u{bits}", f"{chain}.cc.u{bits} %d, %a, %b;"
                        f"{chain}c.cc.u{bits} %d, %c, %e; {chain}c.u{bits} %q, 0, 0;",
                        " ".join([f"i{bits}"] * 4), f"i{bits} i{bits}")
        yield lanes(f"madc.hi.cc.u{bits}", f"mad.lo.cc.u{bits} %d, %a, %b, %c;"
                    f"madc.hi.cc.u{bits} %q, %a, %b, %e; addc.u{bits} %q, %q, 0;",
                    " ".join([f"i{bits}"] * 4), f"i{bits} i{bits}")


def bits() -> Iterator[Form]:
    yield from same("and or xor", "b16 b32 b64 pred", 2)
    yield from same("not", "b16 b32 b64 pred", 1)
    yield from same("cnot", "b16 b32 b64", 1)
    yield from same("brev", "b32 b64", 1)
    for ty in ("b32", "b64"):
        yield op(f"popc.{ty}", kind_of(ty), "i32")
        yield op(f"clz.{ty}", kind_of(ty), "i32")
    for ty in ("u32", "s32", "u64", "s64"):
        kind = kind_of(ty)
        yield op(f"bfind.{ty}", kind, "i32")
        yield op(f"bfind.shiftamt.{ty}", kind, "i32")
        yield op(f"bfe.{ty}", f"{kind} count count", kind, match=FIELD if "64" in ty else None)
    for ty in ("b16", "b32", "b64"):
        yield op(f"shl.{ty}", f"{kind_of(ty)} count", kind_of(ty))
    for ty in ("u16", "s16", "u32", "s32", "u64", "s64"):
        yield op(f"shr.{ty}", f"{kind_of(ty)} count", kind_of(ty))
    for ty in ("b32", "b64"):
        yield op(f"bfi.{ty}", f"{kind_of(ty)} {kind_of(ty)} count count", kind_of(ty),
                 match=FIELD if ty == "b64" else None)
    for way in ("l.clamp", "l.wrap", "r.clamp", "r.wrap"):
        yield op(f"shf.{way}.b32", "i32 i32 count", "i32")
    for way in ("clamp", "wrap"):
        yield op(f"bmsk.{way}.b32", "count count", "i32")
        yield op(f"szext.{way}.u32", "i32 count", "i32")
        yield op(f"szext.{way}.s32", "i32 count", "i32")
    yield lanes("fns.b32", "and.b32 %b, %b, 31; bfe.s32 %c, %c, 0, 4; fns.b32 %d, %a, %b, %c;",
                "i32 i32 i32", "i32")
    for table in (0x96, 0xE8, 0x1B, 0xCA):
        yield op("lop3.b32", "i32 i32 i32", "i32", f", {table:#x}", name=f"lop3.b32 {table:#x}")
    for way in ("or", "and"):
        yield lanes(f"lop3.{way}.b32", f"lop3.{way}.b32 %d|%q, %a, %b, %c, 0x80, %e;",
                    "i32 i32 i32 pred", "i32 pred")
    yield op("prmt.b32", "i32 i32 i32", "i32")
    yield op("prmt.b32", "i32 i32", "i32", ", 0x9d72", name="prmt.b32 0x9d72")
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield op(f"prmt.b32.{mode}", "i32 i32 i32", "i32")


def floating() -> Iterator[Form]:
    for mode in ("rn", "rz", "rm", "rp"):
        yield from same(f"add.{mode} sub.{mode} mul.{mode} div.{mode}", "f32 f64", 2)
        yield from same(f"fma.{mode}", "f32 f64", 3)
        yield from same(f"rcp.{mode} sqrt.{mode}", "f32 f64", 1)
    yield from same("add.ftz sub.ftz mul.ftz add.sat add.ftz.sat mul.sat mul.rz.ftz", "f32", 2)
    yield from same("fma.rn.ftz fma.rn.sat fma.rn.ftz.sat fma.rm.ftz", "f32", 3)
    for ty in ("f32", "f16"):  # products that would round up to the smallest normal
        yield op(f"mul.ftz.{ty}", f"{ty}tiny {ty}unit", ty, name=f"mul.ftz.{ty} near the normals")
    yield from same("div.rn.ftz", "f32", 2)
    yield from same("rcp.rn.ftz sqrt.rn.ftz", "f32", 1)
    yield from same("add sub mul", "f16 f16x2 bf16 bf16x2", 2)
    yield from same("add.ftz.sat sub.ftz mul.ftz mul.sat add.sat", "f16 f16x2", 2)
    yield from same("fma.rn fma.rn.relu", "f16 f16x2 bf16 bf16x2", 3)
    yield from same("fma.rn.ftz fma.rn.sat fma.rn.ftz.relu", "f16 f16x2", 3)
    for form, types in (("abs neg", "f16 f16x2 bf16 bf16x2 f32 f64"),
                        ("abs.ftz neg.ftz", "f32 f16 f16x2")):
        for name, ty in itertools.product(form.split(), types.split()):
            yield op(f"{name}.{ty}", ty, ty, match=any_nan(ty))
    yield from same("min max", "f16 f16x2 bf16 bf16x2 f32 f64", 2)
    yield from same("min.NaN max.NaN min.xorsign.abs max.NaN.xorsign.abs",
                    "f16 f16x2 bf16 bf16x2 f32", 2)
    yield from same("min.ftz max.ftz min.ftz.NaN", "f32 f16 f16x2", 2)
    yield from same("copysign", "f32 f64", 2)
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        yield op(f"testp.{test}.f32", "f32", "pred")
        yield op(f"testp.{test}.f64", "f64", "pred")


def approximate() -> Iterator[Form]:
    """To the errors that the PTX ISA states for each instruction."""
    yield op("div.approx.f32", "f32 f32", "f32", match=Match("f32", ulp=2))
    yield op("div.approx.ftz.f32", "f32 f32", "f32", match=Match("f32", ulp=2))
    yield op("div.full.f32", "f32 f32", "f32", match=Match("f32", ulp=2))
    yield op("div.full.ftz.f32", "f32 f32", "f32", match=Match("f32", ulp=2))
    yield op("rcp.approx.f32", "f32", "f32", match=Match("f32", ulp=1))
    yield op("rcp.approx.ftz.f32", "f32", "f32", match=Match("f32", ulp=1))
    yield op("rcp.approx.ftz.f64", "f64", "f64", match=Match("f64", relative=2.0**-19))
    yield op("rsqrt.approx.ftz.f64", "f64", "f64", match=Match("f64", relative=2.0**-19))
    root = Match("f32", relative=2.0**-22.9, ulp=1)
    yield op("sqrt.approx.f32", "f32", "f32", match=root)
    yield op("sqrt.approx.ftz.f32", "f32", "f32", match=root)
    yield op("rsqrt.approx.f32", "f32", "f32", match=root)
    yield op("rsqrt.approx.ftz.f32", "f32", "f32", match=root)
    yield op("rsqrt.approx.f64", "f64", "f64", match=Match("f64", relative=2.0**-50))
    for ftz in ("", ".ftz"):
        yield op(f"ex2.approx{ftz}.f32", "f32", "f32", match=Match("f32", ulp=2))
        yield op(f"lg2.approx{ftz}.f32", "f32", "f32",
                 match=Match("f32", absolute=2.0**-22, relative=2.0**-22))
        for name in ("sin", "cos"):
            yield op(f"{name}.approx{ftz}.f32", "angle", "f32",
                     match=Match("f32", absolute=2.0**-14.7))
    yield op("tanh.approx.f32", "f32", "f32", match=Match("f32", relative=2.0**-11))
    for ty, packed in (("f16", "f16x2"), ("bf16", "bf16x2")):
        ftz = ".ftz" if ty == "bf16" else ""
        # below the normals, where the bound of the ISA cannot be kept, one unit
        error = Match(ty, ulp=1, relative=2.0**-9.9 if ty == "f16" else 2.0**-7)
        flat = Match(ty, absolute=2.0**-10.987 if ty == "f16" else 2.0**-8)
        for name in (ty, packed):
            yield op(f"ex2.approx{ftz}.{name}", name, name, match=error)
            yield op(f"tanh.approx.{name}", name, name, match=flat)


ORDERED = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan"


def comparisons() -> Iterator[Form]:
    for compare in ORDERED.split():
        for ty in ("f32", "f64", "f16", "bf16"):
            yield op(f"setp.{compare}.{ty}", f"{ty} {ty}", "pred")
    for compare in ("eq", "ne", "lt", "le", "gt", "ge"):
        for ty in INTEGER.split():
            yield op(f"setp.{compare}.{ty}", f"{kind_of(ty)} {kind_of(ty)}", "pred")
    for compare in ("lo", "ls", "hi", "hs"):
        yield op(f"setp.{compare}.u32", "i32 i32", "pred")
    for ty in ("b16", "b32", "b64"):
        yield op(f"setp.ne.{ty}", f"{kind_of(ty)} {kind_of(ty)}", "pred")
    yield op("setp.lt.ftz.f32", "f32 f32", "pred")
    yield op("setp.lt.ftz.f16", "f16 f16", "pred")
    for way in ("and", "or", "xor"):
        yield op(f"setp.gt.{way}.s32", "i32 i32 pred", "pred pred")
        yield op(f"setp.leu.{way}.f32", "f32 f32 pred", "pred pred")
    yield lanes("setp.le.and.s64 negated", "setp.le.and.s64 %d|%q, %a, %b, !%c;", "i64 i64 pred",
                "pred pred")
    for ty in ("f16x2", "bf16x2"):
        yield op(f"setp.lt.{ty}", f"{ty} {ty}", "pred pred")
        yield op(f"setp.geu.or.{ty}", f"{ty} {ty} pred", "pred pred")
        yield op(f"set.le.{ty}.{ty}", f"{ty} {ty}", ty)
    for dtype in ("u32", "s32", "f32"):
        for stype in ("u16", "s32", "s64", "f32", "f64"):
            kind = kind_of(stype)
            yield op(f"set.lt.{dtype}.{stype}", f"{kind} {kind}", kind_of(dtype))
    yield op("set.ge.f16.f16", "f16 f16", "f16")
    yield op("set.ne.and.u32.f32", "f32 f32 pred", "i32")
    yield op("set.gtu.xor.f32.s32".replace("gtu", "gt"), "i32 i32 pred", "f32")
    for ty in ("b16", "b32", "b64", "f32", "f64"):
        yield op(f"selp.{ty}", f"{kind_of(ty)} {kind_of(ty)} pred", kind_of(ty))
    for ty in ("b16", "u32", "s64", "f32", "f64"):
        yield op(f"slct.{ty}.s32", f"{kind_of(ty)} {kind_of(ty)} i32", kind_of(ty))
        yield op(f"slct.{ty}.f32", f"{kind_of(ty)} {kind_of(ty)} f32", kind_of(ty))
    yield op("slct.ftz.s32.f32", "i32 i32 f32", "i32")


def moves() -> Iterator[Form]:
    for ty in ("b16", "b32", "b64", "pred"):
        yield op(f"mov.{ty}", kind_of(ty), kind_of(ty))
    yield lanes("mov.b32 pack", "mov.b32 %d, {%a, %b};", "i16 i16", "i32")
    yield lanes("mov.b64 pack", "mov.b64 %d, {%a, %b};", "i32 i32", "i64")
    yield lanes("mov.b64 pack 4", "mov.b64 %d, {%a, %b, %c, %e};", "i16 i16 i16 i16", "i64")
    yield lanes("mov.b32 unpack", "mov.b32 {%d, %q}, %a;", "i32", "i16 i16")
    yield lanes("mov.b64 unpack", "mov.b64 {%d, %q}, %a;", "i64", "i32 i32")
    yield lanes("mov.b64 unpack half", "mov.b64 {_, %d}, %a;", "i64", "i32")


def forms() -> Iterator[Form]:
    for part in (integer, bits, floating, approximate, comparisons, moves):
        yield from part()
