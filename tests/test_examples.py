"""Every example runs on the CPU and checks itself; and each of its kernels gives the same result
from every file of its dump: the IR after each pass, the LLVM IR and the PTX.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.support.stages import stage_file
from tilec import knobs
from tilec.instruments import folder_name
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.runtime import host
from tilec.runtime.maps import noted
from tilec.runtime.validation import with_barriers
from tilec.tools.run import run_file

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
# Of the output of each: how many results it checks, and what else it must say.
EXPECTED = {
    "00_find_the_bug": (1, [
        "(9, 0, 0) reads 28 elements past x_ptr (1000 elements); the mask tests",
        "mask=cols < BLOCK", "it comes from"]),
    "01_vector_add": (3, ["5000 bfloat16"]),
    "02_fused_softmax": (9, ["one pass, 6 x 4096 bfloat16", "online, 4 x 1000 float16"]),
    "03_norms": (14, ["layer norm db", "RMS norm dw"]),
    "04_fused_chain": (2, ["bilinear", "nearest"]),
    "05_many_small_problems": (1, ["40 problems in one launch"]),
    "06_matmul": (3, ["silu(a @ b), 100 x 150 x 70 bfloat16", "int8"]),
    "07_attention": (2, ["causal, 2 x 150 x 32", "full, 2 x 150 x 32"]),
    "08_batched_matmul": (2, ["3 products of 50 x 70 x 40", "4 products of different shapes"]),
    "09_descriptor_matmul": (3, ["100 x 160 x 80 bfloat16", "13 x 160 x 304"]),
    "10_explicit_matmul": (2, ["200 x 160 x 80 bfloat16"]),
    "11_descriptor_attention": (8, ["attention, causal, 4 x 150 x 64", "dq, full, 4 x 150 x 64",
                                    "dk, causal, 4 x 150 x 64", "dv, full, 4 x 150 x 64"]),
    "12_fp8_matmul": (1, ["100 x 160 x 208 e4m3"]),
    "13_long_rows": (22, ["softmax, 6 x 32768 bfloat16", "gradient, 9 x 781 float16",
                          "cross-entropy with gradient, 3 x 20000 float32"]),
    "14_explicit_attention": (4, ["full, with roles, 3 x 150 x 170 x 64", "causal, without roles"]),
    "15_explicit_gradients": (6, ["dq, full, 4 x 150 x 64", "dk, causal, 4 x 150 x 64"]),
}
# Levels below tile reorder reductions and use the hardware's formulas for exp and division.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def test_every_example_is_expected():
    assert [e.stem for e in EXAMPLES] == list(EXPECTED)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_runs_and_checks_itself(path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TILEC_")}
    done = subprocess.run([sys.executable, str(path)], env=env | {"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    checks, phrases = EXPECTED[path.stem]
    assert done.stdout.count(": ok (error ") >= checks, done.stdout
    for phrase in phrases:
        assert phrase in done.stdout


class Recorder:
    """Stands in for host.run_on_cpu: keeps the first launch of each kernel, before and after."""

    def __init__(self):
        self.run = host.run_on_cpu
        self.launches = {}

    def __call__(self, kernel, values, grid, level, seed=None):
        before = [copy(v) for v in values]
        self.run(kernel, values, grid, level, seed)
        self.launches.setdefault(kernel.hash, (kernel, before, [copy(v) for v in values], grid))


def copy(value):
    return value.copy(order="K") if isinstance(value, np.ndarray) else value


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(module, name):
    """Run an example on few programs: the simulator goes through every instruction."""
    rng = np.random.default_rng(0)
    if name == "00_find_the_bug":
        x, out = np.ones((3, 100), np.float32), np.full(3, np.nan, np.float32)
        module.mean[(3,)](x, out, 100, BLOCK=128)
    elif name == "01_vector_add":
        module.main(2500)
    elif name == "02_fused_softmax":
        module.main(((3, 781, "float32", 1e-6), (2, 1024, "bfloat16", 1e-2)))
    elif name == "03_norms":
        module.check_kernels(7, 300, "float32", 2e-5)
    elif name == "04_fused_chain":
        module.main(13, 21)
    elif name == "05_many_small_problems":
        module.main(7)
    elif name == "06_matmul":
        module.main(40, 50, 70)
    elif name == "07_attention":
        module.main(1, 70, 32)
    elif name == "08_batched_matmul":
        module.main(1)
    elif name == "09_descriptor_matmul":
        a, b, c = (np.ones(s, np.float16) for s in ((20, 24), (24, 16), (20, 16)))
        module.matmul(a, b, c, block=(16, 16, 16), num_warps=1)
    elif name == "11_descriptor_attention":
        q, k, v, dout, out, dq, dk, dv = (
            module.support.normal(i, heads, 40, 16).astype(np.float16)
            for i, heads in enumerate((2, 1, 1, 2, 2, 2, 1, 1)))
        lse, delta = (np.full((2, 128), np.nan, np.float32) for _ in range(2))
        module.attention(q, k, v, out, True, (16, 16), num_warps=1)
        module.attention(q, k, v, out, True, (32, 16), num_warps=1, lse=lse)
        module.gradients(q, k, v, out, dout, lse, delta, dq, dk, dv, True, ((16, 16), (16, 16)), 1)
    elif name == "15_explicit_gradients":
        module.main(2, 2, 70, 64)
    elif name == "13_long_rows":
        module.check_kernels(3, 781, "float16", 2e-3)
        module.check_kernels(2, 1000, "bfloat16", 2e-2, how=(2, 1, 0, 1))  # in blocks
    elif name == "12_fp8_matmul":
        (a, scale), (b, _) = (module.quantized(rng.standard_normal((n, 70))) for n in (21, 18))
        c = np.zeros((21, 18), ml_dtypes.bfloat16)
        module.fp8_matmul(a, b, c, scale, scale, block=(16, 16, 32), num_warps=1)
    elif name == "10_explicit_matmul":
        a, b, c = (np.ones(s, np.float16) for s in ((70, 80), (80, 96), (70, 96)))
        module.matmul(a, b, c, block=(64, 64, 32), num_warps=4, num_stages=3, width=32)
    elif name == "14_explicit_attention":
        q, k, v, out = (module.support.normal(i, 1, 70, 16).astype(np.float16) for i in range(4))
        module.attention(q, k, v, out, True, block=(64, 64), num_warps=4)
    else:
        raise AssertionError(f"no small run of {name}")


# What the passes make of these is validated in test_validation.py.
LONG = ("07_attention", "11_descriptor_attention", "13_long_rows", "15_explicit_gradients")


@pytest.mark.parametrize("path", [
    pytest.param(p, id=p.stem, marks=[pytest.mark.full] if p.stem in LONG else [])
    for p in EXAMPLES])
@pytest.mark.sample(3)
def test_every_stage_gives_the_result(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(path.parent))
    recorder = Recorder()
    monkeypatch.setattr(host, "run_on_cpu", recorder)
    with knobs.scope(dump_dir=tmp_path):
        small(load(path), path.stem)
    assert recorder.launches
    for kernel, before, after, grid in recorder.launches.values():
        folder = tmp_path / folder_name(kernel.name, kernel.hash)
        # Between the last two passes memory has offsets, but the barriers are not in yet.
        files = [f for f in sorted(folder.iterdir()) if f.suffix in (".tir", ".ll", ".ptx")
                 and not f.stem.endswith("allocate_shared")]
        assert len(files) > 15
        assert {f.suffix for f in files} == {".tir", ".ll", ".ptx"}
        add_barriers(folder / stage_file("allocate_shared"))
        for file in changed(files):
            if file.suffix != ".tir":
                add_maps(file, kernel)
            arrays = [copy(v) for v in before]
            run_file(file, kernel.name, arrays, ",".join(map(str, grid)))
            for got, expected in zip(arrays, after, strict=True):
                if isinstance(expected, np.ndarray):
                    assert_close(got, expected, file.name)


def changed(files):
    """Those that differ from the one before: a pass that does nothing changes no result."""
    texts = ["", *(file.read_text(encoding="utf-8") for file in files)]
    return [file for file, before, text in zip(files, texts, texts[1:]) if text != before]


def add_barriers(file):
    """The stage between allocate_shared and insert_barriers runs only with barriers."""
    module = with_barriers(parse(file.read_text(encoding="utf-8")))
    file.write_text(print_module(module), encoding="utf-8")


def add_maps(file, kernel):
    """Below the IR's levels, a file says in a comment which tensor maps a launch has to make."""
    comment = ";" if file.suffix == ".ll" else "//"
    file.write_text(noted(file.read_text(encoding="utf-8"), kernel.maps, comment), encoding="utf-8")


def assert_close(got, expected, what):
    tolerance = TOLERANCE.get(str(expected.dtype), 0)
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=what)
