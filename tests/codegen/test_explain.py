"""Remarks on lowered code, and the verdict on resources before code generation."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.frontend.harness import from_text
from tilec import compiler, knobs
from tilec.codegen.resources import check_resources, peak_registers
from tilec.compiler import compile_module
from tilec.errors import OutOfResources
from tilec.frontend.function import function
from tilec.ir.parser import parse
from tilec.ir.remarks import Remark, recorded, recording, remark
from tilec.runtime import device
from tilec.runtime.aot import specialized
from tilec.target import Target

SM90 = Target.parse("sm_90a")


def remarks_on(fn, signature, constexprs=None, kind="", **options):
    kernel = specialized(fn, signature, constexprs, "sm_90a", **options)
    with recording() as found:
        compile_module(kernel.build, SM90, kernel.options, stop_at="llir")
    return [r for r in found if r.kind == kind or not kind]


def copy(load="x + i", store="out + i", mask="", n=1024):
    masked = f", mask={mask}" if mask else ""
    return from_text(f"@jit\ndef k(x, out, n):\n    i = tl.arange(0, {n})\n"
                     f"    v = tl.load({load}{masked})\n    tl.store({store}, v{masked})\n")


ALIGNED = {"x": "*fp32:16", "out": "*fp32:16", "n": "i32:16"}
ACCESSES = {
    "full": (copy(), ALIGNED, 16, 2, "size", ""),
    "mask": (copy(mask="i < n"), ALIGNED, 16, 2, "size", ""),
    "any mask": (copy(mask="i < n"), ALIGNED | {"n": "i32"}, 4, 8, "mask", "at each element"),
    "alignment": (copy(), ALIGNED | {"x": "*fp32"}, 4, 8, "alignment", "multiples of 4 bytes"),
    "offset": (copy("x + 2 + i"), ALIGNED, 8, 4, "alignment", "multiples of 8 bytes"),
    "stride": (copy("x + 2 * i"), ALIGNED, 4, 8, "contiguity", "adjacent in memory"),
    "groups": (copy("x + i // 4 * 8 + i % 4"), ALIGNED, 16, 2, "size", ""),
    "pairs": (copy("x + i // 2 * 4 + i % 2"), ALIGNED, 8, 4, "contiguity", "runs of 2"),
    "small": (copy(n=256), ALIGNED, 8, 1, "layout", "a thread holds 2 neighbours"),
    "odd": (copy(n=999), ALIGNED, 4, 8, "extent", "odd extent"),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_width_of_a_load(name):
    fn, signature, size, count, limit, why = ACCESSES[name]
    load = remarks_on(fn, signature, kind="access")[0]
    assert (load.data["access"], load.data["bytes"], load.data["limit"]) == ("load", size, limit)
    assert load.data["count"] == count
    assert load.loc.line == 4 and f"{size} bytes an access" in load.message and why in load.message


def test_scalars_and_loops():
    fn = from_text("@jit\ndef k(x, out, n):\n    for i in range(n):\n"
                   "        tl.store(out + i, tl.load(x + i))\n")
    load, store = remarks_on(fn, ALIGNED, kind="access")
    assert load.data == {"access": "load", "bytes": 4, "count": 1, "limit": "scalar", "loop": 3}
    assert store.data["access"] == "store"


@function
def transpose(x, out, N: tl.constexpr, REPEAT: tl.constexpr):
    i = tl.arange(0, N)
    for _ in range(REPEAT):
        tile = tl.load(x + i[:, None] * N + i[None, :])
        tl.store(out + i[:, None] * N + i[None, :], tile.T)


def test_conversions_and_shared_memory():
    signature = {"x": "*fp32:16", "out": "*fp32:16"}
    found = remarks_on(transpose, signature, {"N": 64, "REPEAT": 9}, num_warps=4)
    (conversion,) = [r for r in found if r.kind == "conversion"]
    line = transpose.def_location.line + 4
    assert conversion.loc.line == line and conversion.data["loop"] == line - 2
    assert conversion.data["how"] == "shared" and conversion.data["bytes"] == 16384
    # 16 KiB out and in by 4 warps, 128 bytes a wavefront.
    assert conversion.data["wavefronts"] == 2 * 16384 // 4 // 128
    assert conversion.data["conflicts"] == 0 and "each turn" in conversion.message
    (buffer,) = [r for r in found if r.kind == "shared"]
    assert buffer.data == {"bytes": 16384, "offset": 0, "stages": 1, "use": "gpu.convert_layout"}


def test_nothing_is_recorded_unless_asked():
    assert not recorded()
    remark(None, "kind", "lost")
    with recording() as outer:
        remark(None, "kind", "outer", n=1)
        with recording() as inner:
            remark(None, "kind", "inner")
    assert outer == [Remark("kind", "outer", None, {"n": 1})] and inner[0].message == "inner"
    assert not recorded()


def test_text_and_json(capsys, monkeypatch):
    monkeypatch.setattr(device, "gpu_available", lambda: False)
    with knobs.scope(remarks=1):
        tilec.compile(transpose, {"x": "*fp32:16", "out": "*fp32:16"}, {"N": 64, "REPEAT": 1})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tilec: remarks on @transpose"
    at = f"{transpose.file}:{transpose.def_location.line + 3}:16: access: "
    assert lines[1] == at + "load of `tile`, f32[64, 64]: 16 bytes an access, 8 a thread"
    assert lines[-1].startswith("transpose: registers: ") and "0 bytes of spill" in lines[-1]
    with knobs.scope(remarks="json"):
        tilec.compile(transpose, {"x": "*fp32:16", "out": "*fp32:16"}, {"N": 64, "REPEAT": 1})
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {r["kind"] for r in rows} == {"access", "conversion", "shared", "registers"}
    assert rows[0]["kernel"] == "transpose" and rows[0]["file"] == transpose.file
    assert rows[0]["data"]["bytes"] == 16 and rows[-1]["data"]["spills"] == 0
    assert len(rows) == len(lines) - 1


def test_launches_remark_too(capsys, monkeypatch):
    monkeypatch.setattr(device, "gpu_available", lambda: False)
    launched = tilec.jit(transpose.fn)
    x, out = np.ones((8, 8), "f4"), np.zeros((8, 8), "f4")
    with knobs.scope(remarks="1"):
        launched[(1,)](x, out, 8, 1)
        launched[(1,)](x, out, 8, 1)
    assert capsys.readouterr().err.count("tilec: remarks on @transpose") == 1


# -- the verdict ----------------------------------------------------------------------------------

def never(*_):
    raise AssertionError("code generation was entered")


def test_shared_memory_is_refused_before_codegen(monkeypatch):
    monkeypatch.setattr(compiler, "to_llir", never)
    text = """
#b = blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
module attributes {level = "gpu", num_warps = 4, target = "sm_90a"} {
  func @k() {
    %x = tile.constant() {value = 0.0} : tensor<8192xf32, #b>
    %ring = gpu.alloc_shared() : memdesc<7x8192xf32, #s> loc("k.py":7:5)
    %small = gpu.alloc_shared() : memdesc<8192xf32, #s> loc("k.py":9:5)
    gpu.shared_store(%small, %x)
    %i = tile.constant() {value = 0} : i32
    %one = gpu.memdesc_index(%ring, %i) : memdesc<8192xf32, #s>
    gpu.shared_store(%one, %x)
    %y = gpu.shared_load(%small) : tensor<8192xf32, #b>
    tile.print(%y)
    func.return()
  }
}
"""
    (index,) = [i for i, s in enumerate(compiler.PIPELINE) if s.run.name == "allocate_shared"]
    with pytest.raises(OutOfResources) as caught:
        list(compiler.stages(parse(text), SM90, start=index))
    error = caught.value
    assert (error.resource, error.required, error.limit) == ("shared memory", 262144, 232448)
    assert error.loc.line == 7
    rows = [line.split() for line in error.message.splitlines()[1:]]
    assert rows == [["bytes", "stages", "buffer", "line"],
                    ["229376", "7", "`ring`,", "f32[7,", "8192]", "k.py:7:5"],
                    ["32768", "1", "`small`,", "f32[8192]", "k.py:9:5"]]


def module_text(warps, shared=0):
    return f"""
#b = blocked<{{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [{warps}], order = [0]}}>
module attributes {{level = "lowered", num_warps = {warps}, target = "sm_90a",
                     shared = {shared}}} {{
  func @k(%p: ptr<f32>) {{
    %q = tile.splat(%p) : tensor<65536xptr<f32>, #b>
    %x = tile.load(%q) : tensor<65536xf32, #b>
    %y = tile.load(%q) : tensor<65536xf32, #b> loc("k.py":5:5)
    %z = tile.add(%x, %y) : tensor<65536xf32, #b>
    tile.store(%q, %z)
    func.return()
  }}
}}
"""


@pytest.mark.parametrize("warps, shared, resource, required", [
    (64, 0, "threads", 2048), (4, 300000, "shared memory", 300000)])
def test_lowered_modules_are_judged_too(warps, shared, resource, required, monkeypatch):
    monkeypatch.setattr(compiler, "to_llir", never)
    with pytest.raises(OutOfResources) as caught:
        list(compiler.stages(parse(module_text(warps, shared)), SM90,
                             start=len(compiler.PIPELINE)))
    assert (caught.value.resource, caught.value.required) == (resource, required)


def test_registers_are_estimated():
    module = parse(module_text(4))
    most, op, _ = peak_registers(module.funcs[0])
    # Two tiles of 512 registers are read; their sum takes over those of either.
    assert (most, op.loc.line) == (2 * 512, 5)
    with recording() as found:
        check_resources(parse(module_text(8)), SM90)
    (pressure,) = found
    assert pressure.kind == "pressure" and pressure.data == {"registers": 512, "limit": 255}
    assert pressure.message == ("tiles hold about 512 registers a thread here, of 255, and may "
                                "spill; smaller tiles or more warps hold fewer")
    with recording() as found:
        check_resources(parse(module_text(32)), SM90)
    assert found[0].data == {"registers": 128, "limit": 64}


def test_too_many_registers_are_refused():
    with pytest.raises(OutOfResources) as caught:
        check_resources(parse(module_text(4)), SM90)
    error = caught.value
    assert (error.resource, error.required) == ("registers a thread", 2 * 512)
    assert error.loc.line == 5 and "warps" in error.advice
    lines = error.message.splitlines()[2:]
    assert len(lines) == 2 and all(line.split()[:2] == ["512", "512"] for line in lines)


PRESSED = """
#b = blocked<{sizePerThread = [1, 4], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1],
              order = [1, 0]}>
#r = slice<{parent = #b, dim = 1}>
module attributes {level = "lowered", num_warps = 4, target = "sm_90a"} {
  func @k(%p: ptr<f32>, %n: i32) {
    %o = tile.constant() {value = 0} : i32
    %e = tile.constant() {value = 1} : i32
    %q = tile.splat(%p) : tensor<64x128xptr<f32>, #b>
    %s = tile.splat(%p) : tensor<64xptr<f32>, #r>
    %x = tile.load(%q) : tensor<64x128xf32, #b>
    scf.for(%o, %n, %e) { ^(%i: i32):
      %v = tile.load(%s) : tensor<64xf32, #r>
      %c = tile.expand_dims(%v) {axis = 1} : tensor<64x1xf32, #b>
      %w = tile.broadcast(%c) : tensor<64x128xf32, #b>
      %z = tile.mul(%x, %w) : tensor<64x128xf32, #b>
      tile.store(%q, %z)
      scf.yield()
    }
    func.return()
  }
}
"""


def test_registers_of_loops_and_of_what_only_rearranges():
    """64 registers of x live through the loop, beside the product; v's 16 are those of w, too."""
    most, op, _ = peak_registers(parse(PRESSED).funcs[0])
    assert (most, op.result.name) == (64 + 64, "z")


def test_small_kernels_press_nothing():
    signature = {"x": "*fp32:16", "out": "*fp32:16"}
    assert not remarks_on(transpose, signature, {"N": 32, "REPEAT": 1}, kind="pressure")


@function
def matmul(a, b, c, K, B: tl.constexpr):
    x = tl.make_block_ptr(a, (B, K), (K, 1), (0, 0), (B, 64), (1, 0))
    y = tl.make_block_ptr(b, (K, B), (B, 1), (0, 0), (64, B), (1, 0))
    acc = tl.zeros((B, B), tl.float32)
    for _ in range(0, K, 64):
        acc = tl.dot(tl.load(x), tl.load(y), acc)
        x, y = x.advance((0, 64)), y.advance((64, 0))
    i = tl.arange(0, B)
    tl.store(c + i[:, None] * B + i[None, :], acc)


def test_too_many_stages_are_refused_before_codegen(monkeypatch):
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "K": "i32:16"}
    found = remarks_on(matmul, signature, {"B": 128}, num_stages=4, find_boxes=False)
    buffers = [r.data for r in found if r.data.get("use") == "buffer"]
    assert [(b["bytes"], b["stages"]) for b in buffers] == [(4 * 16384, 4)] * 2
    assert {r.kind for r in found} >= {"access", "dot", "pipeline"}
    monkeypatch.setattr(compiler, "to_llir", never)
    with pytest.raises(OutOfResources) as caught:
        remarks_on(matmul, signature, {"B": 128}, num_stages=8, find_boxes=False)
    rows = [line.split() for line in caught.value.message.splitlines()[2:4]]
    assert [row[:2] for row in rows] == [["131072", "8"]] * 2
    assert caught.value.loc.file == __file__ and f"{__file__}:" in rows[0][-1]
