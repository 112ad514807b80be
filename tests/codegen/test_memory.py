"""Loads, stores and atomics in the simulator: widths, masks, modifiers, copies, offsets."""

import re

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.codegen.kernels import (
    DTYPES,
    FLAT,
    TARGETS,
    blocked,
    compiled,
    launch,
    pointers,
    samples,
)
from tilec import knobs
from tilec.codegen.cubin import link
from tilec.target import Target

WIDE = blocked([16], [32], [2], [0])


def copy_body(dtype: str, n: int, layout: str, mask: str = "", other: str = "",
              load: str = "", store: str = "") -> str:
    kind = f"tensor<{n}x{dtype}, {layout}>"
    lines = [pointers("x", dtype, (n,), layout), pointers("o", dtype, (n,), layout)]
    args, stored = "%xp", "%op, %v"
    if mask:
        lines += [f"%ids = tile.arange() {{start = 0, end = {n}}} : tensor<{n}xi32, {layout}>",
                  f"%ns = tile.splat(%n) : tensor<{n}xi32, {layout}>",
                  f'%m = tile.cmp(%ids, %ns) {{predicate = "lt"}} : tensor<{n}xi1, {layout}>']
        args, stored = "%xp, %m", "%op, %v, %m"
    if other:
        lines.append(f"%e = tile.constant() {{value = {other}}} : {kind}")
        args, stored = "%xp, %m, %e", "%op, %v"
    lines += [f"%v = tile.load({args}) {load} : {kind}", f"tile.store({stored}) {store}"]
    return "\n".join(lines)


def accesses(ptx: str, what: str) -> list[str]:
    return re.findall(rf"({what}\.global[\w.:]*)", ptx)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1024, 1000, 96, 7])
def test_copies_every_type(dtype: str, n: int) -> None:
    params = f"%x: ptr<{dtype}> {{divisibility = 16}}, %o: ptr<{dtype}> {{divisibility = 16}}"
    body = copy_body(dtype, n, WIDE)
    x = samples(dtype, max(n, 32), 1)[:n].copy()
    out = np.zeros(n, DTYPES[dtype])
    launch(params, body, [x, out])
    np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8))
    _, _, ptx = compiled(params, body, 2, "sm_90a")
    if n == 1024:
        wide = {"ld.global.v4.b32", "ld.global.v2.b64"}
        assert set(accesses(ptx, "ld")) <= wide, ptx
        assert set(accesses(ptx, "st")) <= {w.replace("ld", "st") for w in wide}


@pytest.mark.parametrize(("dtype", "n"), [("f16", 516), ("i8", 1004), ("f32", 1001)])
def test_runs_that_are_promised_end_where_the_tile_does(dtype: str, n: int) -> None:
    """A hint about runs of 16 says nothing of memory behind a tile of another extent."""
    kind, promise = f"tensor<{n}xptr<{dtype}>, {WIDE}>", "contiguity = [16], divisibility = [16]"
    body = "\n".join([
        pointers("x", dtype, (n,), WIDE), pointers("o", dtype, (n,), WIDE),
        f"%a = tile.hint(%xp) {{{promise}}} : {kind}",
        f"%b = tile.hint(%op) {{{promise}}} : {kind}",
        f"%v = tile.load(%a) : tensor<{n}x{dtype}, {WIDE}>", "tile.store(%b, %v)"])
    x, out = samples(dtype, n, 4), samples(dtype, n + 32, 5)
    want = np.concatenate([x, out[n:]])
    launch(f"%x: ptr<{dtype}> {{divisibility = 16}}, %o: ptr<{dtype}> {{divisibility = 16}}", body,
           [x, out])
    np.testing.assert_array_equal(out.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "f64", "i1"])
@pytest.mark.parametrize("divisible", [1, 16])
@pytest.mark.parametrize("n", [0, 48, 500, 512])
def test_masks(dtype: str, divisible: int, n: int) -> None:
    if divisible == 16 and n % 16:
        n += 16 - n % 16
    params = (f"%x: ptr<{dtype}> {{divisibility = 16}}, %o: ptr<{dtype}> {{divisibility = 16}}, "
              f"%n: i32 {{divisibility = {divisible}}}")
    x = samples(dtype, 512, 2)
    out = np.ones(512, DTYPES[dtype])
    body = copy_body(dtype, 512, WIDE, mask="n")
    launch(params, body, [x[:n].copy() if n else x[:1], out, n])
    want = np.ones(512, DTYPES[dtype])
    want[:n] = x[:n]
    np.testing.assert_array_equal(out.view(np.uint8), want.view(np.uint8))
    _, _, ptx = compiled(params, body, 2, "sm_90a")
    assert all(("v4" in a or "v2" in a) == (divisible == 16) for a in accesses(ptx, "[ls][dt]"))


@pytest.mark.parametrize("dtype,other", [("f32", "-1.5"), ("bf16", "2.0"), ("i8", "-3"),
                                         ("f64", "0.1"), ("i1", "true"), ("f8e5m2", "1.5")])
@pytest.mark.parametrize("divisible", [1, 16])
def test_other_fills(dtype: str, other: str, divisible: int) -> None:
    params = (f"%x: ptr<{dtype}> {{divisibility = 16}}, %o: ptr<{dtype}> {{divisibility = 16}}, "
              f"%n: i32 {{divisibility = {divisible}}}")
    x, out = samples(dtype, 512, 3), np.zeros(512, DTYPES[dtype])
    launch(params, copy_body(dtype, 512, WIDE, "n", other), [x[:256].copy(), out, 256])
    fill = np.full(256, 1 if other == "true" else float(other)).astype(DTYPES[dtype])
    np.testing.assert_array_equal(out.view(np.uint8),
                                  np.concatenate([x[:256], fill]).view(np.uint8))


MODIFIERS = [
    ('{cache = ".ca"}', '{cache = ".wb"}', "ld.global.ca.v4.b32", "st.global.wb.v4.b32"),
    ('{cache = ".cg"}', '{cache = ".cs"}', "ld.global.cg.v4.b32", "st.global.cs.v4.b32"),
    ('{cache = ".cv"}', '{cache = ".wt"}', "ld.global.cv.v4.b32", "st.global.wt.v4.b32"),
    ('{eviction = "evict_first"}', '{eviction = "evict_last"}',
     "ld.global.L1::evict_first.L2::cache_hint.v4.b32",
     "st.global.L1::evict_last.L2::cache_hint.v4.b32"),
    ("{volatile = true}", '{eviction = "evict_normal"}', "ld.volatile.global.v4.b32",
     "st.global.v4.b32"),
]


@pytest.mark.parametrize("load,store,want_load,want_store", MODIFIERS)
@pytest.mark.parametrize("mask", ["", "n"])
def test_modifiers(load: str, store: str, want_load: str, want_store: str, mask: str) -> None:
    params = ("%x: ptr<f32> {divisibility = 16}, %o: ptr<f32> {divisibility = 16}, "
              "%n: i32 {divisibility = 16}")
    body = copy_body("f32", 512, WIDE, mask, "", load, store)
    x, out = samples("f32", 512, 4), np.zeros(512, np.float32)
    launch(params, body, [x, out, 512])
    np.testing.assert_array_equal(out.view(np.uint32), x.view(np.uint32))
    _, _, ptx = compiled(params, body, 2, "sm_90a")
    assert want_load in ptx and want_store in ptx


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["i8", "bf16", "f32", "f64"])
@pytest.mark.sample(5)
def test_ptxas_accepts_all_modifiers(dtype: str, target: str) -> None:
    lines, number = [], 0
    for load, store, _, _ in MODIFIERS:
        for mask in ("", "n"):
            number += 1
            body = copy_body(dtype, 64, blocked([1], [32], [2], [0]), mask, "", load, store)
            wide = copy_body(dtype, 512, WIDE, mask, "", load, store)
            lines += [re.sub(r"%(?!x\b|o\b|n\b)(\w+)", rf"%\1_{number}{k}", text)
                      for k, text in (("a", body), ("b", wide))]
    params = (f"%x: ptr<{dtype}> {{divisibility = 16}}, %o: ptr<{dtype}> {{divisibility = 16}}, "
              "%n: i32 {divisibility = 16}")
    llir, _, ptx = compiled(params, "\n".join(lines), 2, target)
    assert link(ptx, Target.parse(target), name=llir.name).cubin


def test_copies_are_stored_once() -> None:
    """A tile smaller than the CTA: threads that hold copies do not store."""
    body = copy_body("i32", 16, FLAT)
    _, _, ptx = compiled("%x: ptr<i32> {divisibility = 16}, %o: ptr<i32> {divisibility = 16}", body,
                         2, "sm_90a")
    assert re.search(r"@%p\d+ st\.global", ptx)


def test_offsets_wrap_in_their_own_width() -> None:
    """A 32-bit offset near its limits is sign-extended after the addition, not before."""
    kind = f"tensor<256xi32, {FLAT}>"
    body = "\n".join([
        f"%ids = tile.arange() {{start = 0, end = 256}} : {kind}",
        f"%s = tile.splat(%big) : {kind}", f"%a = tile.add(%ids, %s) : {kind}",
        f"%t = tile.splat(%low) : {kind}", f"%b = tile.sub(%a, %t) : {kind}",
        f"%ps = tile.splat(%x) : tensor<256xptr<i8>, {FLAT}>",
        f"%p = tile.addptr(%ps, %b) : tensor<256xptr<i8>, {FLAT}>",
        f"%v = tile.load(%p) : tensor<256xi8, {FLAT}>", pointers("o", "i8", (256,), FLAT),
        "tile.store(%op, %v)"])
    x, out = np.arange(256, dtype=np.int8), np.zeros(256, np.int8)
    # big + id wraps for most elements; subtracting brings it back.
    launch("%x: ptr<i8>, %o: ptr<i8>, %big: i32, %low: i32", body,
           [x, out, 2**31 - 5, 2**31 - 5])
    np.testing.assert_array_equal(out, x)


def test_scalars() -> None:
    body = "\n".join(["%v = tile.load(%x) : bf16", "%m = tile.load(%x, %f, %v) : bf16",
                      "%s = tile.add(%v, %m) : bf16", "tile.store(%o, %s)",
                      "tile.store(%o2, %s, %f)"])
    x = np.array([1.5], ml_dtypes.bfloat16)
    for flag in (0, 1):
        out, out2 = np.zeros(1, x.dtype), np.zeros(1, x.dtype)
        launch("%x: ptr<bf16>, %o: ptr<bf16>, %o2: ptr<bf16>, %f: i1", body, [x, out, out2, flag])
        assert out[0] == 3 and out2[0] == 3 * flag


# ---- atomics
ATOMIC = ["i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"]


@pytest.mark.parametrize("dtype", ATOMIC)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("used", [False, True])
def test_atomic_add_collides(dtype: str, target: str, used: bool) -> None:
    """256 lanes add to 8 counters; the old values of one counter are all different."""
    kind = f"tensor<256x{dtype}, {FLAT}>"
    lines = [
        f"%ids = tile.arange() {{start = 0, end = 256}} : tensor<256xi32, {FLAT}>",
        f"%eight = tile.constant() {{value = 8}} : tensor<256xi32, {FLAT}>",
        f"%slot = tile.rem(%ids, %eight) : tensor<256xi32, {FLAT}>",
        f"%ps = tile.splat(%x) : tensor<256xptr<{dtype}>, {FLAT}>",
        f"%p = tile.addptr(%ps, %slot) : tensor<256xptr<{dtype}>, {FLAT}>",
        f"%one = tile.constant() {{value = {'1.0' if dtype[0] in 'fb' else '1'}}} : {kind}",
        f"%ns = tile.splat(%n) : tensor<256xi32, {FLAT}>",
        f'%m = tile.cmp(%ids, %ns) {{predicate = "lt"}} : tensor<256xi1, {FLAT}>',
        f'%old = tile.atomic_rmw(%p, %one, %m) {{kind = "add"}} : {kind}']
    if used:
        lines += [pointers("o", dtype, (256,), FLAT), "tile.store(%op, %old, %m)"]
    counters, old = np.zeros(8, DTYPES[dtype]), np.full(256, 99).astype(DTYPES[dtype])
    launch(f"%x: ptr<{dtype}>, %o: ptr<{dtype}>, %n: i32", "\n".join(lines), [counters, old, 200],
           target=target, seed=5)
    assert (counters == 25).all()
    if used:
        for slot in range(8):
            seen = np.sort(old[:200].reshape(-1, 8)[:, slot].astype(np.float64))
            np.testing.assert_array_equal(seen, np.arange(25))
        assert (old[200:] == 99).all()


@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
@pytest.mark.parametrize("scope", ["cta", "gpu", "sys"])
def test_scalar_atomic_is_done_once_and_all_threads_see_the_result(sem: str, scope: str) -> None:
    body = "\n".join([
        "%one = tile.constant() {value = 1} : i32",
        f'%old = tile.atomic_rmw(%x, %one) {{kind = "add", sem = "{sem}", scope = "{scope}"}} '
        ": i32",
        pointers("o", "i32", (256,), FLAT),
        f"%s = tile.splat(%old) : tensor<256xi32, {FLAT}>", "tile.store(%op, %s)"])
    counter, out = np.array([41], np.int32), np.zeros(256, np.int32)
    launch("%x: ptr<i32>, %o: ptr<i32>", body, [counter, out], seed=2)
    assert counter[0] == 42 and (out == 41).all()


def test_atomic_results_reach_copies() -> None:
    kind = f"tensor<16xi32, {FLAT}>"
    body = "\n".join([
        pointers("x", "i32", (16,), FLAT), f"%one = tile.constant() {{value = 1}} : {kind}",
        f'%old = tile.atomic_rmw(%xp, %one) {{kind = "add", sem = "relaxed"}} : {kind}',
        "%s = tile.reduce(%old) {axis = 0} { ^(%a: i32, %b: i32):", "%c = tile.add(%a, %b) : i32",
        "scf.yield(%c)\n} : i32", "%p = tile.program_id() {axis = 0} : i32",
        f"%z = tile.splat(%s) : tensor<256xi32, {FLAT}>", pointers("o", "i32", (256,), FLAT),
        "tile.store(%op, %z)"])
    x, out = np.arange(16, dtype=np.int32), np.zeros(256, np.int32)
    launch("%x: ptr<i32>, %o: ptr<i32>", body, [x, out], seed=3)
    np.testing.assert_array_equal(x, np.arange(16) + 1)
    assert (out == 120).all()


@tilec.jit
def turned(x_ptr, y_ptr, flag_ptr, N: tl.constexpr, SEM: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x_ptr + at, at * 3)
    tl.atomic_add(flag_ptr, 1, sem=SEM)
    tl.store(y_ptr + at, tl.load(x_ptr + N - 1 - at))


@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
def test_atomics_order_what_all_threads_do(sem: str) -> None:
    """One thread adds; what all have stored before it, all load after it."""
    x, y, flag = np.zeros(256, np.int32), np.zeros(256, np.int32), np.zeros(1, np.int32)
    made = turned.warmup(x, y, flag, N=256, SEM=sem, grid=(1,), num_warps=4, target="sm_90a")
    with knobs.scope(check=True):
        made.run([x, y, flag], 1, level="ptx", seed=1)
    np.testing.assert_array_equal(y, np.arange(256)[::-1] * 3)
    assert flag[0] == 1
