"""Loops and branches in the simulator: carried scalars, tiles and pointers."""

import re

import numpy as np
import pytest

from tests.codegen.kernels import FLAT, compiled, launch, pointers

T = f"tensor<256xf32, {FLAT}>"
I = f"tensor<256xi32, {FLAT}>"
P = f"tensor<256xptr<f32>, {FLAT}>"


def test_for_advances_pointers_and_sums() -> None:
    body = "\n".join([
        pointers("x", "f32", (256,), FLAT), pointers("o", "f32", (256,), FLAT),
        "%z = tile.constant() {value = 0} : i32", "%one = tile.constant() {value = 1} : i32",
        f"%acc0 = tile.constant() {{value = 0.0}} : {T}",
        f"%step = tile.constant() {{value = 256}} : {I}",
        "%sum, %end, %last = scf.for(%z, %n, %one, %acc0, %xp, %z) { "
        f"^(%i: i32, %acc: {T}, %p: {P}, %k: i32):",
        f"%v = tile.load(%p) : {T}", f"%next = tile.add(%acc, %v) : {T}",
        f"%q = tile.addptr(%p, %step) : {P}",
        f"scf.yield(%next, %q, %i)\n}} : {T}, {P}, i32",
        "tile.store(%op, %sum)", "tile.store(%l, %last)"])
    params = ("%x: ptr<f32> {divisibility = 16}, %o: ptr<f32> {divisibility = 16}, %l: ptr<i32>, "
              "%n: i32")
    for n in (0, 1, 5):
        x = np.random.default_rng(n).standard_normal((5, 256)).astype(np.float32)
        out, last = np.full(256, 9, np.float32), np.zeros(1, np.int32)
        launch(params, body, [x, out, last, n])
        want = np.zeros(256, np.float32)
        for row in x[:n]:
            want = want + row
        np.testing.assert_array_equal(out, want)
        assert last[0] == max(0, n - 1)
    _, _, ptx = compiled(params, body, 2, "sm_90a")
    # One pointer is carried for all registers of the tile; the others are immediates.
    loads = re.findall(r"ld\.global\S* .*\[(%rd\d+)([+-]?\d*)\]", ptx)
    assert len({base for base, _ in loads}) == 1 and len(loads) > 1


@pytest.mark.parametrize("lo,hi,step", [(0, 10, 3), (5, 5, 1), (7, 3, 1), (0, 10, 0), (0, 10, -1),
                                        (2147483640, 2147483647, 4), (-5, 6, 2)])
def test_for_bounds(lo: int, hi: int, step: int) -> None:
    body = "\n".join([
        "%z = tile.constant() {value = 0} : i32", "%one = tile.constant() {value = 1} : i32",
        "%c = scf.for(%lo, %hi, %step, %z) { ^(%i: i32, %k: i32):",
        "%k1 = tile.add(%k, %one) : i32", "scf.yield(%k1)\n} : i32", "tile.store(%o, %c)"])
    out = np.zeros(1, np.int32)
    launch("%o: ptr<i32>, %lo: i32, %hi: i32, %step: i32", body, [out, lo, hi, step])
    assert out[0] == (len(range(lo, hi, step)) if step > 0 else 0)


def test_nested_loops_with_offsets_that_change_form() -> None:
    """An integer tile that starts as a splat and becomes a full tile must be carried whole."""
    body = "\n".join([
        pointers("x", "i32", (256,), FLAT), pointers("o", "i32", (256,), FLAT),
        "%z = tile.constant() {value = 0} : i32", "%one = tile.constant() {value = 1} : i32",
        f"%a0 = tile.constant() {{value = 1}} : {I}", f"%v = tile.load(%xp) : {I}",
        f"%ids = tile.arange() {{start = 0, end = 256}} : {I}",
        f"%r = scf.for(%z, %n, %one, %a0) {{ ^(%i: i32, %a: {I}):",
        f"%s = scf.for(%z, %n, %one, %a) {{ ^(%j: i32, %b: {I}):",
        f"%c = tile.add(%b, %v) : {I}", f"%d = tile.add(%c, %ids) : {I}",
        f"scf.yield(%d)\n}} : {I}", f"scf.yield(%s)\n}} : {I}", "tile.store(%op, %r)"])
    x, out = np.arange(256, dtype=np.int32) * 3, np.zeros(256, np.int32)
    launch("%x: ptr<i32> {divisibility = 16}, %o: ptr<i32> {divisibility = 16}, %n: i32", body,
           [x, out, 3])
    np.testing.assert_array_equal(out, 1 + 9 * (x + np.arange(256)))


def test_while() -> None:
    body = "\n".join([
        "%one = tile.constant() {value = 1} : i64", "%two = tile.constant() {value = 2} : i64",
        "%three = tile.constant() {value = 3} : i64", "%z = tile.constant() {value = 0} : i64",
        "%v, %steps = scf.while(%n, %z) { ^(%a: i64, %k: i64):",
        '%go = tile.cmp(%a, %one) {predicate = "ne"} : i1', "scf.condition(%go, %a, %k)",
        "}, { ^(%b: i64, %m: i64):", "%r = tile.rem(%b, %two) : i64",
        '%even = tile.cmp(%r, %z) {predicate = "eq"} : i1', "%half = tile.div(%b, %two) : i64",
        "%t = tile.mul(%b, %three) : i64", "%t1 = tile.add(%t, %one) : i64",
        "%next = tile.select(%even, %half, %t1) : i64", "%m1 = tile.add(%m, %one) : i64",
        "scf.yield(%next, %m1)\n} : i64, i64", "tile.store(%o, %steps)"])
    out = np.zeros(1, np.int64)
    launch("%o: ptr<i64>, %n: i64", body, [out, 27])
    assert out[0] == 111


@pytest.mark.parametrize("flag", [0, 1])
def test_if_joins_tiles_of_different_forms(flag: int) -> None:
    body = "\n".join([
        pointers("x", "f32", (256,), FLAT), pointers("o", "i32", (256,), FLAT),
        f"%ids = tile.arange() {{start = 0, end = 256}} : {I}",
        f"%a, %b, %p = scf.if(%c) {{\n%k = tile.constant() {{value = 7}} : {I}",
        f"%s = tile.splat(%f) : {T}", "scf.yield(%k, %s, %xp)\n}, {",
        f"%v = tile.load(%xp) : {T}", f"%two = tile.constant() {{value = 2}} : {I}",
        f"%q = tile.addptr(%xp, %two) : {P}", f"scf.yield(%ids, %v, %q)\n}} : {I}, {T}, {P}",
        f"%w = tile.load(%p) : {T}", f"%y = tile.add(%w, %b) : {T}",
        f"%yi = tile.cast(%y) : {I}", f"%r = tile.add(%yi, %a) : {I}", "tile.store(%op, %r)"])
    x, out = np.arange(300, dtype=np.float32), np.zeros(256, np.int32)
    launch("%x: ptr<f32> {divisibility = 16}, %o: ptr<i32> {divisibility = 16}, %c: i1, %f: f32",
           body, [x, out, flag, 100.0])
    i = np.arange(256)
    np.testing.assert_array_equal(out, i + 100 + 7 if flag else i + 2 + i + i)


def test_program_ids_and_counts() -> None:
    body = "\n".join([
        "%p = tile.program_id() {axis = 0} : i32", "%n = tile.num_programs() {axis = 0} : i32",
        "%m = tile.num_programs() {axis = 1} : i32", "%q = tile.addptr(%o, %p) : ptr<i32>",
        "%ten = tile.constant() {value = 10} : i32", "%a = tile.mul(%p, %ten) : i32",
        "%b = tile.add(%a, %n) : i32", "%c = tile.add(%b, %m) : i32", "tile.store(%q, %c)"])
    out = np.zeros(4, np.int32)
    launch("%o: ptr<i32>", body, [out], grid=4, seed=1)
    np.testing.assert_array_equal(out, np.arange(4) * 10 + 5)
