"""What makes a launch compile anew: in memory, and through the disk cache in other processes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text, rerun
from tilec import compiler
from tilec.codegen import ptxas
from tilec.runtime import device
from tilec.runtime.kernel import CompiledKernel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "gpu_available", lambda: False)


def counted(monkeypatch):
    """The kernels that are built from here on."""
    built = []
    build = CompiledKernel.build

    def count(kernel):
        built.append(kernel.name)
        return build(kernel)

    monkeypatch.setattr(CompiledKernel, "build", count)
    return built


def test_a_specialisation_is_built_once(monkeypatch):
    built = counted(monkeypatch)
    kernel = from_text("@tilec.jit\ndef k(p, n, C: tl.constexpr):\n    tl.store(p, n + C)\n")
    p = np.zeros(4, np.int32)
    for n in (5, 7, 1000003, 5):
        kernel[1](p, n, 1)
    assert len(built) == 1
    kernel[1](p, n=7, C=1)
    assert len(built) == 1
    for n in (16, 1, 2**40):
        kernel[1](p, n, 1)
    assert len(built) == 4
    kernel[1](p, 5, C=2)
    kernel[1](p, 5, C=True)
    kernel[1](p, 5, 1, num_warps=8)
    assert len(built) == 7


def test_threads_share_one_compilation(monkeypatch):
    built = counted(monkeypatch)
    kernel = from_text("@tilec.jit\ndef k(p):\n    tl.store(p, 3.0)\n")
    outs = [np.zeros(1, np.float32) for _ in range(4)]
    threads = [threading.Thread(target=lambda o=o: kernel[1](o)) for o in outs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(built) == 1 and [o[0] for o in outs] == [3.0] * 4


def test_a_rerun_cell_with_an_edited_helper():
    scope = {"tl": tl, "tilec": tilec, "__name__": "__main__"}
    helper = "@tilec.jit\ndef helper(x):\n    return x + {}\n"
    rerun(helper.format(1), "<cell 1>", scope)
    kernel = rerun("@tilec.jit\ndef k(p):\n    tl.store(p, helper(10.0))\n", "<cell 2>", scope)
    p = np.zeros(1, np.float32)
    kernel[1](p)
    assert p[0] == 11
    rerun(helper.format(2), "<cell 3>", scope)
    kernel[1](p)
    assert p[0] == 12
    rerun(helper.format(5), "<cell 1>", scope)  # the same cell, edited
    kernel[1](p)
    assert p[0] == 15


def test_constants_and_helpers_in_modules_are_watched():
    scope = {"tl": tl, "tilec": tilec, "N": tl.constexpr(4), "__name__": "m"}
    kernel = rerun("@tilec.jit\ndef k(p):\n    tl.store(p, N + 0.0)\n", "<cell n>", scope)
    p = np.zeros(1, np.float32)
    kernel[1](p)
    scope["N"] = tl.constexpr(9)
    kernel[1](p)
    assert p[0] == 9
    scope["N"] = tl.constexpr(4)
    kernel[1](p)
    assert p[0] == 4


def test_functors_are_told_apart_by_source():
    kernel = from_text("@tilec.jit\ndef k(p, F: tl.constexpr):\n    tl.store(p, F(3.0))\n")
    text = "@tilec.jit\ndef f(x):\n    return x * {}\n"
    p = np.zeros(1, np.float32)
    for factor in (2, 5):
        kernel[1](p, from_text(text.format(factor)))
        assert p[0] == 3 * factor
    assert len(kernel._kernels) == 2
    kernel[1](p, from_text(text.format(5)))
    assert len(kernel._kernels) == 2 and p[0] == 15


SCRIPT = """
import sys
import numpy as np, tilec, tilec.language as tl
from tilec import compiler
inner = compiler.link
compiler.link = lambda *a, **k: print("link") or inner(*a, **k)
sys.path.insert(0, {folder!r})
import kernels
k = kernels.k.warmup(np.float32, 5, C=kernels.C, grid=(1,), **{options})
print(k.hash, k.n_regs, k.shared, len(k.asm["cubin"]), hash("x") % 1000)
print(k.asm["ptx"])
"""
MODULE = """
import tilec, tilec.language as tl
C = {C}
N = tl.constexpr({N})
@tilec.jit
def helper(x):
    return x + {add}
@tilec.jit
def k(p, n, C: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(p + i, helper(n + i + N) + C, mask=i < n)
"""


class Processes:
    """Runs SCRIPT on MODULE in new processes that share a cache."""

    def __init__(self, folder):
        self.folder = folder
        self.cache = folder / "cache"

    def run(self, options=None, seed="0", C=2, N=3, add=4, **env):
        (self.folder / "kernels.py").write_text(MODULE.format(C=C, N=N, add=add))
        process = self.start(options, seed, env)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        linked = out.count("link\n")
        return linked, out.replace("link\n", "")

    def start(self, options=None, seed="0", env=()):
        text = SCRIPT.format(folder=str(self.folder), options=options or {})
        whole = {"PATH": "", "PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(self.cache),
                 "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1", **dict(env)}
        return subprocess.Popen([sys.executable, "-c", text], env=whole, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_disk_cache_and_determinism(tmp_path):
    processes = Processes(tmp_path)
    linked, first = processes.run(seed="1")
    assert linked == 1 and ".visible .entry k(" in first
    linked, second = processes.run(seed="2")
    assert linked == 0
    linked, third = processes.run(seed="3", TILEC_CACHE="0")
    assert linked == 1
    ptx = [text.partition("\n")[2] for text in (first, second, third)]
    assert ptx[0] == ptx[1] == ptx[2]
    assert first.split()[:4] == second.split()[:4] == third.split()[:4]


def test_what_invalidates_the_disk_cache(tmp_path):
    processes = Processes(tmp_path)
    changes = [{}, {"C": 5}, {"N": 5}, {"add": 5}, {"options": {"num_warps": 8}},
               {"options": {"target": "sm_80"}}, {"TILEC_TARGET": "sm_89"}]
    for number, change in enumerate(changes, 1):
        assert processes.run(**change)[0] == 1, change
        assert len([p for p in processes.cache.iterdir() if p.is_dir()]) == number
    for change in (changes[0], changes[3]):
        assert processes.run(**change)[0] == 0, change


def test_damaged_entries_are_compiled_again(tmp_path):
    processes = Processes(tmp_path)
    _, first = processes.run()
    (entry,) = processes.cache.iterdir()
    (entry / "cubin").write_bytes(b"damaged")
    linked, second = processes.run()
    assert linked == 1 and second.split()[:4] == first.split()[:4]
    assert processes.run()[0] == 0


def test_a_cubin_of_another_ptxas_is_made_anew(tmp_path, monkeypatch):
    """Its file, in the key, may be a script that starts another version by now."""
    built, version = counted(monkeypatch), ["ptxas 13.0.1"]
    monkeypatch.setattr(ptxas, "find", lambda: Path("ptxas"))
    monkeypatch.setattr(ptxas, "label", lambda path: version[0])
    real = compiler.link
    monkeypatch.setattr(compiler, "link", lambda *args, **named: dataclasses.replace(
        real(*args, **named), assembler=version[0]))
    kernel = from_text("@tilec.jit\ndef k(p):\n    tl.store(p, 3.0)\n")

    def made():
        one = tilec.compile(kernel, signature={"p": "*fp32"}, target="sm_90a")
        one.asm["cubin"]
        return one.assembler, len(built)

    with tilec.knobs.scope(cache=True, cache_dir=tmp_path, verify=False):
        assert made() == ("ptxas 13.0.1", 1) and made() == ("ptxas 13.0.1", 1)
        version[0] = "ptxas 13.0.2"
        assert made() == ("ptxas 13.0.2", 2)
        monkeypatch.setattr(ptxas, "find", lambda: None)
        assert made() == ("ptxas 13.0.2", 3)


def test_a_kernel_from_the_disk_cache_dumps_too(tmp_path):
    processes = Processes(tmp_path)
    assert processes.run()[0] == 1
    out, err = processes.start(env={"TILEC_DUMP": "coalesce,ptx"}).communicate(timeout=60)
    assert err.count("// -----") == 2 and "after" not in err
    assert ".visible .entry k(" in err and out.count("link\n") == 1


def test_two_processes_at_once(tmp_path):
    processes = Processes(tmp_path)
    (tmp_path / "kernels.py").write_text(MODULE.format(C=2, N=3, add=4))
    started = [processes.start() for _ in range(2)]
    outs = [p.communicate(timeout=60)[0].replace("link\n", "") for p in started]
    assert outs[0].split()[:4] == outs[1].split()[:4] and len(outs[0]) > 500
    assert processes.run()[0] == 0
