"""The interpreter on whole kernels: grids, control flow, reductions, atomics, arguments."""

import ml_dtypes
import numpy as np
import pytest

from tests.interp.kernels import launch, module, offsets, pointer
from tilec.errors import LaunchError
from tilec.interp.run import run
from tilec.ir.parser import parse

pytestmark = pytest.mark.usefixtures("grouping")

ADD = offsets(96) + "".join(pointer(p, "offs", 96) for p in "xyo") + """
    %a = tile.load(%xp, %mask) : tensor<96xf32>
    %b = tile.load(%yp, %mask) : tensor<96xf32>
    %s = tile.add(%a, %b) : tensor<96xf32>
    tile.store(%op, %s, %mask)
"""
ADD_PARAMS = "%x: ptr<f32>, %y: ptr<f32>, %o: ptr<f32>, %n: i32"


@pytest.mark.parametrize("n", [1, 95, 96, 1000])
def test_vector_add_writes_every_element_and_no_other(n):
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n)).astype(np.float32)
    out = np.full(n + 5, -7, np.float32)
    launch(ADD_PARAMS, ADD, [x, y, out[:n], n], (-(-n // 96),))
    assert np.array_equal(out[:n], x + y) and (out[n:] == -7).all()


def test_arguments_by_name_one_program_and_empty_grid():
    x, y = np.arange(200, dtype=np.float32), np.ones(200, np.float32)
    out = np.zeros(200, np.float32)
    args = {"o": out, "n": np.int64(200), "x": x, "y": y}
    launch(ADD_PARAMS, ADD, args, (0,))
    assert not out.any()
    launch(ADD_PARAMS, ADD, args, (3,), program=1)
    assert not out[:96].any() and np.array_equal(out[96:192], x[96:192] + 1) and not out[192:].any()


@pytest.mark.parametrize("bad, message", [
    (lambda a: a[:3], r"takes 4 arguments \(x, y, o, n\), 3 were given"),
    (lambda a: [a[0].astype(np.float64), *a[1:]], "argument x holds f64, expected f32"),
    (lambda a: [[1.0], *a[1:]], "argument x is list, expected a numpy array"),
    (lambda a: [*a[:3], 2**31], "argument n is 2147483648, which does not fit i32"),
    (lambda a: [*a[:3], 1.5], "argument n is 1.5, which does not fit i32"),
    (lambda a: {"x": a[0]}, "misses the argument y"),
])
def test_arguments_that_do_not_fit(bad, message):
    args = [np.zeros(8, np.float32) for _ in range(3)] + [8]
    with pytest.raises(LaunchError, match=message):
        launch(ADD_PARAMS, ADD, bad(args), (1,))


def test_arguments_must_be_as_divisible_as_compiled_for():
    body = "tile.store(%x, %n)"
    params = "%x: ptr<i32> {divisibility = 16}, %n: i32 {divisibility = 8}"
    aligned = np.zeros(64, np.int32)
    aligned = aligned[(-aligned.ctypes.data // 4) % 4:]
    launch(params, body, [aligned, 24])
    assert aligned[0] == 24
    with pytest.raises(LaunchError, match="argument n is 25 that is not a multiple of 8"):
        launch(params, body, [aligned, 25])
    with pytest.raises(LaunchError, match="argument x is an array that is not a multiple of 16"):
        launch(params, body, [aligned[1:], 24])


def test_unknown_function_level_grid_and_program():
    m = module(ADD_PARAMS, ADD)
    args = [np.zeros(8, np.float32) for _ in range(3)] + [8]
    with pytest.raises(LaunchError, match="there is no function f; the module has k"):
        run(m, "f", args, (1,))
    with pytest.raises(LaunchError, match="level tile, expected gpu"):
        run(m, "k", args, (1,), level="gpu")
    with pytest.raises(LaunchError, match="1 to 3 integers"):
        run(m, "k", args, (1, 1, 1, 1))
    with pytest.raises(LaunchError, match="not in the grid"):
        run(m, "k", args, (2, 2), program=(2, 0))


def test_program_ids_of_a_3d_grid():
    body = """
        %a = tile.program_id() {axis = 0} : i32
        %b = tile.program_id() {axis = 1} : i32
        %c = tile.program_id() {axis = 2} : i32
        %na = tile.num_programs() {axis = 0} : i32
        %nb = tile.num_programs() {axis = 1} : i32
        %t = tile.mul(%c, %nb) : i32
        %u = tile.add(%t, %b) : i32
        %v = tile.mul(%u, %na) : i32
        %w = tile.add(%v, %a) : i32
        %p = tile.addptr(%o, %w) : ptr<i32>
        %k = tile.constant() {value = 10} : i32
        %h = tile.mul(%b, %k) : i32
        %e = tile.add(%h, %a) : i32
        tile.store(%p, %e)
    """
    out = np.full((2, 3, 4), -1, np.int32)
    launch("%o: ptr<i32>", body, [out], (4, 3, 2))
    want = np.arange(3)[None, :, None] * 10 + np.arange(4)[None, None, :]
    assert np.array_equal(out, np.broadcast_to(want, out.shape))


# -- control flow that differs between programs -----------------------------------------------

SCALARS = """
    %pid = tile.program_id() {axis = 0} : i32
    %xp = tile.addptr(%x, %pid) : ptr<i32>
    %op = tile.addptr(%o, %pid) : ptr<i32>
    %v = tile.load(%xp) : i32
    %zero = tile.constant() {value = 0} : i32
    %one = tile.constant() {value = 1} : i32
    %two = tile.constant() {value = 2} : i32
    %three = tile.constant() {value = 3} : i32
"""
PARAMS = "%x: ptr<i32>, %o: ptr<i32>"


def per_program(body, values):
    x = np.array(values, np.int32)
    out = np.zeros_like(x)
    launch(PARAMS, SCALARS + body + "tile.store(%op, %r)", [x, out], (len(x),), seed=4)
    return out.tolist()


def test_if_takes_a_side_per_program():
    body = """
        %c = tile.cmp(%v, %zero) {predicate = "lt"} : i1
        %r = scf.if(%c) {
            %n = tile.neg(%v) : i32
            scf.yield(%n)
        }, {
            %d = tile.mul(%v, %two) : i32
            scf.yield(%d)
        } : i32
    """
    assert per_program(body, [-5, 4, 0, -1]) == [5, 8, 0, 1]
    assert per_program(body, [5, 4]) == [10, 8]


def test_if_with_an_unsafe_side_runs_it_only_where_taken():
    body = """
        %c = tile.cmp(%pid, %two) {predicate = "lt"} : i1
        %r = scf.if(%c) {
            %q = tile.addptr(%x, %two) : ptr<i32>
            %s = tile.addptr(%q, %pid) : ptr<i32>
            %l = tile.load(%s) : i32
            scf.yield(%l)
        }, {
            scf.yield(%pid)
        } : i32
    """
    assert per_program(body, [10, 20, 30, 40]) == [30, 40, 2, 3]


def test_for_runs_as_often_as_each_program_asks():
    body = """
        %r = scf.for(%zero, %v, %two, %one) {
        ^(%i: i32, %acc: i32):
            %a = tile.mul(%acc, %three) : i32
            %b = tile.add(%a, %i) : i32
            scf.yield(%b)
        } : i32
    """

    def want(v):
        acc = 1
        for i in range(0, v, 2):
            acc = acc * 3 + i
        return acc

    values = [0, 7, -3, 2, 1, 7, 12]
    assert per_program(body, values) == [want(v) for v in values]
    assert per_program(body, [4, 4]) == [want(4)] * 2


def test_while_collatz():
    body = """
        %r, %last = scf.while(%zero, %v) {
        ^(%k: i32, %y: i32):
            %go = tile.cmp(%y, %one) {predicate = "gt"} : i1
            scf.condition(%go, %k, %y)
        }, {
        ^(%k2: i32, %y2: i32):
            %odd = tile.rem(%y2, %two) : i32
            %is = tile.cmp(%odd, %one) {predicate = "eq"} : i1
            %next = scf.if(%is) {
                %t = tile.mul(%y2, %three) : i32
                %t1 = tile.add(%t, %one) : i32
                scf.yield(%t1)
            }, {
                %h = tile.div(%y2, %two) : i32
                scf.yield(%h)
            } : i32
            %k3 = tile.add(%k2, %one) : i32
            scf.yield(%k3, %next)
        } : i32, i32
    """

    def want(n):
        steps = 0
        while n > 1:
            n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
        return steps

    values = [1, 6, 27, 2, 97, 1]
    assert per_program(body, values) == [want(v) for v in values]


def test_a_loop_inside_a_divergent_loop():
    body = """
        %r = scf.for(%zero, %v, %one, %zero) {
        ^(%i: i32, %acc: i32):
            %in = scf.for(%zero, %i, %one, %acc) {
            ^(%j: i32, %b: i32):
                %s = tile.add(%b, %j) : i32
                %t = tile.add(%s, %pid) : i32
                scf.yield(%t)
            } : i32
            scf.yield(%in)
        } : i32
    """
    values = [3, 0, 5, 4]
    want = [sum(j + p for i in range(v) for j in range(i)) for p, v in enumerate(values)]
    assert per_program(body, values) == want


# -- shapes and reductions --------------------------------------------------------------------

def reduce_kernel(shape, axis, region, element="f32"):
    m, n = shape
    rest = n if axis == 0 else m
    return f"""
        %pid = tile.program_id() {{axis = 0}} : i32
        %size = tile.constant() {{value = {m * n}}} : i32
        %base = tile.mul(%pid, %size) : i32
        %r = tile.arange() {{start = 0, end = {m * n}}} : tensor<{m * n}xi32>
        %bs = tile.splat(%base) : tensor<{m * n}xi32>
        %i = tile.add(%bs, %r) : tensor<{m * n}xi32>
        {pointer("x", "i", m * n, element)}
        %flat = tile.load(%xp) : tensor<{m * n}x{element}>
        %t = tile.reshape(%flat) : tensor<{m}x{n}x{element}>
        %s = tile.reduce(%t) {{axis = {axis}}} {{
        ^(%a: {element}, %b: {element}):
            {region}
        }} : tensor<{rest}x{element}>
        %len = tile.constant() {{value = {rest}}} : i32
        %ob = tile.mul(%pid, %len) : i32
        %obs = tile.splat(%ob) : tensor<{rest}xi32>
        %oi = tile.arange() {{start = 0, end = {rest}}} : tensor<{rest}xi32>
        %oo = tile.add(%obs, %oi) : tensor<{rest}xi32>
        {pointer("o", "oo", rest, element)}
        tile.store(%op, %s)
    """


@pytest.mark.parametrize("shape", [(4, 8), (5, 7), (1, 13), (16, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_reduce_sum(shape, axis):
    x = np.random.default_rng(1).integers(-50, 50, (3, *shape)).astype(np.float32)
    out = np.zeros((3, shape[1 - axis]), np.float32)
    body = reduce_kernel(shape, axis, "%c = tile.add(%a, %b) : f32\nscf.yield(%c)")
    launch("%x: ptr<f32>, %o: ptr<f32>", body, [x, out], (3,))
    assert np.array_equal(out, x.sum(axis + 1))


def test_reduce_with_a_branch_in_the_combine_function():
    region = """
        %less = tile.cmp(%a, %b) {predicate = "lt"} : i1
        %c = scf.if(%less) {
            scf.yield(%b)
        }, {
            scf.yield(%a)
        } : f32
        scf.yield(%c)
    """
    x = np.random.default_rng(2).standard_normal((3, 6, 9)).astype(np.float32)
    out = np.zeros((3, 6), np.float32)
    launch("%x: ptr<f32>, %o: ptr<f32>", reduce_kernel((6, 9), 1, region), [x, out], (3,))
    assert np.array_equal(out, x.max(2))


def test_reduce_of_bf16_rounds_at_every_step():
    x = np.full((1, 1, 512), 1, ml_dtypes.bfloat16)
    x[0, 0, 0] = 256
    out = np.zeros((1, 1), ml_dtypes.bfloat16)
    region = "%c = tile.add(%a, %b) : bf16\nscf.yield(%c)"
    launch("%x: ptr<bf16>, %o: ptr<bf16>", reduce_kernel((1, 512), 1, region, "bf16"), [x, out])
    assert float(out[0, 0]) % 4 == 0 and 512 <= float(out[0, 0]) <= 768


def test_argmax_reduces_a_pair():
    body = """
        %i = tile.arange() {start = 0, end = 11} : tensor<11xi32>
    """ + pointer("x", "i", 11) + """
        %v = tile.load(%xp) : tensor<11xf32>
        %best, %at = tile.reduce(%v, %i) {axis = 0} {
        ^(%a: f32, %ai: i32, %b: f32, %bi: i32):
            %gt = tile.cmp(%a, %b) {predicate = "gt"} : i1
            %eq = tile.cmp(%a, %b) {predicate = "eq"} : i1
            %lo = tile.cmp(%ai, %bi) {predicate = "lt"} : i1
            %tie = tile.and(%eq, %lo) : i1
            %left = tile.or(%gt, %tie) : i1
            %c = tile.select(%left, %a, %b) : f32
            %ci = tile.select(%left, %ai, %bi) : i32
            scf.yield(%c, %ci)
        } : f32, i32
        tile.store(%o, %at)
    """
    out = np.zeros(1, np.int32)
    x = np.array([1, 5, 2, 5, 0, 5, 3, 3, 3, 3, 5], np.float32)
    launch("%x: ptr<f32>, %o: ptr<i32>", body, [x, out])
    assert out[0] == 1


def test_transpose_expand_and_broadcast():
    body = """
        %r = tile.arange() {start = 0, end = 3} : tensor<3xi32>
        %c = tile.arange() {start = 0, end = 5} : tensor<5xi32>
        %r1 = tile.expand_dims(%r) {axis = 1} : tensor<3x1xi32>
        %c1 = tile.expand_dims(%c) {axis = 0} : tensor<1x5xi32>
        %r2 = tile.broadcast(%r1) : tensor<3x5xi32>
        %c2 = tile.broadcast(%c1) : tensor<3x5xi32>
        %k = tile.constant() {value = 5} : tensor<3x5xi32>
        %m = tile.mul(%r2, %k) : tensor<3x5xi32>
        %i = tile.add(%m, %c2) : tensor<3x5xi32>
        %xs = tile.splat(%x) : tensor<3x5xptr<f32>>
        %xp = tile.addptr(%xs, %i) : tensor<3x5xptr<f32>>
        %v = tile.load(%xp) : tensor<3x5xf32>
        %t = tile.trans(%v) {order = [1, 0]} : tensor<5x3xf32>
        %f = tile.reshape(%t) : tensor<15xf32>
        %o15 = tile.arange() {start = 0, end = 15} : tensor<15xi32>
    """ + pointer("o", "o15", 15) + "tile.store(%op, %f)"
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    out = np.zeros((5, 3), np.float32)
    launch("%x: ptr<f32>, %o: ptr<f32>", body, [x, out])
    assert np.array_equal(out, x.T)


def test_dot_accumulates_in_f32():
    body = """
        %i = tile.arange() {start = 0, end = 256} : tensor<256xi32>
    """ + pointer("a", "i", 256, "f16") + pointer("b", "i", 256, "f16")
    body += pointer("o", "i", 256) + """
        %av = tile.load(%ap) : tensor<256xf16>
        %bv = tile.load(%bp) : tensor<256xf16>
        %am = tile.reshape(%av) : tensor<16x16xf16>
        %bm = tile.reshape(%bv) : tensor<16x16xf16>
        %z = tile.constant() {value = 0.5} : tensor<16x16xf32>
        %d = tile.dot(%am, %bm, %z) : tensor<16x16xf32>
        %f = tile.reshape(%d) : tensor<256xf32>
        tile.store(%op, %f)
    """
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 16, 16)).astype(np.float16)
    out = np.zeros((16, 16), np.float32)
    launch("%a: ptr<f16>, %b: ptr<f16>, %o: ptr<f32>", body, [a, b, out])
    want = a.astype(np.float64) @ b.astype(np.float64) + 0.5
    assert np.array_equal(out, want.astype(np.float32))


# -- types ------------------------------------------------------------------------------------

@pytest.mark.parametrize("element, dtype", [
    ("i1", np.bool_), ("i8", "i1"), ("u8", "u1"), ("i16", "i2"), ("u16", "u2"), ("i32", "i4"),
    ("u32", "u4"), ("i64", "i8"), ("u64", "u8"), ("f8e4m3", ml_dtypes.float8_e4m3fn),
    ("f8e5m2", ml_dtypes.float8_e5m2), ("f16", "f2"), ("bf16", ml_dtypes.bfloat16), ("f32", "f4"),
    ("f64", "f8")])
def test_every_dtype_is_copied_bit_for_bit(element, dtype):
    body = offsets(16) + "".join(pointer(p, "offs", 16, element) for p in "xo") + f"""
        %v = tile.load(%xp, %mask) : tensor<16x{element}>
        tile.store(%op, %v, %mask)
    """
    raw = np.random.default_rng(5).integers(0, 256, 37 * np.dtype(dtype).itemsize, np.uint8)
    x = (raw & 1 if element == "i1" else raw).view(dtype)
    out = np.zeros(37, dtype)
    launch(f"%x: ptr<{element}>, %o: ptr<{element}>, %n: i32", body, [x, out, 37], (3,))
    assert np.array_equal(out.view(np.uint8), x.view(np.uint8))


def test_pointers_as_integers_and_back():
    body = """
        %a = tile.bitcast(%x) : i64
        %eight = tile.constant() {value = 8} : i64
        %b = tile.add(%a, %eight) : i64
        %p = tile.bitcast(%b) : ptr<f32>
        %v = tile.load(%p) : f32
        tile.store(%o, %v)
    """
    x, out = np.arange(5, dtype=np.float32), np.zeros(1, np.float32)
    launch("%x: ptr<f32>, %o: ptr<f32>", body, [x, out])
    assert out[0] == 2


def test_alignment_of_the_host_array_is_kept():
    body = """
        %a = tile.bitcast(%x) : i64
        tile.store(%o, %a)
    """
    buffer = np.zeros(64, np.float32)
    for shift in range(4):
        out = np.zeros(1, np.int64)
        launch("%x: ptr<f32>, %o: ptr<i64>", body, [buffer[shift:], out])
        assert (out[0] - buffer[shift:].ctypes.data) % 256 == 0


def test_addresses_do_not_depend_on_where_the_hosts_memory_lies():
    body = """
        %a = tile.bitcast(%x) : i64
        tile.store(%o, %a)
    """
    buffers = sorted((np.zeros(2, np.int64) for _ in range(2)), key=lambda a: a.ctypes.data)
    for x, out in (buffers, buffers[::-1]):
        launch("%x: ptr<i64>, %o: ptr<i64>", body, [x, out])
        assert out[0] >> 40 == 1


def test_strided_arrays_are_reached_through_their_strides():
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    view = base[:, ::2]
    body = """
        %i = tile.arange() {start = 0, end = 12} : tensor<12xi32>
        %c = tile.constant() {value = 2} : tensor<12xi32>
        %j = tile.mul(%i, %c) : tensor<12xi32>
    """ + pointer("x", "j", 12) + pointer("o", "i", 12) + """
        %v = tile.load(%xp) : tensor<12xf32>
        tile.store(%op, %v)
    """
    out = np.zeros((4, 3), np.float32)
    launch("%x: ptr<f32>, %o: ptr<f32>", body, [view, out])
    assert np.array_equal(out, view)


# -- shared memory ----------------------------------------------------------------------------

def test_shared_memory_holds_a_tile_per_program():
    text = """
#s = swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
module attributes {level = "gpu"} {
func @k(%x: ptr<i32>) {
  %pid = tile.program_id() {axis = 0} : i32
  %one = tile.constant() {value = 1} : i32
  %odd = tile.and(%pid, %one) : i32
  %is = tile.cmp(%odd, %one) {predicate = "eq"} : i1
  %buf = gpu.alloc_shared() : memdesc<8xi32, #s>
  %r = tile.arange() {start = 0, end = 8} : tensor<8xi32>
  %ps = tile.splat(%pid) : tensor<8xi32>
  gpu.shared_store(%buf, %ps)
  gpu.barrier()
  scf.if(%is) {
    gpu.shared_store(%buf, %r)
    scf.yield()
  }, {
    scf.yield()
  }
  %v = gpu.shared_load(%buf) : tensor<8xi32>
  %eight = tile.constant() {value = 8} : i32
  %b = tile.mul(%pid, %eight) : i32
  %bs = tile.splat(%b) : tensor<8xi32>
  %o = tile.add(%bs, %r) : tensor<8xi32>
  %xs = tile.splat(%x) : tensor<8xptr<i32>>
  %xp = tile.addptr(%xs, %o) : tensor<8xptr<i32>>
  tile.store(%xp, %v)
  func.return()
}}"""
    out = np.zeros((5, 8), np.int32)
    run(parse(text), "k", [out], (5,), level="gpu")
    want = [list(range(8)) if p % 2 else [p] * 8 for p in range(5)]
    assert out.tolist() == want


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_seeds_are_natural_numbers(seed):
    module = parse("module { func @k(%x: ptr<i32>) { func.return() } }")
    with pytest.raises(LaunchError, match="expected an integer of 0 or more"):
        run(module, "k", [np.zeros(1, np.int32)], 1, seed)
