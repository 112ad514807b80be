"""wgmma in all its forms, in the simulator and in the interpreter, against numpy; what ptxas makes
of the hand-written kernels."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
from tests.support.fixtures import FOLDER, fixture
from tilec.codegen import ptxas
from tilec.codegen.lower import to_llir
from tilec.compiler import compile_from
from tilec.errors import CompilationError
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.runtime.text import TextKernel
from tilec.target import Target

DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8, "u8": np.uint8,
    "i32": np.int32, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
SM_90A = Target.parse("sm_90a")


def product(element: str = "bf16", total: str = "f32", m: int = 64, n: int = 64, k: int = 64,
            swizzle: tuple[int, int] = (128, 128), a: str = "k", b: str = "n",
            instruction: int = 0, warps: int = 4) -> Module:
    """c = a @ b, through TMA. a: "k" or "m", the dimension that is contiguous in shared memory, or
    "registers"; b: "n" or "k"."""
    bits = 8 * np.dtype(DTYPES[element]).itemsize
    wide = 8 * np.dtype(DTYPES[total]).itemsize
    at, bt = ((k, m) if a == "m" else (m, k)), ((n, k) if b == "k" else (k, n))

    def shared(s: int, turned: bool, width: int) -> str:
        return f"nvmma_shared<{{swizzleBytes = {s}, transposed = {str(turned).lower()}, " \
            f"elementBits = {width}}}>"

    def views(name: str, t: tuple[int, int], s: int, turn: bool) -> str:
        if not turn:
            return ""
        return f"%{name}v = gpu.memdesc_trans(%{name}buf) {{order = [1, 0]}} : " \
            f"memdesc<{t[1]}x{t[0]}x{element}, {shared(s, True, bits)}>"

    left, right = ("%av" if a == "m" else "%abuf"), ("%bv" if b == "k" else "%bbuf")
    load = ""
    if a == "registers":
        left = "%aregs"
        load = f"%aregs = gpu.shared_load(%abuf) : tensor<{m}x{k}x{element}, #da>"
    mma = f"nvidia_mma<{{version = 3, warpsPerCTA = [{warps}, 1], " \
        f"instrShape = [64, {instruction or n}]}}>"
    size = (m + n) * k * bits // 8
    zero = 0 if total == "i32" else 0.0
    text = f"""
#as = {shared(swizzle[0], False, bits)}
#bs = {shared(swizzle[1], False, bits)}
#cs = {shared(128 if n * wide >= 1024 and n * wide % 1024 == 0 else 32, False, wide)}
#bar = swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}}>
#mma = {mma}
#da = dot_operand<{{parent = #mma, opIndex = 0, kWidth = {max(1, 32 // bits)}}}>
module attributes {{level = "gpu", num_warps = {warps}, target = "sm_90a"}} {{
  func @product(%amap: tensormap<{at[0]}x{at[1]}x{element}, #as>,
                %bmap: tensormap<{bt[0]}x{bt[1]}x{element}, #bs>,
                %cmap: tensormap<{m}x{n}x{total}, #cs>) {{
    %c0 = tile.constant() {{value = 0}} : i32
    %zero = tile.constant() {{value = {zero}}} : tensor<{m}x{n}x{total}, #mma>
    %abuf = gpu.alloc_shared() : memdesc<{at[0]}x{at[1]}x{element}, #as>
    %bbuf = gpu.alloc_shared() : memdesc<{bt[0]}x{bt[1]}x{element}, #bs>
    %cbuf = gpu.alloc_shared() : memdesc<{m}x{n}x{total}, #cs>
    %bar = gpu.alloc_shared() : memdesc<1xi64, #bar>
    gpu.elect() {{
      gpu.mbarrier_init(%bar)
      gpu.mbarrier_expect(%bar) {{bytes = {size}}}
      gpu.tma_load(%amap, %abuf, %bar, %c0, %c0)
      gpu.tma_load(%bmap, %bbuf, %bar, %c0, %c0)
      scf.yield()
    }}
    gpu.barrier()
    gpu.mbarrier_wait(%bar, %c0)
    {views("a", at, swizzle[0], a == "m")}
    {views("b", bt, swizzle[1], b == "k")}
    {load}
    %begun = gpu.wgmma({left}, {right}, %zero) : tensor<{m}x{n}x{total}, #mma>
    %sum = gpu.wgmma_wait(%begun) : tensor<{m}x{n}x{total}, #mma>
    gpu.shared_store(%cbuf, %sum)
    gpu.fence_async()
    gpu.barrier()
    gpu.tma_store(%cmap, %cbuf, %c0, %c0)
    gpu.tma_store_commit()
    gpu.tma_store_wait() {{read = true}}
    func.return()
  }}
}}
"""
    module = parse(text)
    verify(module)
    return module


def values(rng: np.random.Generator, element: str, shape: tuple[int, int]) -> np.ndarray:
    if element in ("i8", "u8"):
        return rng.integers(-9 if element == "i8" else 0, 10, shape).astype(DTYPES[element])
    # A few mantissa bits: products and their sums are exact in f16 and tf32 too.
    return (rng.integers(-4, 5, shape) / 2).astype(DTYPES[element])


FORMS: dict[str, dict[str, Any]] = {
    "bf16": {}, "f16": {"element": "f16"}, "f16 sums": {"element": "f16", "total": "f16"},
    "tf32": {"element": "f32", "k": 32, "b": "k"},
    "e4m3": {"element": "f8e4m3", "k": 128, "b": "k"},
    "e5m2 f16 sums": {"element": "f8e5m2", "total": "f16", "k": 128, "b": "k"},
    "s8": {"element": "i8", "total": "i32", "k": 128, "b": "k"},
    "u8": {"element": "u8", "total": "i32", "k": 128, "b": "k"},
    "a and b along k": {"b": "k"}, "a along m": {"a": "m"}, "a along m, b along k":
    {"a": "m", "b": "k", "n": 128}, "a in registers": {"a": "registers"},
    "a in registers, b along k": {"a": "registers", "b": "k", "k": 128},
    "tf32 registers": {"element": "f32", "k": 32, "b": "k", "a": "registers"},
    "e4m3 registers": {"element": "f8e4m3", "k": 128, "b": "k", "a": "registers"},
    "two warpgroups": {"m": 128, "n": 128, "warps": 8},
    "two instructions down": {"m": 128, "n": 64}, "two across": {"n": 256, "instruction": 128},
    "four, two warpgroups": {"m": 256, "n": 64, "instruction": 32, "warps": 8},
    "wide k": {"k": 256}, "wide k, along k": {"k": 256, "b": "k", "a": "k"},
    "64 and 32 bytes": {"k": 32, "swizzle": (64, 32)},
    "32 and 64 bytes, along m and k": {"k": 32, "swizzle": (32, 64), "a": "m", "b": "k"},
    "no swizzle": {"k": 32, "swizzle": (0, 0)},
    "no swizzle, along m and k": {"k": 32, "swizzle": (0, 0), "a": "m", "b": "k"},
    "n 192": {"n": 192}, "n 96": {"n": 96, "swizzle": (128, 64)},
    "n 160": {"n": 160, "swizzle": (128, 64)}, "n 8": {"n": 8, "b": "k"},
    "n 256": {"n": 256, "m": 128, "warps": 8},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.sample(8)
def test_forms(form: str) -> None:
    config = FORMS[form]
    module = product(**config)
    element, total = config.get("element", "bf16"), config.get("total", "f32")
    m, n, k = config.get("m", 64), config.get("n", 64), config.get("k", 64)
    rng = np.random.default_rng(len(form))
    a, b = values(rng, element, (m, k)), values(rng, element, (k, n))
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(DTYPES[total])
    given = [np.ascontiguousarray(a.T) if config.get("a") == "m" else a,
             np.ascontiguousarray(b.T) if config.get("b") == "k" else b]
    kernel = TextKernel(module)
    for level in ("gpu", "lowered", "ptx"):
        c = np.full((m, n), -77, DTYPES[total])
        kernel.run([*given, c], 1, level, seed=1)
        np.testing.assert_array_equal(c, want, err_msg=level)
    made = kernel.compiled
    assert made.linked is not None
    assert made.linked.advisories == [] and made.linked.n_spills == 0
    assert made.ptx.count("wgmma.commit_group") == 1
    step = 256 // (8 * a.dtype.itemsize)
    instructions = m // 64 // (config.get("warps", 4) // 4) * n // config.get("instruction", n)
    assert made.ptx.count("wgmma.mma_async") == instructions * k // step


@pytest.mark.parametrize("config", [
    {"element": "f8e4m3", "k": 128, "n": 128},
    {"element": "i8", "total": "i32", "k": 128, "n": 128},
    {"element": "f32", "k": 32, "n": 32}, {"element": "f8e5m2", "k": 128, "m": 128, "a": "m",
                                           "b": "k"}])
def test_only_16_bit_operands_are_turned(config: dict[str, Any]) -> None:
    with pytest.raises(CompilationError, match="only 16-bit operands may be contiguous along m"):
        compile_from(product(**config), SM_90A, "ptx")


def test_tf32_drops_bits() -> None:
    """f32 operands lose their low 13 bits, in the simulator and in the interpreter."""
    kernel = TextKernel(product(element="f32", k=32, b="k"))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 32)).astype(np.float32) for _ in range(2))
    kept = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b)]
    want = kept[0].astype(np.float64) @ kept[1].astype(np.float64).T
    for level in ("gpu", "ptx"):
        c = np.full((64, 64), np.nan, np.float32)
        kernel.run([a, b, c], 1, level)
        np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5, err_msg=level)


def test_other_targets_are_refused() -> None:
    module = fixture("gemm_a_branch.tir", lowered=True)
    for name in ("sm_90", "sm_80", "sm_100a"):
        with pytest.raises(CompilationError, match=f"needs sm_90a, the target is {name}"):
            to_llir(module, Target.parse(name))


# ---- the hand-written kernels
by_ptxas = pytest.mark.skipif(ptxas.find() is None, reason="setmaxnreg needs ptxas")


def test_one_asm_a_step() -> None:
    """The accumulators stay where they are: all instructions of a step in one asm, with their fence
    and commit, and no move in the loop."""
    kernel = tilec.load(FOLDER / "gemm_a_branch.tir")
    steps = [line for line in kernel.compiled.ptx.splitlines() if "wgmma.mma_async" in line]
    (step,) = steps
    assert step.count("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16") == 4
    assert step.count("wgmma.fence") == step.count("wgmma.commit_group") == 1
    assert re.search(r"\}, %rd\d+, %rd\d+, p, 1, 1, 0, 1;", step)
    assert step.count("}, a, b, 1, 1, 1, 0, 1;") == 3
    lines = kernel.compiled.ptx.splitlines()
    after = lines[lines.index(step):]
    wait = next(i for i, line in enumerate(after) if "wgmma.wait_group" in line)
    assert not any("mov.b32" in line for line in after[:wait])


@pytest.mark.parametrize(("name", "products", "groups", "registers"), [
    ("gemm_a_branch.tir", 4, 1, 168), ("attention_e1.tir", 32, 4, 200),
    ("gemm_c_e2.tir", 4, 1, 168), pytest.param("attention_f3nf.tir", 32, 4, 168, marks=by_ptxas)])
@pytest.mark.sample(2)
def test_sass(name: str, products: int, groups: int, registers: int) -> None:
    """Nothing serialised, nothing spilled; only the last product of a group waits to be counted."""
    kernel = tilec.load(FOLDER / name)
    linked = kernel.compiled.linked
    assert linked is not None
    assert linked.advisories == [] and linked.n_spills == linked.stack == 0
    assert linked.n_regs <= registers
    code = kernel.sass.splitlines()
    assert sum("HGMMA" in line for line in code) == products
    assert sum("HGMMA" in line and "gsb0" in line for line in code) == groups
    for bad in ("LDL", "STL", "BRA.DIV", "MEMBAR.ALL.GPU", "BRA.U.ANY", "STS"):
        assert not any(re.search(rf"\b{re.escape(bad)}\b", line) for line in code), bad
    assert ".local" not in kernel.compiled.ptx


@by_ptxas
def test_roles_have_their_registers() -> None:
    """By ptxas: the loading warpgroup gives registers up before the others take them."""
    kernel = tilec.load(FOLDER / "attention_f3nf.tir")
    assert kernel.compiled.linked is not None
    assert kernel.compiled.linked.assembler.startswith("ptxas ")
    assert kernel.sass.count("USETMAXREG.DEALLOC") == 1
    assert kernel.sass.count("USETMAXREG.TRY_ALLOC") == 1


def test_flags_that_are_known_are_immediates() -> None:
    """A product that adds to nothing has no accumulators to read."""
    made = compile_from(fixture("attention_e1.tir"), SM_90A, "ptx")
    asms = [line for line in made.ptx.splitlines() if "wgmma.mma_async" in line]
    assert len(asms) == 4 and not any("setp" in line for line in asms)
    first = [re.search(r"\}, [^;]*?, (\w+), 1, 1, ", line) for line in asms]
    assert sorted(m[1] for m in first if m) == ["0", "0", "1", "1"]
