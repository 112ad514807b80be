"""Shared memory at the lowered level: missing barriers and overlapping buffers are found."""

import numpy as np
import pytest

from tests.interp.kernels import module
from tilec.errors import InterpreterError
from tilec.interp.run import run

TYPE = "memdesc<8xi32, swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>>"
STORE_OUT = """
    %os = tile.splat(%o) : tensor<8xptr<i32>>
    %op = tile.addptr(%os, %r) : tensor<8xptr<i32>>
    tile.store(%op, %v)
"""


def launch(body, level="lowered", offsets=(0, 32), grid=(1,)):
    head = f"""
        %r = tile.arange() {{start = 0, end = 8}} : tensor<8xi32>
        %a = gpu.alloc_shared() {{offset = {offsets[0]}}} : {TYPE}
        %b = gpu.alloc_shared() {{offset = {offsets[1]}}} : {TYPE}
    """
    out = np.zeros(8, np.int32)
    run(module("%o: ptr<i32>", head + body, level=level, file="s.py"), "k", [out], grid)
    return out.tolist()


def fails(body, **options):
    with pytest.raises(InterpreterError) as error:
        launch(body, **options)
    return error.value.message


def test_a_barrier_between_write_and_read():
    body = """
        gpu.shared_store(%a, %r)
        gpu.barrier()
        %v = gpu.shared_load(%a) : tensor<8xi32>
    """ + STORE_OUT
    assert launch(body) == list(range(8))
    message = fails(body.replace("gpu.barrier()", ""))
    assert message == ("gpu.shared_load reads shared bytes 0 to 32, which gpu.shared_store at "
                       "s.py:4 writes, with no barrier between them")
    assert launch(body.replace("gpu.barrier()", ""), level="gpu") == list(range(8))


def test_write_after_read_and_write_after_write():
    body = """
        gpu.shared_store(%a, %r)
        gpu.barrier()
        %v = gpu.shared_load(%a) : tensor<8xi32>
        gpu.shared_store(%b, %v)
    """
    assert launch(body) == [0] * 8
    message = fails(body, offsets=(0, 16))
    assert "gpu.shared_store writes shared bytes 16 to 32, which gpu.shared_load" in message
    message = fails("gpu.shared_store(%a, %r)\ngpu.shared_store(%b, %r)", offsets=(64, 64))
    assert "gpu.shared_store at s.py:4 writes" in message


def test_a_buffer_that_another_one_overwrote_is_poison():
    body = """
        gpu.shared_store(%a, %r)
        gpu.barrier()
        gpu.shared_store(%b, %r)
        gpu.barrier()
        %v = gpu.shared_load(%a) : tensor<8xi32>
    """ + STORE_OUT
    assert launch(body) == list(range(8))
    assert "shared memory that nobody wrote" in fails(body, offsets=(0, 28))


LOOP = """
    %lo = tile.constant() {value = 0} : i32
    %hi = tile.constant() {value = 3} : i32
    %st = tile.constant() {value = 1} : i32
    %v = scf.for(%lo, %hi, %st, %r) {
    ^(%i: i32, %t: tensor<8xi32>):
        gpu.shared_store(%a, %t)
        gpu.barrier()
        %u = gpu.shared_load(%a) : tensor<8xi32>
        %w = tile.add(%u, %u) : tensor<8xi32>
        BARRIER
        scf.yield(%w)
    } : tensor<8xi32>
"""


def test_a_loop_meets_its_own_previous_iteration():
    assert launch(LOOP.replace("BARRIER", "gpu.barrier()") + STORE_OUT) == \
        [8 * i for i in range(8)]
    assert "gpu.shared_store writes" in fails(LOOP.replace("BARRIER", "") + STORE_OUT)


def test_barriers_count_for_the_programs_that_reach_them():
    body = """
        %pid = tile.program_id() {axis = 0} : i32
        %zero = tile.constant() {value = 0} : i32
        %c = tile.cmp(%pid, %zero) {predicate = "eq"} : i1
        gpu.shared_store(%a, %r)
        scf.if(%c) {
            gpu.barrier()
            scf.yield()
        }, {
            OTHER
            scf.yield()
        }
        %v = gpu.shared_load(%a) : tensor<8xi32>
    """
    launch(body.replace("OTHER", "gpu.barrier()"), grid=(4,))
    assert "no barrier" in fails(body.replace("OTHER", ""), grid=(4,))
    launch(body.replace("OTHER", ""), grid=(1,))


BLOCKED = "blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"


def reduce_twice(barrier):
    add = """{
        ^(%p: i32, %q: i32):
            %s = tile.add(%p, %q) : i32
            scf.yield(%s)
        }"""
    body = f"""
        %i = tile.arange() {{start = 0, end = 256}} : tensor<256xi32, {BLOCKED}>
        %x = tile.reduce(%i) {{axis = 0, offset = 0}} {add} : i32
        {barrier}
        %y = tile.reduce(%i) {{axis = 0, offset = 0}} {add.replace("%", "%z")} : i32
        %t = tile.add(%x, %y) : i32
        tile.store(%o, %t)
    """
    out = np.zeros(1, np.int32)
    run(module("%o: ptr<i32>", body, level="lowered", file="s.py"), "k", [out], (1,))
    return int(out[0])


def test_scratch_of_two_reductions_needs_a_barrier_between_them():
    assert reduce_twice("gpu.barrier()") == 255 * 256
    with pytest.raises(InterpreterError, match="tile.reduce writes shared bytes .* which "
                                               "tile.reduce at .* reads"):
        reduce_twice("")
