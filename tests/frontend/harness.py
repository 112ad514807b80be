"""Builds kernels from functions or text, and runs them in the interpreter."""

import itertools
import linecache

import numpy as np

import tilec.language as tl
from tilec.frontend.build import build_module
from tilec.frontend.function import Function, function
from tilec.interp.run import run
from tilec.ir.verifier import verify
from tilec.language import dtypes as dt

_count = itertools.count()


def from_text(text, **outer):
    """The last function of a source text, as if it stood in a file; `outer` are its globals."""
    file = f"<kernel {next(_count)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"tl": tl, "jit": function, "__name__": "kernels", **outer}
    exec(compile(text, file, "exec"), scope)
    found = [x for x in scope.values() if isinstance(x, Function) and x.file == file]
    return found[-1]


def spec_of(x):
    if isinstance(x, tuple):
        return tuple(map(spec_of, x))
    if isinstance(x, np.ndarray):
        return "*" + dt.from_any(x.dtype).short
    return "i1" if isinstance(x, bool) else "i32" if isinstance(x, int) else "fp32"


def flat(args):
    for x in args:
        yield from flat(x) if isinstance(x, tuple) else (x,)


def build(fn, specs=None, **constexprs):
    module = build_module(fn, specs or {}, constexprs, target="sm_90a")
    verify(module)
    return module


def execute(fn, *args, grid=1, **constexprs):
    """Run a kernel on numpy arrays and numbers, given for its parameters without constexprs."""
    names = [p.name for p in fn.params if p.name not in constexprs and not p.is_constexpr]
    specs = {n: spec_of(a) for n, a in zip(names, args, strict=True)}
    run(build(fn, specs, **constexprs), fn.name, list(flat(args)), grid)


def out_of(fn, *args, dtype=np.int32, size=1, **constexprs):
    """What a kernel writes to its first parameter."""
    out = np.zeros(size, dtype)
    execute(fn, out, *args, **constexprs)
    return out.tolist() if size > 1 else out[0].item()
