"""Mistakes at the explicit level: the whole error, its caret and its help."""

from __future__ import annotations

import pytest

import tilec.language.gpu as tlg
from tests.frontend.harness import from_text
from tilec.errors import CompilationError
from tilec.frontend.build import build_module

SPECS = {"a": "tensordesc<fp16[64, 64]>:16", "p": "*fp16", "n": "i32"}
BEFORE = """@jit
def step(k, blocks, carry):
    return carry + 1
@jit
def silent(k, blocks, carry):
    tl.device_print("k", k)
@jit
def narrow(k, blocks, carry):
    return carry.to(tl.float16)
@jit
def short(k, blocks):
    return k
@jit
def hasty(k, blocks, carry):
    return tlg.wgmma(blocks[0], blocks[0], carry)
@jit
def late(k, blocks, carry):
    return tlg.wgmma(blocks[0], blocks[0], tlg.wgmma_wait(0, carry))
@jit
def origin(k):
    return ([0, 0],)
@jit
def flat(k):
    return [0, 0]
@jit
def twice(k):
    return [0, 0], [0, 0]
@jit
def finish(p, acc):
    acc = tlg.wgmma_wait(0, acc)
    tl.store(p, tl.sum(acc))
    return acc
@jit
def role(p, n):
    tl.store(p, n)
@jit
def kernel(a, p, n):
    b = tlg.alloc_shared((64, 64), tl.float16)
    acc = tl.zeros((64, 64), tl.float32)
    ring = tlg.make_ring((a,), 2)
"""
CARRY = "expected the next carry, like the fp32[64, 64] tile that it is given"
PLACES = "return a tuple of the offsets in each descriptor, as ([i, k], [k, j]), or ([i, k],) " \
    "for one"


def pipeline(arguments):
    return f"tlg.emit_pipeline({arguments})"


def refuse(body, num_warps=4):
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    with pytest.raises(CompilationError) as caught:
        build_module(from_text(BEFORE + indented, tlg=tlg), SPECS, {}, target="sm_90a",
                     num_warps=num_warps, options={"num_ctas": 2})
    return caught.value


# the kernel's last lines; the text under the caret; the message; the help
CASES = {
    "a waited product in a loop": (
        "for k in range(n):\n    tlg.wgmma_wait(0, tlg.wgmma(b, b, acc))",
        "tlg.wgmma_wait(0, tlg.wgmma(b, b, acc))", "the result of this product is dropped",
        "write `acc = tlg.wgmma_wait(...)`"),
    "a product": ("tlg.wgmma(b, b, acc)", "tlg.wgmma(b, b, acc)",
                  "the result of this product is dropped", "write `acc = tlg.wgmma(...)`"),
    "two products": (
        "x, y = tlg.wgmma(b, b, acc), tlg.wgmma(b, b, acc)\ntlg.wgmma_wait(0, x, y)",
        "tlg.wgmma_wait(0, x, y)", "the result of this product is dropped",
        "write `x, y = tlg.wgmma_wait(...)`"),
    "a function's product": (
        "hasty(0, (b,), acc)", "hasty(0, (b,), acc)", "the result of this product is dropped",
        "write `acc = hasty(...)`"),
    "an operator": (
        "acc = tlg.wgmma(b, b, acc)\nx = acc + 1", "acc + 1",
        "`+`: uses the accumulator `acc`, whose product no tlg.wgmma_wait has covered",
        "wait before: `acc = tlg.wgmma_wait(0, acc)`"),
    "a pipeline without carry": (
        pipeline("silent, origin, n, (a,), ring, acc"),
        pipeline("silent, origin, n, (a,), ring, acc"),
        f"tlg.emit_pipeline: `silent` returns nothing, {CARRY}", "end it with `return carry`"),
    "another carry": (
        pipeline("narrow, origin, n, (a,), ring, acc"),
        pipeline("narrow, origin, n, (a,), ring, acc"),
        f"tlg.emit_pipeline: `narrow` returns fp16[64, 64] tile, {CARRY}",
        "end it with `return carry`"),
    "fewer parameters": (
        pipeline("short, origin, n, (a,), ring, acc"),
        pipeline("short, origin, n, (a,), ring, acc"),
        "tlg.emit_pipeline: `short` is called as short(k, blocks, carry): too many positional "
        "arguments", "write `def short(k, blocks, carry)`"),
    "args for one of two": (
        pipeline("step, origin, n, (a,), ring, acc, (p,)"),
        pipeline("step, origin, n, (a,), ring, acc, (p,)"),
        "tlg.emit_pipeline: `origin` is called as origin(k, *args): too many positional arguments",
        "write `def origin(k, *args)`"),
    "a product in flight": (
        pipeline("hasty, origin, n, (a,), ring, acc"),
        pipeline("hasty, origin, n, (a,), ring, acc"),
        "tlg.emit_pipeline: `hasty` returns a product that it has not waited for, whose blocks the "
        "next steps replace", "write `acc = tlg.wgmma_wait(1, acc)` in it, and "
        "`tlg.wgmma_wait(0, acc)` after the pipeline"),
    "offsets of no block": (
        pipeline("step, flat, n, (a,), ring, acc"), pipeline("step, flat, n, (a,), ring, acc"),
        "tlg.emit_pipeline: `flat` returns (0, 0) (tuple), expected offsets of blocks of 2 "
        "dimensions", PLACES),
    "offsets of two blocks": (
        pipeline("step, twice, n, (a,), ring, acc"), pipeline("step, twice, n, (a,), ring, acc"),
        "tlg.emit_pipeline: `twice` returns ((0, 0), (0, 0)) (tuple), expected offsets of blocks "
        "of 2 dimensions", PLACES),
    "another ring": (
        pipeline("step, origin, n, (a, a), ring, acc"),
        pipeline("step, origin, n, (a, a), ring, acc"),
        "tlg.emit_pipeline: the ring is for other descriptors",
        "give the tuple of descriptors that tlg.make_ring was given"),
    "no ring": (
        pipeline("step, origin, n, (a,), n, acc"), pipeline("step, origin, n, (a,), n, acc"),
        "tlg.emit_pipeline: found int32 scalar, expected a ring of buffers",
        "make it by tlg.make_ring, before all loops"),
    "a pointer among descriptors": (
        pipeline("step, origin, n, (p,), ring, acc"), pipeline("step, origin, n, (p,), ring, acc"),
        "tlg.emit_pipeline: found (<pointer<fp16> scalar>,) (tuple), expected a tuple of "
        "descriptors",
        "write (a, b), or (a,) for one"),
    "a tile of one thread": (
        "if tlg.elect():\n    x = a.load([0, 0])", "a.load([0, 0])",
        "desc.load: needs more than one thread, and stands in a tlg.elect",
        "move it out; one thread computes with scalars, deals with mbarriers and begins copies by "
        "tlg.tma.load"),
    "an index": (
        "two = tlg.alloc_shared((8,), tl.float16, stages=2)\ntwo[2].store(1)", "two[2]",
        "the index 2 into fp16[8] buffer array of 2 is not in 0 to 1",
        "slots are used in turn: `i % 2`; or allocate more by stages=n"),
    "odd registers": (
        "tlg.warp_specialize([(role, (p, n))], num_warps=[4], regs=(25,))",
        "tlg.warp_specialize([(role, (p, n))], num_warps=[4], regs=(25,))",
        "tlg.warp_specialize: registers is 25 for 4 warps, expected a multiple of 8 from 24 to "
        "256, for whole warpgroups", "give it 24 registers"),
    "a store elsewhere": (
        "b.at(0).store(acc)", "b.at(0).store(acc)",
        "cannot store into a remote fp16[64, 64] buffer: there are no stores to other programs",
        "store into the program's own buffer, and let the others load it, by "
        "buffer.at(rank).load() after a tlg.cluster_barrier"),
    "an offset too few": (
        "tlg.tma.load(a, [n], b, tlg.mbarrier())", "tlg.tma.load(a, [n], b, tlg.mbarrier())",
        "the offsets of tlg.tma.load: found 1, expected 2 integers in a tuple",
        "the descriptor's blocks are [64, 64]: write [i, j], an offset for each dimension"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_whole_error(name):
    body, under, message, advice = CASES[name]
    error = refuse(body)
    assert (error.message, error.advice) == (message, advice)
    _, line, caret, help_line = str(error).splitlines()
    assert line[caret.index("^"):caret.rindex("^") + 1] == under
    assert help_line == f"  help: {advice}"


def test_an_error_inside_an_authors_step_shows_the_call_of_the_pipeline_alone():
    error = refuse(pipeline("step, origin, n, (a,), ring, None"))
    shown = str(error)
    assert error.loc.line == 3 and "return carry + 1" in shown
    assert shown.count("called from") == 1 and "tlg.emit_pipeline(step" in shown
    assert "pipeline.py" not in shown


def test_a_step_may_wait_for_the_product_before():
    body = "acc, ring = " + pipeline("late, origin, n, (a,), ring, acc") + \
        "\nacc = tlg.wgmma_wait(0, acc)\ntl.store(p, tl.sum(acc))"
    text = BEFORE + "".join(f"    {line}\n" for line in body.splitlines())
    build_module(from_text(text, tlg=tlg), SPECS, {}, target="sm_90a")


def test_a_product_that_a_function_has_used_may_be_dropped():
    text = BEFORE + "    finish(p, tlg.wgmma(b, b, acc))\n"
    build_module(from_text(text, tlg=tlg), SPECS, {}, target="sm_90a")
