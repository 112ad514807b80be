"""Forms of cvt: every pair of types, rounding, saturation, and the packed and 8-bit formats."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.sim.forms.arithmetic import op
from tests.sim.forms.base import Form, Match, any_nan, kind_of, lanes

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")


def between_integers() -> Iterator[Form]:
    for source in INTEGERS:
        for to in INTEGERS:
            if source != to:
                yield op(f"cvt.{to}.{source}", kind_of(source), kind_of(to))
    for source, to in (("s32", "s16"), ("s32", "u16"), ("u32", "s16"), ("s64", "s32"),
                       ("s64", "u32"), ("u64", "s32"), ("s32", "u32"), ("u64", "u16")):
        yield op(f"cvt.sat.{to}.{source}", kind_of(source), kind_of(to))
    for source, narrow in (("s32", "s8"), ("s32", "u8"), ("u64", "u8"), ("u16", "s8")):
        for sat in ("", ".sat"):
            wide = f"{narrow[0]}32"
            yield lanes(f"cvt{sat}.{narrow}.{source}", f"cvt{sat}.{narrow}.{source} %d, %a;"
                        f"cvt.{wide}.{narrow} %d, %d;", kind_of(source), "i32")
    for narrow in ("s16", "u16"):
        yield op(f"cvt.pack.sat.{narrow}.s32", "i32 i32", "i32")
    for narrow in ("s8", "u8", "s4", "u4", "s2", "u2"):
        yield op(f"cvt.pack.sat.{narrow}.s32.b32", "i32 i32 i32", "i32")


def to_integers() -> Iterator[Form]:
    for mode in ("rni", "rzi", "rmi", "rpi"):
        for to in INTEGERS:
            for source in ("f16", "f32", "f64"):
                if mode == "rzi" or to in ("s32", "u64"):
                    yield op(f"cvt.{mode}.{to}.{source}", f"{source}c", kind_of(to))
    yield op("cvt.rzi.ftz.s32.f32", "f32", "i32")
    yield op("cvt.rpi.ftz.s32.f32", "f32", "i32")
    yield op("cvt.rni.s32.bf16", "bf16", "i32")
    yield lanes("cvt.rzi.s8.f32", "cvt.rzi.s8.f32 %d, %a; cvt.s32.s8 %d, %d;", "f32c", "i32")
    yield lanes("cvt.rzi.u8.f32", "cvt.rzi.u8.f32 %d, %a; cvt.u32.u8 %d, %d;", "f32c", "i32")


def from_integers() -> Iterator[Form]:
    for mode in ("rn", "rz", "rm", "rp"):
        for to in ("f16", "f32", "f64"):
            for source in INTEGERS:
                if mode == "rn" or source in ("s32", "u64"):
                    yield op(f"cvt.{mode}.{to}.{source}", kind_of(source), to)
    yield op("cvt.rn.bf16.s32", "i32", "bf16")
    yield op("cvt.rn.bf16.u64", "i64", "bf16")
    yield op("cvt.rn.sat.f32.s32", "i32", "f32")


def between_floats() -> Iterator[Form]:
    for source, to in (("f16", "f32"), ("f16", "f64"), ("f32", "f64")):
        yield op(f"cvt.{to}.{source}", source, to)
    yield op("cvt.f32.bf16", "bf16", "f32", match=any_nan("f32"))
    yield op("cvt.ftz.f64.f32", "f32", "f64")
    for mode in ("rn", "rz", "rm", "rp"):
        yield op(f"cvt.{mode}.f32.f64", "f64", "f32", match=any_nan("f32"))
        yield op(f"cvt.{mode}.f16.f32", "f32", "f16")
        yield op(f"cvt.{mode}.f16.f64", "f64", "f16", match=any_nan("f16"))
    for mode in ("rn", "rz"):
        for to in ("f16", "bf16"):
            yield op(f"cvt.{mode}.relu.{to}.f32", "f32", to)
            yield op(f"cvt.{mode}.{to}x2.f32", "f32 f32", f"{to}x2")
            yield op(f"cvt.{mode}.relu.{to}x2.f32", "f32 f32", f"{to}x2")
        yield op(f"cvt.{mode}.bf16.f32", "f32", "bf16")
        yield op(f"cvt.{mode}.tf32.f32", "f32", "f32")
        yield op(f"cvt.{mode}.relu.tf32.f32", "f32", "f32")
    # An H200 rounds the bits of NaNs too: 0x7f800001 becomes infinity.
    numbers = Match(defined=lambda inputs: ~np.isnan(inputs[0].view(np.float32)))
    yield op("cvt.rna.tf32.f32", "f32", "f32", match=numbers)
    yield op("cvt.rn.ftz.f16.f32", "f32", "f16")
    yield op("cvt.rn.ftz.f32.f64", "f64", "f32", match=any_nan("f32"))
    yield op("cvt.rn.sat.f16.f32", "f32", "f16")
    yield op("cvt.rn.sat.f32.f64", "f64", "f32")
    yield op("cvt.sat.f32.f32", "f32", "f32")
    yield op("cvt.ftz.sat.f32.f32", "f32", "f32")
    yield op("cvt.rn.bf16.f16", "f16", "bf16")
    for mode in ("rni", "rzi", "rmi", "rpi"):
        yield op(f"cvt.{mode}.f32.f32", "f32c", "f32")
        yield op(f"cvt.{mode}.f64.f64", "f64c", "f64")
        yield op(f"cvt.{mode}.f16.f16", "f16c", "f16")
    yield op("cvt.rni.ftz.f32.f32", "f32", "f32")
    yield op("cvt.rpi.sat.f32.f32", "f32c", "f32")


def eight_bits() -> Iterator[Form]:
    for fmt in ("e4m3", "e5m2"):
        for relu in ("", ".relu"):
            yield op(f"cvt.rn.satfinite{relu}.{fmt}x2.f32", "f32 f32", f"{fmt}x2")
            yield op(f"cvt.rn.satfinite{relu}.{fmt}x2.f16x2", "f16x2", f"{fmt}x2")
            yield op(f"cvt.rn{relu}.f16x2.{fmt}x2", f"{fmt}x2", "f16x2")


def forms() -> Iterator[Form]:
    for part in (between_integers, to_integers, from_integers, between_floats, eight_bits):
        yield from part()
