"""`CompiledKernel`: texts of every level, facts, runs at every level; and `tilec.compile`."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import Memory, add, arrays, from_text, scale
from tilec import knobs
from tilec.codegen import cubin
from tilec.errors import LaunchError, OutOfResources, TilecError, ToolError
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.runtime import device
from tilec.runtime import kernel as kernels
from tilec.runtime.kernel import ASM_KEYS, stable
from tilec.runtime.launch import Launcher

SIGNATURE = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
ADD = tilec.compile(add, SIGNATURE, {"BLOCK": 256})


# -- asm and facts ----------------------------------------------------------------------------

def test_asm():
    assert list(ADD.asm) == list(ASM_KEYS) and len(ADD.asm) == 8
    assert ADD.asm["source"] == add.source and ADD.asm["source"].startswith("@tilec.jit\ndef add")
    for level in ("tile", "gpu", "lowered"):
        module = parse(ADD.asm[level])
        verify(module)
        assert module.level == level and module.funcs[0].name == "add"
    assert ADD.asm["ttir"] == ADD.asm["tile"] and ADD.asm["ttgir"] == ADD.asm["gpu"]
    assert "define ptx_kernel void @add" in ADD.asm["llir"]
    assert ".visible .entry add(" in ADD.asm["ptx"]
    assert isinstance(ADD.asm["cubin"], bytes) and ADD.asm["cubin"].startswith(b"\x7fELF")
    assert "LDG.E" in ADD.asm["sass"]
    with pytest.raises(KeyError, match="did you mean `ptx`"):
        ADD.asm["ptxx"]
    assert "nothing" not in ADD.asm


def test_facts():
    assert 8 <= ADD.n_regs <= 64 and ADD.n_spills == 0 and ADD.shared == 0
    assert (ADD.name, ADD.num_warps, ADD.num_stages) == ("add", 4, 3)
    layouts = ADD.layouts()
    assert set(layouts) >= {"offs", "mask", "x", "y"}
    assert layouts["x"].startswith("blocked<{sizePerThread = [2]")
    assert repr(ADD) == ("<CompiledKernel add(x_ptr: *fp32:16, y_ptr: *fp32:16, out_ptr: *fp32:16, "
                         "n: i32, BLOCK=256) for sm_90a, 4 warps>")


def test_hashes_tell_specialisations_apart():
    def hash_of(signature=SIGNATURE, block=256, target="sm_90a", **options):
        return tilec.compile(add, signature, {"BLOCK": block}, target=target, **options).hash

    hashes = [hash_of(), hash_of(SIGNATURE | {"n": "i64"}), hash_of(SIGNATURE | {"n": "i32:16"}),
              hash_of(block=512), hash_of(target="sm_80"), hash_of(num_warps=8),
              hash_of(num_stages=2), hash_of(debug=True)]
    assert len(set(hashes)) == len(hashes) and hashes[0] == ADD.hash


def test_stable_texts():
    values = [1, True, 1.0, "1", None, (1, 2), (1, (2,)), tl.float32, "tl.fp32", add, -0.0, 0.0]
    assert len({stable(v) for v in values}) == len(values)
    assert stable(add) == f"def {add.source_key()}"
    with pytest.raises(TilecError, match="no lasting text"):
        stable(object())


# -- running ----------------------------------------------------------------------------------

@pytest.mark.parametrize("level", ["tile", "ttir", "gpu", "ttgir", "lowered", "ptx"])
def test_run_at_every_level(level):
    x, y, out = arrays(1000)
    ADD.run([x, y, out, 1000], (4,), level=level)
    assert np.array_equal(out, x + y)


@pytest.mark.parametrize("form", ["order", "with constexprs", "names", "names and constexprs"])
def test_arguments_of_a_run(form):
    x, y, out = arrays(200)
    named = {"n": np.int64(200), "out_ptr": out, "x_ptr": x, "y_ptr": y}
    args = {"order": (x, y, out, 200), "with constexprs": [x, y, out, 200, 256], "names": named,
            "names and constexprs": named | {"BLOCK": 256}}[form]
    ADD.run(args, 1)
    assert np.array_equal(out, x + y)


def test_runs_of_a_kernel_with_baked_arguments():
    kernel = from_text("@tilec.jit\ndef k(p, a, pair, none, N: tl.constexpr):\n"
                       "    tl.store(p, a + pair[0] + pair[1] + N)\n")
    p = np.zeros(1, np.int32)
    made = kernel.warmup(p, 1, (2, 1), None, N=10)
    assert list(made.signature) == ["p", "pair"]
    assert repr(made).startswith("<CompiledKernel k(p: *i32")
    for args in ((p, (2, 1)), (p, 1, (2, 1), None), (p, 1, (2, 1), None, 10),
                 {"p": p, "pair": (2, 1)}):
        p[:] = 0
        made.run(args, 1, level="ptx")
        assert p[0] == 14
    with pytest.raises(LaunchError, match="was compiled for a = 1, not 2"):
        made.run((p, 2, (2, 1), None), 1)
    with pytest.raises(LaunchError, match="argument `pair` is 3, expected 2 values"):
        made.run((p, 3), 1)
    with pytest.raises(LaunchError, match="was compiled for none = None, not ndarray of shape"):
        made.run((p, 1, (2, 1), p), 1)


ERRORS = {
    "few": (lambda: ADD.run([1, 2], 1), "got 2 arguments, expected 4: x_ptr, y_ptr, out_ptr, n"),
    "missing": (lambda: ADD.run({"n": 3}, 1), "needs the arguments x_ptr, y_ptr, out_ptr"),
    "unknown": (lambda: ADD.run({"x_pt": 3}, 1), "no parameter `x_pt`"),
    "constant": (lambda: ADD.run([*arrays(), 9, 128], 1), "compiled for BLOCK = 256, not 128"),
    "grid": (lambda: ADD.run([*arrays(), 9], (1.5,)), r"grid is \(1.5,\)"),
    "level": (lambda: ADD.run([*arrays(), 9], 1, level="gpus"), "level `gpus`"),
    "dtype": (lambda: ADD.run([*arrays(dtype=np.float64), 9], 1),
              "`x_ptr`: it holds fp64, expected fp32"),
    "scalar": (lambda: ADD.run([*arrays(), 2.5], 1),
               "`n`: it is 2.5, where the type i32 takes an integer"),
    "divisor": (lambda: ADD.run([np.zeros(101, np.float32)[1:], *arrays()[1:], 9], 1),
                "not a multiple of 16"),
    "llir": (lambda: ADD.run([*arrays(), 9], 1, level="llir"), "cannot run at level `llir`"),
    "device": (lambda: ADD.run([*arrays(), 9], 1, level="cubin"), "runs on device arrays of one"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_of_a_run(case):
    run, message = ERRORS[case]
    with pytest.raises(LaunchError, match=message):
        run()


@pytest.mark.parametrize("early", [False, True])
def test_run_on_a_device(monkeypatch, early):
    memory = Memory(monkeypatch)
    launched = []

    class Fake(Launcher):
        def __init__(self, function, types, device_index, maps, early, instead, name, num_ctas):
            launched.append((function, types, device_index, early, name, num_ctas))

        def launch(self, *args):
            launched.append(args)

    loaded = type("Loaded", (), {"function": "f"})
    monkeypatch.setattr(kernels, "Launcher", Fake)
    monkeypatch.setattr(device, "load", lambda image, name, shared, index: launched.append(
        (name, shared, index)) or loaded)
    monkeypatch.setattr(device, "synchronize", lambda index: launched.append("wait"))
    made = tilec.compile(add, SIGNATURE, {"BLOCK": 512}, launch_pdl=early, num_ctas=1 + early)
    dx, dy, dout = (memory.array(a) for a in arrays(600))
    for _ in range(2):
        made.run([dx, dy, dout, 600], 2, level="cubin")
    call = ((2, 1, 1), 128, 0, 0, [0x1000, 0x101000, 0x201000, 600])
    made_of = ("f", ["*fp32"] * 3 + ["i32"], 0, early, "add", 1 + early)
    assert launched == [("add", 0, 0), made_of, call, "wait", call, "wait"]


def test_names_that_ptx_cannot_spell(monkeypatch):
    kernel = from_text("@tilec.jit\ndef größe(p):\n    tl.store(p, 4.0)\n")
    p = np.zeros(1, np.float32)
    made = kernel[1](p)
    assert p[0] == 4 and made.name == "größe"
    p[:] = 0
    made.run([p], 1, level="ptx")
    assert p[0] == 4 and made.n_regs > 0
    loads = []
    monkeypatch.setattr(device, "load", lambda image, name, shared, index: loads.append(name) or
                        type("Loaded", (), {"function": None}))
    monkeypatch.setattr(kernels, "Launcher", lambda *a, **k: None)
    made.launcher(0)
    assert f".entry {loads[0]}(" in made.asm["ptx"]


def test_seed_reaches_the_interpreter():
    kernel = from_text("@tilec.jit\ndef k(p):\n    tl.store(p, tl.program_id(0))\n")
    p = np.zeros(1, np.int32)
    made = kernel.warmup(np.int32)
    last = set()
    for seed in range(8):
        made.run([p], 5, seed=seed)
        last.add(int(p[0]))
    assert len(last) > 1


# -- without nvJitLink ------------------------------------------------------------------------

def test_compiling_stops_at_ptx_without_nvjitlink(monkeypatch):
    def missing():
        raise ToolError("nvJitLink is not available")

    monkeypatch.setattr(cubin, "_nvjitlink", missing)
    made = tilec.compile(scale, {"x_ptr": "*fp32", "out_ptr": "*fp32", "factor": "fp32"})
    assert ".entry scale(" in made.asm["ptx"] and made.shared == 0
    with pytest.raises(ToolError, match="nvJitLink is not available"):
        made.asm["cubin"]


# -- tilec.compile ----------------------------------------------------------------------------

def test_compile_defaults(monkeypatch):
    monkeypatch.delenv("TILEC_TARGET", raising=False)
    made = tilec.compile(scale, {"x_ptr": "*fp32", "out_ptr": "*fp32", "factor": "fp32"})
    assert made.target.name == "sm_90a" and made.constexprs == {"N": 32}
    with knobs.scope(target="sm_80"):
        made = tilec.compile(scale, {"x_ptr": tl.pointer_type(tl.float32), "out_ptr": "*fp32",
                                     "factor": tl.float32}, {"N": tl.constexpr(64)}, num_warps=1)
    assert made.target.name == "sm_80" and ".reqntid 32" in made.asm["ptx"]
    assert "tensor<64xf32>" in made.asm["tile"]


def test_compile_takes_numpy_values():
    kernel = from_text("@tilec.jit\ndef k(p, N: tl.constexpr, D: tl.constexpr):\n"
                       "    tl.store(p + tl.arange(0, N), tl.zeros((N,), D))\n")
    made = tilec.compile(kernel, {"p": "*fp16"},
                         {"N": np.int64(16), "D": np.float16}, num_warps=np.int32(1))
    assert made.constexprs == {"N": 16, "D": tl.float16} and made.num_warps == 1
    again = tilec.compile(kernel, {"p": "*fp16"}, {"N": 16, "D": tl.float16}, num_warps=1)
    assert again.hash == made.hash and "tensor<16xf16>" in made.asm["tile"]


def test_constants_without_a_lasting_text():
    kernel = from_text("@tilec.jit\ndef k(p, N: tl.constexpr):\n    pass\n")
    for value in (object(), lambda x: x, (1, object())):
        with pytest.raises(LaunchError, match="has no lasting text") as caught:
            kernel[1](np.zeros(1), value)
        assert caught.value.loc == kernel.def_location


def test_compile_marks_divisibility():
    text = tilec.compile(add, {"x_ptr": "*fp32:16", "y_ptr": "*fp32", "out_ptr": "*fp32:32",
                               "n": "i32:16"}, {"BLOCK": 64}).asm["tile"]
    assert "%x_ptr: ptr<f32> {divisibility = 16}, %y_ptr: ptr<f32>, " in text
    assert "%out_ptr: ptr<f32> {divisibility = 32}, %n: i32 {divisibility = 16}" in text


COMPILE_ERRORS = {
    "no kernel": (lambda: tilec.compile(len, {}), "needs a @tilec.jit function"),
    "unknown": (lambda: tilec.compile(add, SIGNATURE | {"m": "i32"}), "no parameter `m`"),
    "unknown constant": (lambda: tilec.compile(add, SIGNATURE, {"BLOK": 1}), "`BLOK`"),
    "missing": (lambda: tilec.compile(add, {"x_ptr": "*fp32"}, {"BLOCK": 1}), "`y_ptr`"),
    "missing constant": (lambda: tilec.compile(add, SIGNATURE), "`BLOCK`"),
    "constexpr as type": (lambda: tilec.compile(add, SIGNATURE | {"BLOCK": "i32"}), "`BLOCK` is a"),
    "both": (lambda: tilec.compile(add, SIGNATURE, {"n": 3, "BLOCK": 64}), "`n`"),
    "type": (lambda: tilec.compile(add, SIGNATURE | {"n": "i33"}, {"BLOCK": 64}), "'i33'"),
    "option": (lambda: tilec.compile(add, SIGNATURE, {"BLOCK": 64}, num_warp=2), "`num_warp`"),
    "num_warps": (lambda: tilec.compile(add, SIGNATURE, {"BLOCK": 64}, num_warps=3), "num_warps"),
    "target": (lambda: tilec.compile(add, SIGNATURE, {"BLOCK": 64}, target="sm_91"), "`sm_91`"),
}


@pytest.mark.parametrize("case", COMPILE_ERRORS)
def test_errors_of_compile(case):
    compile, message = COMPILE_ERRORS[case]
    with pytest.raises(TilecError, match=message):
        compile()


def test_too_much_shared_memory():
    kernel = from_text("""
@tilec.jit
def k(x, out, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + i, tl.trans(tl.load(x + i)))
""")
    with pytest.raises(OutOfResources, match="shared memory") as caught:
        tilec.compile(kernel, {"x": "*fp64:16", "out": "*fp64:16"}, {"N": 256}, target="sm_80")
    assert caught.value.limit == 166912 < caught.value.required


def test_helpers_of_the_package():
    assert [tilec.cdiv(a, 4) for a in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [tilec.next_power_of_2(a) for a in (0, 1, 2, 3, 1000, 1024)] == [1, 1, 2, 4, 1024, 1024]
