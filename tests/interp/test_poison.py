"""Poison, bad accesses and broken promises: what is reported, where, and in which words."""

import numpy as np
import pytest

from tests.interp.kernels import launch, module, offsets, pointer
from tilec.errors import InterpreterError
from tilec.eval.dtypes import dtype_of
from tilec.interp.run import run
from tilec.ir.types import SCALARS

PARAMS = "%x: ptr<f32>, %o: ptr<f32>, %n: i32"
LOAD = offsets(8) + pointer("x", "offs", 8) + pointer("o", "offs", 8) + """
    %a = tile.load(%xp, %mask) : tensor<8xf32>
"""


def line_of(body, text):
    """The line number that kernels.module gives to the line with `text`."""
    lines = [line.strip() for line in body.strip().splitlines() if line.strip()]
    return next(i for i, line in enumerate(lines, 1) if text in line)


def fails(params, body, args, grid=(1,), **options):
    with pytest.raises(InterpreterError) as error:
        launch(params, body, args, grid, **options)
    return error.value


def arrays(n):
    return [np.arange(n, dtype=np.float32), np.zeros(n, np.float32), n]


def test_a_poisoned_store_names_the_load():
    body = LOAD + "%b = tile.add(%a, %a) : tensor<8xf32>\ntile.store(%op, %b)"
    x, o, n = arrays(13)
    error = fails(PARAMS, body, [x, np.zeros(16, np.float32), n], (2,))
    load = line_of(body, "tile.load")
    assert error.message == (
        f"program (1, 0) writes o, but the value is poison in 3 elements: it comes from the load "
        f"at k.py:{load}, whose masked-off lanes have no `other`")
    assert error.loc.line == line_of(body, "tile.store") and "`other`" in error.advice


def test_poison_that_is_masked_off_selected_away_or_unused_is_fine():
    body = LOAD + """
        %z = tile.constant() {value = -1.0} : tensor<8xf32>
        %b = tile.add(%a, %z) : tensor<8xf32>
        %c = tile.select(%mask, %b, %z) : tensor<8xf32>
        tile.store(%op, %c)
        tile.store(%op, %a, %mask)
    """
    x = np.arange(5, dtype=np.float32)
    out = np.zeros(8, np.float32)
    launch(PARAMS, body, [x, out, 5])
    assert out.tolist() == [0, 1, 2, 3, 4, -1, -1, -1]


def test_other_defines_the_masked_off_lanes():
    body = offsets(8) + pointer("x", "offs", 8) + pointer("o", "offs", 8) + """
        %z = tile.constant() {value = 7.0} : tensor<8xf32>
        %a = tile.load(%xp, %mask, %z) : tensor<8xf32>
        tile.store(%op, %a)
    """
    out = np.zeros(8, np.float32)
    launch(PARAMS, body, [np.arange(5, dtype=np.float32), out, 5])
    assert out.tolist() == [0, 1, 2, 3, 4, 7, 7, 7]


def test_poison_moves_with_its_element():
    body = LOAD + """
        %m = tile.reshape(%a) : tensor<2x4xf32>
        %t = tile.trans(%m) {order = [1, 0]} : tensor<4x2xf32>
        %f = tile.reshape(%t) : tensor<8xf32>
        %c = tile.constant() {value = 7} : tensor<8xi32>
        %keep = tile.cmp(%offs, %c) {predicate = "lt"} : tensor<8xi1>
        tile.store(%op, %f, %keep)
    """
    out = np.zeros(8, np.float32)
    launch(PARAMS, body, [np.arange(7, dtype=np.float32), out, 7])
    assert out.tolist() == [0, 4, 1, 5, 2, 6, 3, 0]


def test_a_reduction_of_poison_is_poison():
    body = LOAD + """
        %s = tile.reduce(%a) {axis = 0} {
        ^(%p: f32, %q: f32):
            %r = tile.add(%p, %q) : f32
            scf.yield(%r)
        } : f32
        tile.store(%o, %s)
    """
    x, o, _ = arrays(8)
    error = fails(PARAMS, body, [x, o, 7])
    assert "the value is poison: it comes from the load" in error.message
    launch(PARAMS, body, [x, o, 8])
    assert o[0] == 28


def test_what_a_scan_combines_with_poison_is_poison():
    def body(reverse, first, last):
        return LOAD + f"""
            %s = tile.scan(%a) {{axis = 0, reverse = {reverse}}} {{
            ^(%p: f32, %q: f32):
                %r = tile.add(%p, %q) : f32
                scf.yield(%r)
            }} : tensor<8xf32>
            %low = tile.constant() {{value = {first}}} : tensor<8xi32>
            %high = tile.constant() {{value = {last}}} : tensor<8xi32>
            %from = tile.cmp(%offs, %low) {{predicate = "ge"}} : tensor<8xi1>
            %to = tile.cmp(%offs, %high) {{predicate = "le"}} : tensor<8xi1>
            %keep = tile.and(%from, %to) : tensor<8xi1>
            tile.store(%op, %s, %keep)
        """
    out = np.zeros(8, np.float32)
    launch(PARAMS, body("false", 0, 4), [np.arange(5, dtype=np.float32), out, 5])
    assert out.tolist() == [0, 1, 3, 6, 10, 0, 0, 0]
    for reverse, first in (("false", 5), ("true", 0), ("true", 4)):
        error = fails(PARAMS, body(reverse, first, first), [np.arange(5, dtype=np.float32), out, 5])
        assert "the value is poison in 1 element" in error.message


def test_a_defined_false_decides_an_and():
    head = LOAD + """
        %z = tile.constant() {value = 2.0} : tensor<8xf32>
        %big = tile.cmp(%a, %z) {predicate = "gt"} : tensor<8xi1>
    """
    out = np.zeros(8, np.float32)
    body = head + "%both = tile.and(%mask, %big) : tensor<8xi1>\ntile.store(%op, %a, %both)"
    launch(PARAMS, body, [np.arange(5, dtype=np.float32), out, 5])
    assert out.tolist() == [0, 0, 0, 3, 4, 0, 0, 0]
    error = fails(PARAMS, head + "tile.store(%op, %z, %big)",
                  [np.arange(5, dtype=np.float32), out, 5])
    assert "its mask is poison in 3 elements" in error.message


def test_poison_as_address_branch_and_bound():
    head = offsets(8) + pointer("x", "offs", 8, "i32") + """
        %i = tile.load(%xp, %mask) : tensor<8xi32>
        %s = tile.reduce(%i) {axis = 0} {
        ^(%p: i32, %q: i32):
            %r = tile.add(%p, %q) : i32
            scf.yield(%r)
        } : i32
        %zero = tile.constant() {value = 0} : i32
        %one = tile.constant() {value = 1} : i32
    """
    params = "%x: ptr<i32>, %o: ptr<f32>, %n: i32"
    args = [np.zeros(8, np.int32), np.zeros(8, np.float32), 5]
    body = head + pointer("o", "i", 8) + "%v = tile.load(%op) : tensor<8xf32>"
    error = fails(params, body, args)
    assert "program (0, 0) reads o, but its address is poison in 3 elements" in error.message
    body = head + """
        %c = tile.cmp(%s, %zero) {predicate = "gt"} : i1
        scf.if(%c) {
            scf.yield()
        }, {
            scf.yield()
        }
    """
    error = fails(params, body, args)
    assert "program (0, 0): the condition of this `if` is poison" in error.message
    body = head + """
        scf.for(%zero, %s, %one) {
        ^(%k: i32):
            scf.yield()
        }
    """
    assert "a bound of this loop is poison" in fails(params, body, args).message


def test_division_by_zero_is_poison_where_it_is_used():
    body = offsets(8, limit=None) + pointer("o", "offs", 8, "i32") + """
        %four = tile.constant() {value = 4} : tensor<8xi32>
        %d = tile.sub(%offs, %four) : tensor<8xi32>
        %q = tile.div(%four, %d) : tensor<8xi32>
        %ok = tile.cmp(%offs, %four) {predicate = "ne"} : tensor<8xi1>
        tile.store(%op, %q, %ok)
    """
    out = np.zeros(8, np.int32)
    launch("%o: ptr<i32>", body, [out])
    assert out.tolist() == [-1, -1, -2, -4, 0, 4, 2, 1]
    error = fails("%o: ptr<i32>", body.replace("%q, %ok", "%q"), [out])
    assert f"the division by zero at k.py:{line_of(body, 'tile.div')}" in error.message


def test_poison_from_a_loop_carried_value():
    body = LOAD + """
        %lo = tile.constant() {value = 0} : i32
        %hi = tile.constant() {value = 3} : i32
        %st = tile.constant() {value = 1} : i32
        %r = scf.for(%lo, %hi, %st, %a) {
        ^(%k: i32, %acc: tensor<8xf32>):
            %b = tile.mul(%acc, %acc) : tensor<8xf32>
            scf.yield(%b)
        } : tensor<8xf32>
        tile.store(%op, %r)
    """
    x, o, _ = arrays(8)
    assert f"k.py:{line_of(body, 'tile.load')}" in fails(PARAMS, body, [x, o, 7]).message


def test_shared_memory_that_nobody_wrote():
    layout = "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>"
    body = f"%b = gpu.alloc_shared() : memdesc<4xf32, {layout}>" + """
        %v = gpu.shared_load(%b) : tensor<4xf32>
        %i = tile.arange() {start = 0, end = 4} : tensor<4xi32>
    """ + pointer("o", "i", 4) + "tile.store(%op, %v)"
    m = module("%o: ptr<f32>", body, level="gpu")
    with pytest.raises(InterpreterError, match="shared memory that nobody wrote, read at k.py:2"):
        run(m, "k", [np.zeros(4, np.float32)], (1,))


def test_a_part_of_a_buffer_is_poison_on_its_own():
    layout = "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>"
    body = f"%b = gpu.alloc_shared() : memdesc<4xf32, {layout}>" + """
        %i = tile.arange() {start = 0, end = 4} : tensor<4xi32>
        %two = tile.constant() {value = 2} : tensor<4xi32>
        %late = tile.cmp(%i, %two) {predicate = "ge"} : tensor<4xi1>
    """ + pointer("x", "i", 4) + """
        %x0 = tile.load(%xp, %late) : tensor<4xf32>
        gpu.shared_store(%b, %x0)
        %v = gpu.shared_load(%b) {offsets = [AT]} : tensor<2xf32>
        %j = tile.arange() {start = 0, end = 2} : tensor<2xi32>
    """ + pointer("o", "j", 2) + "tile.store(%op, %v)"
    x, out = np.arange(4, dtype=np.float32), np.zeros(2, np.float32)
    run(module("%x: ptr<f32>, %o: ptr<f32>", body.replace("AT", "2"), level="gpu"), "k", [x, out],
        (1,))
    assert out.tolist() == [2, 3]
    with pytest.raises(InterpreterError, match="the value is poison in 2 elements"):
        run(module("%x: ptr<f32>, %o: ptr<f32>", body.replace("AT", "0"), level="gpu"), "k",
            [x, out], (1,))


# -- out of bounds ----------------------------------------------------------------------------

def test_reading_past_the_end_names_argument_count_and_mask():
    body = offsets(1024, limit="m").replace("%m)", "%BLOCK)")
    body = body.replace("%offs_n =", "%BLOCK = tile.constant() {value = 9999} : i32\n%offs_n =")
    body += pointer("x", "offs", 1024) + "%a = tile.load(%xp, %mask) : tensor<1024xf32>"
    error = fails("%x: ptr<f32>, %n: i32", body, [np.zeros(4000, np.float32), 4000], (4,))
    assert error.message == ("program (3, 0) reads 96 elements past x (4000 elements); "
                             "the mask tests BLOCK, not n")
    assert error.loc.file == "k.py" and error.loc.line == line_of(body, "tile.load")


def test_writing_without_a_mask_and_before_the_start():
    body = offsets(8, limit=None) + pointer("o", "offs", 8) + """
        %z = tile.constant() {value = 0.0} : tensor<8xf32>
        tile.store(%op, %z)
    """
    error = fails("%o: ptr<f32>", body, [np.zeros(15, np.float32)], (2,))
    assert error.message == ("program (1, 0) writes 1 element past o (15 elements); "
                             "there is no mask")
    body = """
        %m = tile.constant() {value = -2} : i32
        %p = tile.addptr(%o, %m) : ptr<f32>
        %v = tile.load(%p) : f32
    """
    error = fails("%o: ptr<f32>", body, [np.zeros(15, np.float32)])
    assert error.message.startswith("program (0, 0) reads 1 element before o (15 elements)")


def test_the_mask_that_tests_a_wrong_argument():
    body = LOAD + "tile.store(%op, %a, %mask)"
    error = fails(PARAMS, body, [np.zeros(5, np.float32), np.zeros(8, np.float32), 7])
    assert error.message == ("program (0, 0) reads 2 elements past x (5 elements); "
                             "the mask tests n, which is 7")


def test_an_empty_array_and_a_null_like_pointer():
    body = "%v = tile.load(%o) : f32"
    assert "past o (0 elements)" in fails("%o: ptr<f32>", body, [np.zeros(0, np.float32)]).message
    body = """
        %z = tile.constant() {value = 0} : i64
        %p = tile.bitcast(%z) : ptr<f32>
        %v = tile.load(%p) : f32
    """
    assert "outside of every argument" in fails("%o: ptr<f32>", body,
                                                [np.zeros(3, np.float32)]).message


def test_misaligned_and_read_only():
    body = """
        %a = tile.bitcast(%o) : i64
        %t = tile.constant() {value = 2} : i64
        %b = tile.add(%a, %t) : i64
        %p = tile.bitcast(%b) : ptr<f32>
        %v = tile.load(%p) : f32
    """
    assert "not multiples of the element size" in fails("%o: ptr<f32>", body,
                                                        [np.zeros(3, np.float32)]).message
    out = np.zeros(3, np.float32)
    out.flags.writeable = False
    body = "%z = tile.constant() {value = 0.0} : f32\ntile.store(%o, %z)"
    assert "writes o, a read-only array" in fails("%o: ptr<f32>", body, [out]).message


def test_divisibility_is_of_the_runs_that_a_later_hint_states():
    body = """
        %r = tile.arange() {start = 0, end = 8} : tensor<8xi32>
        %n8 = tile.splat(%n) : tensor<8xi32>
        %i = tile.rem(%r, %n8) : tensor<8xi32>
        %h = tile.hint(%i) {divisibility = [8]} : tensor<8xi32>
        %c = tile.hint(%h) {contiguity = [8]} : tensor<8xi32>
    """
    launch("%o: ptr<i32>, %n: i32", body, [np.zeros(1, np.int32), 18])
    assert "contiguity 8" in fails("%o: ptr<i32>, %n: i32", body,
                                   [np.zeros(1, np.int32), 4]).message


def test_text_without_locations_shows_the_op():
    m = module("%o: ptr<f32>", "%v = tile.load(%o) : f32")
    for op in m.walk():
        op.loc = type(op.loc)("<unknown>", 0)
    with pytest.raises(InterpreterError, match=r"%v = tile.load\(%o\) : f32"):
        run(m, "k", [np.zeros(0, np.float32)], (1,))


# -- promises, assertions, printing -----------------------------------------------------------

@pytest.mark.parametrize("value, attrs, broken", [
    ("four", "divisibility = [4]", ""),
    ("four", "divisibility = [8]", "divisibility by 8 along axis 0"),
    ("i", "contiguity = [4]", ""),
    ("i", "contiguity = [8]", "contiguity 8 along axis 0"),
    ("i", "contiguity = [4], divisibility = [8]", ""),
    ("r", "contiguity = [4], divisibility = [8]", "divisibility by 8 along axis 0"),
    ("r", "divisibility = [8]", ""),
    ("i", "divisibility = [16]", "divisibility by 16 along axis 0"),
    ("q", "constancy = [4]", ""),
    ("q", "constancy = [8]", "constancy 8 along axis 0"),
    ("n", "divisibility = [16]", "divisibility by 16 along axis 0"),
    ("n", "divisibility = [6]", ""),
    ("op", "contiguity = [8]", ""),
])
def test_hints_are_checked(value, attrs, broken):
    body = """
        %r = tile.arange() {start = 0, end = 8} : tensor<8xi32>
        %four = tile.constant() {value = 4} : tensor<8xi32>
        %q = tile.div(%r, %four) : tensor<8xi32>
        %g = tile.mul(%q, %four) : tensor<8xi32>
        %i = tile.add(%r, %g) : tensor<8xi32>
    """ + pointer("o", "r", 8, "i32")
    kind = {"n": "i32", "op": "tensor<8xptr<i32>>"}.get(value, "tensor<8xi32>")
    body += f"%h = tile.hint(%{value}) {{{attrs}}} : {kind}"
    args = [np.zeros(1, np.int32), 18]
    if broken:
        assert broken in fails("%o: ptr<i32>, %n: i32", body, args).message
    else:
        launch("%o: ptr<i32>, %n: i32", body, args)


def test_assume_and_assert():
    body = """
        %pid = tile.program_id() {axis = 0} : i32
        %c = tile.cmp(%pid, %n) {predicate = "lt"} : i1
        tile.assume(%c)
    """
    launch("%n: i32", body, [3], (3,))
    assert "program (3, 0): what this `assume` promises" in fails("%n: i32", body, [3], (4,),
                                                                  seed=1).message
    body = offsets(4) + 'tile.assert(%mask) {message = "too far"}'
    launch("%n: i32", body, [8], (2,))
    error = fails("%n: i32", body, [7], (2,))
    assert error.message == "program (1, 0): assertion failed at element (3,): too far"


def test_print_goes_program_by_program_and_marks_poison():
    lines = []
    body = offsets(2) + pointer("x", "offs", 2) + """
        %v = tile.load(%xp, %mask) : tensor<2xf32>
        tile.print(%v, %offs_pid) {prefix = "v: "}
    """
    launch("%x: ptr<f32>, %n: i32", body, [np.array([1, 2, 3], np.float32), 3], (2,),
           on_print=lines.append)
    assert sorted(lines) == ["pid (0, 0, 0) v: [1. 2.] 0", "pid (1, 0, 0) v: [3.0 ?] 1"]


@pytest.mark.parametrize("name", ["bf16", "f16", "f8e4m3", "f8e5m2", "i8"])
def test_poison_is_marked_in_tiles_of_any_type(name):
    lines = []
    body = offsets(4) + pointer("x", "offs", 4).replace("f32", name) + f"""
        %v = tile.load(%xp, %mask) : tensor<4x{name}>
        tile.print(%v)
    """
    x = np.array([1, -2, 3, 4]).astype(dtype_of(SCALARS[name]))
    launch(f"%x: ptr<{name}>, %n: i32", body, [x, 2], (1,), on_print=lines.append)
    assert lines == ["pid (0, 0, 0) [1 -2 ? ?]" if name == "i8" else "pid (0, 0, 0) [1.0 -2.0 ? ?]"]


def test_prints_before_an_error_are_shown():
    lines = []
    body = """
        %pid = tile.program_id() {axis = 0} : i32
        tile.print(%pid) {prefix = "p", hex = true}
        %v = tile.load(%o) : f32
    """
    fails("%o: ptr<f32>", body, [np.zeros(0, np.float32)], (2,), on_print=lines.append)
    assert sorted(lines) == ["pid (0, 0, 0) p 0x0", "pid (1, 0, 0) p 0x1"]
