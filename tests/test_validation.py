"""The kernels of the examples are validated through the whole pipeline; and the acceptance of
validation: an example passes with TILEC_VALIDATE=1, and a fault planted in a pass is named."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.test_examples import EXAMPLES, ROOT, load
from tilec.compiler import PIPELINE, compile_module
from tilec.runtime import host
from tilec.runtime.kernel import CompiledKernel
from tilec.runtime.validation import Validate, Validator

# Which of the kernels that an example launches every run validates; `full` validates all of them.
FIRST = ("06_matmul", "07_attention", "09_descriptor_matmul", "10_explicit_matmul",
         "13_long_rows", "14_explicit_attention", "15_explicit_gradients")
SOME = dict.fromkeys(FIRST, slice(1)) | {
    "02_fused_softmax": slice(3), "03_norms": slice(3), "11_descriptor_attention": slice(1, 2)}
PLANTED = """
import tilec
from tilec.ir import ops
from tilec.passes.{module} import {name}

right = {name}.run

def wrong(self, module):
    right(self, module)
    for op in module.walk():
        if isinstance(op, ops.Sub) and not isinstance(op.rhs.op, ops.Sub):
            op.set_operands([op.rhs, op.lhs])

{name}.run = wrong
import runpy
runpy.run_path({path!r}, run_name="__main__")
"""


def kernels(path, monkeypatch):
    """Those that an example launches, each once; nothing runs."""
    found = {}
    with monkeypatch.context() as patched:
        patched.setattr(host, "run_on_cpu",
                        lambda kernel, *launch: found.setdefault(kernel.hash, kernel))
        patched.syspath_prepend(str(path.parent))
        module = load(path)
        for name in ("support", path.stem):
            here = sys.modules.get(name, module)
            if hasattr(here, "check"):
                patched.setattr(here, "check", lambda *a, **k: None)
        patched.setattr(np.testing, "assert_array_equal", lambda *a: None)
        module.main()
    return list(found.values())


def validate(kernel: CompiledKernel) -> Validator:
    instrument = Validate(kernel.name)
    compile_module(kernel.build, kernel.target, kernel.options, stop_at="lowered",
                   instruments=[instrument])
    assert instrument.validator is not None
    return instrument.validator


def every(path, monkeypatch, chosen=slice(None)):
    for kernel in kernels(path, monkeypatch)[chosen]:
        validator = validate(kernel)
        assert not validator.unmet, f"{kernel}: {validator.unmet}"
        assert len(validator.cases) == validator.count > 0


VALIDATED = [e for e in EXAMPLES if e.stem != "00_find_the_bug"]


@pytest.mark.parametrize("path", VALIDATED, ids=lambda p: p.stem)
def test_passes_keep_what_an_example_computes(path, monkeypatch, capsys):
    every(path, monkeypatch, SOME.get(path.stem, slice(None)))


@pytest.mark.full
@pytest.mark.parametrize("path", VALIDATED, ids=lambda p: p.stem)
def test_passes_keep_what_all_kernels_of_an_example_compute(path, monkeypatch, capsys):
    every(path, monkeypatch)


def run(*words):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TILEC_")}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120,
                          env=env | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}",
                                     "TILEC_VALIDATE": "1"})


def test_an_example_passes():
    done = run(str(ROOT / "examples/02_fused_softmax.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": ok (error ") == 9 and "not validated" not in done.stderr


@pytest.mark.parametrize(("module", "name"), [("licm", "Licm"), ("coalesce", "Coalesce")])
def test_a_fault_planted_in_a_pass_is_named(module, name):
    path = ROOT / "examples/02_fused_softmax.py"
    done = run("-c", PLANTED.format(module=module, name=name, path=str(path)))
    assert done.returncode == 1 and name.lower() in {s.run.name for s in PIPELINE}
    message = done.stderr
    assert f"pass `{module}` changes what @softmax_kernel computes: out_ptr: " in message
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1)
                if "e = tl.exp(x - top)" in text)
    assert f"02_fused_softmax.py:{line}:" in message and "e = tl.exp(x - top)" in message
    assert "the first value that was not computed before it: `%0 = tile.sub(" in message
