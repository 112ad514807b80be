"""The part of cache keys that stands for tilec and its tools: no kernel comes from older ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tilec
import tilec.language as tl
from tilec import knobs
from tilec.compiler import compile_module
from tilec.runtime import fingerprint, kernel

ROOT = Path(__file__).parents[2]


def fingerprint_in(folder: Path) -> str:
    code = "from tilec.runtime.fingerprint import source_fingerprint as f; print(f())"
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def copy_sources(to: Path) -> None:
    """The few modules that fingerprint.py needs, so that a copy of the package can be edited."""
    for name in ("errors.py", "knobs.py", "target.py", "codegen/llvm.py", "codegen/cubin.py",
                 "codegen/ptxas.py", "runtime/fingerprint.py"):
        (to / "tilec" / name).parent.mkdir(parents=True, exist_ok=True)
        (to / "tilec" / name).write_bytes((ROOT / "tilec" / name).read_bytes())
    for name in ("__init__.py", "codegen/__init__.py", "runtime/__init__.py"):
        (to / "tilec" / name).write_text("")


def test_fingerprint_follows_contents_alone(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    copy_sources(first)
    copy_sources(second)
    os.utime(second / "tilec" / "knobs.py", (1, 1))
    before = fingerprint_in(first)
    assert before == fingerprint_in(second)
    (second / "tilec" / "ir").mkdir()
    (second / "tilec" / "ir" / "grammar.lark").write_text("start: A\n")
    with_grammar = fingerprint_in(second)
    assert with_grammar != before
    (second / "tilec" / "ir" / "grammar.lark").write_text("start: B\n")
    assert fingerprint_in(second) not in (before, with_grammar)


def test_fingerprint_names_the_tool_chain(monkeypatch):
    parts = fingerprint._toolchain()
    assert parts[0].startswith("llvmlite-") and parts[1].startswith("nvidia_nvjitlink-")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(fingerprint.llvm, "version", lambda: "22.1.0")
    monkeypatch.setattr(fingerprint.cubin, "version", lambda: "99.9")
    monkeypatch.setattr(fingerprint.ptxas, "identity", lambda: "ptxas none")
    assert fingerprint._toolchain() == ["llvmlite-22.1.0", "nvidia_nvjitlink-99.9", "ptxas none"]


def test_fingerprint_loads_no_compiler():
    code = (
        "import sys; from tilec.runtime.fingerprint import source_fingerprint as f; f();"
        "print([m for m in ('llvmlite', 'numpy', 'cuda', 'lark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_source_file_counts(tmp_path):
    """The whole package is copied, and one file a folder edited, made or removed."""
    package = tmp_path / "tilec"
    shutil.copytree(ROOT / "tilec", package, ignore=shutil.ignore_patterns("__pycache__"))
    sources = dict(fingerprint._sources(package))
    assert len(sources) > 250 and any(name.endswith(".lark") for name in sources)
    seen = [fingerprint._digest(package), fingerprint._digest(ROOT / "tilec")]
    assert seen[0] == seen[1]
    edited = {os.path.dirname(name) + os.path.splitext(name)[1]: path
              for name, path in sources.items()}
    for path in edited.values():
        with open(path, "a") as f:
            f.write("\n")
        seen.append(fingerprint._digest(package))
    (package / "ir" / "more.py").write_text("")
    seen.append(fingerprint._digest(package))
    (package / "ir" / "more.py").rename(package / "eval" / "more.py")
    seen.append(fingerprint._digest(package))
    (package / "eval" / "more.py").unlink()
    (package / "__init__.py").unlink()
    seen.append(fingerprint._digest(package))
    assert len(edited) > 15 and len(set(seen)) == len(seen) - 1


COMPILE = """
import tilec, tilec.language as tl
@tilec.jit
def k(x):
    tl.store(x, tl.load(x) + 1.0)
made = []
real = tilec.runtime.kernel.compile_module
tilec.runtime.kernel.compile_module = lambda *a, **k: (made.append(1), real(*a, **k))[1]
tilec.compile(k, {"x": "*fp32"})
print(len(made))
"""


def test_no_kernel_is_taken_from_an_older_tilec(tmp_path):
    """One cache, and a source file that changes between processes."""
    (tmp_path / "k.py").write_text(COMPILE)
    shutil.copytree(ROOT / "tilec", tmp_path / "tilec")
    env = os.environ | {"PYTHONPATH": str(tmp_path), "TILEC_CACHE_DIR": str(tmp_path / "cache"),
                        "TILEC_VERIFY": "0"}  # verifying asks for a compilation

    def compiled() -> str:
        return subprocess.run([sys.executable, "k.py"], cwd=tmp_path, env=env, check=True,
                              stdout=subprocess.PIPE, text=True).stdout

    assert [compiled(), compiled()] == ["1\n", "0\n"]
    with open(tmp_path / "tilec" / "eval" / "casts.py", "a") as f:
        f.write("# newer\n")
    assert compiled() == "1\n"


@pytest.mark.parametrize("what", ["llvm", "nvjitlink", "ptxas", "python"])
def test_no_kernel_is_taken_from_other_tools(tmp_path, monkeypatch, what):
    made = []
    monkeypatch.setattr(kernel, "compile_module",
                        lambda *a, **k: (made.append(1), compile_module(*a, **k))[1])
    with knobs.scope(cache_dir=tmp_path, verify=False):
        for version in ("1", "1", "2", "2"):
            tools = {"llvm": "", "nvjitlink": "", "ptxas": "", "python": ""} | {what: version}
            monkeypatch.setattr(fingerprint, "_python", lambda tools=tools: tools["python"])
            monkeypatch.setattr(fingerprint, "_toolchain", lambda tools=tools: [
                tools["llvm"], tools["nvjitlink"], tools["ptxas"]])
            fingerprint.source_fingerprint.cache_clear()
            tilec.compile(tiny, {"x": "*fp32"})
    fingerprint.source_fingerprint.cache_clear()
    assert len(made) == 2


@tilec.jit
def tiny(x):
    tl.store(x, 1.0)


def test_toolchain_reads_versions_and_the_ptxas_in_use(tmp_path, monkeypatch):
    """A newer wheel, or another ptxas file, changes the parts."""
    for name in ("llvmlite-1.0.dist-info", "nvidia_nvjitlink-1.0.dist-info"):
        (tmp_path / name).mkdir()
    ptxas = tmp_path / "bin" / "ptxas"
    ptxas.parent.mkdir()
    ptxas.write_text("#!/bin/sh\n")
    ptxas.chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("PATH", str(ptxas.parent))
    seen = [fingerprint._toolchain()]
    (tmp_path / "llvmlite-1.0.dist-info").rename(tmp_path / "llvmlite-1.1.dist-info")
    seen.append(fingerprint._toolchain())
    (tmp_path / "nvidia_nvjitlink-1.0.dist-info").rename(
        tmp_path / "nvidia_nvjitlink-1.1.dist-info")
    seen.append(fingerprint._toolchain())
    ptxas.write_text("#!/bin/sh\nexit 1\n")
    seen.append(fingerprint._toolchain())
    assert len({tuple(parts) for parts in seen}) == 4
