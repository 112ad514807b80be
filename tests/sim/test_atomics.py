"""atom and red of every operation and type, with lanes that collide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim

Array = np.ndarray[Any, Any]
ONE = (1, 1, 1)
SIZE = {"u32": 4, "s32": 4, "b32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "u64": 8, "s64": 8,
        "b64": 8, "f64": 8, "f16": 2, "bf16": 2, "b16": 2}  # fmt: skip


def run(form: str, memory: Array, values: Array, index: Array, seed: int | None = None,
        compare: Array | None = None, shared: bool = False) -> Array:  # fmt: skip
    """Thread t applies `form` to memory[index[t]] with values[t]; the old values."""
    ty = form.split(".")[-1]
    size = SIZE[ty]
    old = np.zeros(len(values), f"u{size}")
    reg = {2: "%h", 4: "%r", 8: "%rd"}[size]
    load = f"ld.global.b{8 * size}"
    operands = f"{reg}11, {reg}12" if compare is not None else f"{reg}12"
    dest = "" if form.startswith("red") else f"{reg}13, "
    body = f"""
        ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; ld.param.u64 %rd3, [p3];
        ld.param.u64 %rd4, [p4]; mov.b{8 * size} {reg}13, 0;
        mad.wide.u32 %rd2, %t, {size}, %rd2; {load} {reg}12, [%rd2];
        mad.wide.u32 %rd4, %t, {size}, %rd4; {load} {reg}11, [%rd4];
        mad.wide.u32 %rd3, %t, 4, %rd3; ld.global.u32 %r1, [%rd3];
        mad.wide.u32 %rd1, %r1, {size}, %rd1;
        {form} {dest}[%rd1], {operands};
        ld.param.u64 %rd5, [p0]; mad.wide.u32 %rd5, %t, {size}, %rd5;
        st.global.b{8 * size} [%rd5], {reg}13;"""
    text = program(body, "u64 u64 u64 u64 u64", len(values))
    other = values if compare is None else compare
    sim.run(text, "k", [old, memory, values, index, other], ONE, seed=seed)
    return old


INDEX = np.random.default_rng(0).integers(0, 8, 64).astype(np.uint32)
RNG = np.random.default_rng(1)


def wrap_inc(x: int, v: int) -> int:
    return 0 if x >= v else x + 1


def wrap_dec(x: int, v: int) -> int:
    return v if x == 0 or x > v else x - 1


OPS: list[tuple[str, str, Any, Callable[[Any, Any], Any]]] = [
    ("add", "u32", np.uint32, lambda x, v: (x + v) & 0xFFFFFFFF),
    ("add", "s32", np.int32, lambda x, v: (x + v + 2**31) % 2**32 - 2**31),
    ("add", "u64", np.uint64, lambda x, v: (x + v) % 2**64),
    ("min", "s32", np.int32, min), ("max", "s32", np.int32, max), ("min", "u32", np.uint32, min),
    ("max", "u64", np.uint64, max), ("min", "s64", np.int64, min),
    ("and", "b32", np.uint32, lambda x, v: x & v), ("or", "b64", np.uint64, lambda x, v: x | v),
    ("xor", "b32", np.uint32, lambda x, v: x ^ v), ("exch", "b32", np.uint32, lambda x, v: v),
    ("exch", "b64", np.uint64, lambda x, v: v),
    ("inc", "u32", np.uint32, wrap_inc), ("dec", "u32", np.uint32, wrap_dec),
]  # fmt: skip


@pytest.mark.parametrize(("op", "ty", "kind", "reference"), OPS, ids=lambda v: str(v)[:12])
def test_integers(op: str, ty: str, kind: Any, reference: Callable[[Any, Any], Any]) -> None:
    info = np.iinfo(kind)
    memory = RNG.integers(info.min, info.max, 8, kind)
    values = RNG.integers(info.min, info.max, 64, kind)
    if op in ("inc", "dec"):
        memory, values = (RNG.integers(0, 9, n).astype(kind) for n in (8, 64))
    want = [int(x) for x in memory]
    before = []
    for v, i in zip(values.tolist(), INDEX.tolist()):
        before.append(want[i])
        want[i] = reference(want[i], v)
    old = run(f"atom.relaxed.gpu.global.{op}.{ty}", memory, values, INDEX)
    assert memory.tolist() == want
    assert old.view(kind).tolist() == before


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize(("ty", "kind"), [
    ("f32", np.float32), ("f64", np.float64), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16),
])  # fmt: skip
def test_float_add(ty: str, kind: Any, seed: int | None) -> None:
    memory = np.zeros(8, kind)
    values = RNG.integers(-8, 8, 64).astype(np.float64).astype(kind)
    noftz = ".noftz" if ty in ("f16", "bf16") else ""
    run(f"red.global.add{noftz}.{ty}", memory, values, INDEX, seed)
    want = np.zeros(8)
    np.add.at(want, INDEX, values.astype(np.float64))
    assert np.array_equal(memory.astype(np.float64), want)


def test_float_add_rounds_each_step_and_flushes() -> None:
    memory = np.array([2.0**24] * 8, np.float32)
    run("atom.global.add.f32", memory, np.ones(64, np.float32), np.zeros(64, np.uint32))
    assert memory[0] == 2.0**24
    memory = np.zeros(8, np.float32)
    run("red.global.add.f32", memory, np.full(64, 1e-40, np.float32), INDEX)
    assert not memory.any()


def test_shared_float_add_keeps_subnormals() -> None:
    """Through a generic address too: what counts is where it points."""
    text = program(
        "mov.u32 %r2, s; st.shared.b32 [%r2], 0; bar.sync 0; cvt.u64.u32 %rd1, %r2;"
        "cvta.shared.u64 %rd2, %rd1; mov.b32 %r3, 3; red.shared.add.f32 [%r2], %r3;"
        "atom.add.f32 %r4, [%rd2], %r3; bar.sync 0; ld.shared.b32 %r1, [%r2];"
        "st.global.u32 [%o], %r1;", "u64", 64, ".shared .b32 s;")  # fmt: skip
    out = np.zeros(64, np.uint32)
    sim.run(text, "k", [out], ONE)
    assert (out == 3 * 128).all()


def test_packed() -> None:
    for ty, kind in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        memory = np.zeros(16, kind)
        values = RNG.integers(-4, 4, 128).astype(np.float32).astype(kind)
        run(f"atom.global.add.noftz.{ty}", memory.view(np.uint32), values.view(np.uint32), INDEX)
        want = np.zeros((8, 2))
        np.add.at(want, INDEX, values.astype(np.float64).reshape(64, 2))
        assert np.array_equal(memory.astype(np.float64).reshape(8, 2), want)


def test_float_min_max() -> None:
    memory = np.array([np.nan] * 4 + [0.0] * 4, np.float16)
    values = RNG.standard_normal(128).astype(np.float16)
    run("atom.global.max.noftz.f16x2", memory.view(np.uint32), values.view(np.uint32), INDEX % 4)
    want = np.full((4, 2), np.nan, np.float16)
    want[2:] = 0
    for i, v in zip(INDEX % 4, values.reshape(64, 2)):
        want[i] = np.fmax(want[i], v)
    assert np.array_equal(memory.reshape(4, 2), want)


@pytest.mark.parametrize(("ty", "kind"), [
    ("b32", np.uint32), ("b64", np.uint64), ("b16", np.uint16),
])  # fmt: skip
def test_compare_and_swap(ty: str, kind: Any) -> None:
    memory = np.arange(8).astype(kind)
    compare = RNG.integers(0, 8, 64).astype(kind)
    values = RNG.integers(0, 8, 64).astype(kind)
    want, before = memory.tolist(), []
    for c, v, i in zip(compare.tolist(), values.tolist(), INDEX.tolist()):
        before.append(want[i])
        if want[i] == c:
            want[i] = v
    old = run(f"atom.acq_rel.gpu.global.cas.{ty}", memory, values, INDEX, compare=compare)
    assert memory.tolist() == want and old.tolist() == before


def test_distinct_addresses_and_generic() -> None:
    memory = np.arange(64, dtype=np.int32)
    values = RNG.integers(0, 9, 64).astype(np.int32)
    old = run("atom.add.s32", memory, values, np.arange(64, dtype=np.uint32))
    assert np.array_equal(old, np.arange(64))
    assert np.array_equal(memory, np.arange(64) + values)


def test_shared_counter_under_seeds() -> None:
    """Every thread takes a ticket: a permutation, in another order under another seed."""
    text = program(
        "mov.u32 %r2, s; setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r2], 0; bar.sync 0;"
        "atom.shared.add.u32 %r1, [%r2], 1; st.global.u32 [%o], %r1;",
        "u64", 128, ".shared .b32 s;")  # fmt: skip
    orders = []
    for seed in (None, 1, 2):
        out = np.zeros(128, np.uint32)
        sim.run(text, "k", [out], ONE, seed=seed)
        assert np.array_equal(np.sort(out), np.arange(128))
        orders.append(out.tolist())
    assert orders[0] == list(range(128)) and orders[1] != orders[0] and orders[1] != orders[2]


def test_vector_reduction() -> None:
    memory = np.zeros(4 * 8, np.float32)
    text = program(
        "ld.param.u64 %rd1, [p0]; and.b32 %r5, %t, 7; mad.wide.u32 %rd1, %r5, 16, %rd1;"
        "cvt.rn.f32.u32 %r1, %t; mov.b32 %r2, 0f3F800000; mov.b32 %r3, 0f40000000;"
        "red.global.add.v4.f32 [%rd1], {%r1, %r2, %r2, %r3};", "u64")  # fmt: skip
    sim.run(text, "k", [memory], ONE)
    t = np.arange(64)
    want = np.stack([[t[t % 8 == i].sum(), 8, 8, 16] for i in range(8)]).astype(np.float32)
    assert np.array_equal(memory.reshape(8, 4), want)


def test_bounds() -> None:
    with pytest.raises(sim.SimError, match="past the end of argument 1"):
        run("atom.global.add.u32", np.zeros(4, np.uint32), np.ones(64, np.uint32), INDEX)
