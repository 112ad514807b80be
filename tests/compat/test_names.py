"""tilec under Triton's names, without a library: every name, and what is said of those missing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import types

import numpy as np
import pytest

import tilec
from tests.runtime.support import from_text
from tilec.compat.names import MODULES
from tilec.errors import CompilationError

SCRIPT = """
import os, sys
import numpy as np
import triton
import triton.language as tl

@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(x_ptr + offs, tl.sum(x) + 2 * x, mask=offs < n)

x = np.arange(5, dtype=np.float32)
double[(1,)](x, 5, BLOCK=8)
print(__name__, sys.argv[1:], x.tolist(), os.environ["TILEC_STRICT"])
"""
PRINTED = "__main__ ['-a', 'b'] [10.0, 12.0, 14.0, 16.0, 18.0] "


def test_every_module_and_name_is_found(triton):
    for name in MODULES:
        module = importlib.import_module(name)
        assert isinstance(module, types.ModuleType) and module.__name__ == name
        assert importlib.util.find_spec(name).name == name
        for each in dir(module):
            getattr(module, each)
        parent, _, last = name.rpartition(".")
        assert not parent or getattr(importlib.import_module(parent), last) is module


def test_they_are_tilecs_own(triton):
    from triton import Config, autotune, cdiv, heuristics, jit
    from triton.language import core, load
    from triton.language.math import exp
    from triton.runtime.jit import JITFunction, KernelInterface
    from triton.tools.tensor_descriptor import TensorDescriptor

    assert (jit, autotune, heuristics, Config, cdiv) == (
        tilec.jit, tilec.autotune, tilec.heuristics, tilec.Config, tilec.cdiv)
    assert (JITFunction, TensorDescriptor) == (tilec.JITFunction, tilec.TensorDescriptor)
    assert issubclass(JITFunction, KernelInterface)
    assert load is tilec.language.load is core.load and exp is tilec.language.exp
    assert triton.language.constexpr is tilec.language.constexpr


def test_triton_is_reached_through_its_attributes(triton):
    assert triton.runtime.driver.active.get_current_target().warp_size == 32
    assert triton.testing.do_bench is tilec.testing.do_bench
    assert triton.language.extra.libdevice.exp is tilec.language.exp
    assert triton.language.standard.sort is tilec.language.sort
    assert triton.language.math.max is tilec.language.max  # in Triton some of its kernels say so
    assert triton.backends.backends == {}


def test_versions_compare(triton):
    major, minor, *_ = triton.__version__.split(".")
    assert (int(major), int(minor)) >= (3, 4)
    assert triton.language.__version__ == triton.__version__


@pytest.mark.parametrize("statement, name", [
    ("import triton.experimental", "triton.experimental"),
    ("import triton.experimental.gluon", "triton.experimental"),
    ("from triton import knobs", "triton.knobs"),
    ("from triton.runtime.autotuner import Tuner", "triton.runtime.autotuner.Tuner"),
    ("from triton.language import dot_scald", "triton.language.dot_scald")])
def test_an_import_that_fails_says_which(triton, statement, name):
    with pytest.raises(ImportError) as caught:
        exec(statement, {})
    assert str(caught.value) == f"tilec has no `{name}`; docs/from-triton.md lists what is missing"


def test_an_attribute_that_is_missing(triton):
    assert not hasattr(triton.language, "dot_scald")
    with pytest.raises(AttributeError, match="has no `triton.language.dot_scald`; docs"):
        _ = triton.language.dot_scald


@pytest.mark.parametrize("use", ["tl.dot_scald(1)", "tl.zeros((4,), tl.float8e4b8)"])
def test_what_is_missing_fails_where_a_kernel_uses_it(triton, use):
    kernel = from_text("import tilec\n@tilec.jit\ndef k(x):\n    if x is None:\n        pass\n"
                       f"    else:\n        {use}\n", tl=triton.language)
    kernel[(1,)](None)
    with pytest.raises(CompilationError) as caught:
        kernel[(1,)](np.zeros(4, np.float32))
    assert caught.value.loc.line == 7
    assert ("dot_scald" if "dot" in use else "float8e4b8") in str(caught.value)


def run(*arguments, cwd, **environment):
    found = {k: v for k, v in os.environ.items() if k != "TILEC_STRICT"} | environment
    return subprocess.run([sys.executable, "-m", "tilec.compat.triton", *arguments], cwd=cwd,
                          env=found | {"PYTHONPATH": os.path.dirname(tilec.__path__[0])},
                          capture_output=True, text=True, timeout=60)


def test_a_script_runs_as_python_runs_it(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "beside.py").write_text("VALUE = 7\n")
    (tmp_path / "inner" / "script.py").write_text(SCRIPT + "import beside\nprint(beside.VALUE)\n")
    done = run("inner/script.py", "-a", "b", cwd=tmp_path)
    assert (done.stdout, done.returncode) == (PRINTED + "0\n7\n", 0), done.stderr


def test_a_module_runs_and_the_flag_says_otherwise(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(SCRIPT)
    done = run("-m", "package", "-a", "b", cwd=tmp_path, TILEC_STRICT="1")
    assert done.returncode == 1 and "InterpreterError" in done.stderr  # a sum of masked-off lanes
    done = run("-m", "package", "-a", "b", cwd=tmp_path)
    assert (done.stdout, done.returncode) == (PRINTED + "0\n", 0), done.stderr


@pytest.mark.parametrize("arguments, said", [
    ((), "usage: python -m tilec.compat.triton (SCRIPT | -m MODULE) [ARGUMENT ...]"),
    (("-m",), "usage: python -m tilec.compat.triton (SCRIPT | -m MODULE) [ARGUMENT ...]"),
    (("nowhere.py",), "tilec.compat.triton: there is no script nowhere.py"),
    ((".",), "tilec.compat.triton: there is no script ."),
    (("-m", "json"), "tilec.compat.triton: there is no module `json` to run"),
    (("-m", "nowhere.inner"), "tilec.compat.triton: there is no module `nowhere.inner` to run")])
def test_what_cannot_run_is_said_in_a_line(tmp_path, arguments, said):
    done = run(*arguments, cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", said + "\n", 2)


def test_another_triton_is_refused(tmp_path):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("")
    script = "import triton\ntry:\n    import tilec.compat.triton\nexcept RuntimeError as e:\n" \
        "    print(e)\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, text=True, timeout=60,
                          env=os.environ | {"PYTHONPATH": os.path.dirname(tilec.__path__[0])},
                          capture_output=True)
    assert done.stdout.startswith("triton is imported already, from ") and \
        done.stdout.endswith(": import tilec.compat.triton before it\n"), done.stderr
