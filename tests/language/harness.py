"""Kernels built by hand around tilec.language, without the front end."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

import tilec.language as tl
from tilec.errors import Location
from tilec.eval.dtypes import dtype_of
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir import types as ir
from tilec.ir.core import Block, Builder, Func, Module
from tilec.ir.verifier import verify
from tilec.language import dtypes as dt
from tilec.language.context import Context, activate
from tilec.target import Target

LOC = Location("kernel.py", 7, 4)


def plain_call(fn, args, kwargs):
    """Calls of combine and library functions, run as the plain Python that they also are."""
    inner = getattr(fn, "fn", fn)
    if inner is fn:
        return fn(*args, **kwargs)
    scope = {name: Inlined(value) if hasattr(value, "fn") else value
             for name, value in inner.__globals__.items()}
    return type(inner)(inner.__code__, scope, inner.__name__, inner.__defaults__)(*args, **kwargs)


class Inlined:
    def __init__(self, fn):
        self.fn = fn

    def __call__(self, *args, **kwargs):
        return plain_call(self.fn, args, kwargs)


@contextmanager
def tracing(*types, debug=False):
    """Gives a tensor for each type (a dtype, or (shape, dtype)); the module is verified after.

    Tiles come as block arguments, so that nothing folds or fails on where they come from.
    """
    block = Block([t.ir if isinstance(t, tl.dtype) else ir.Tensor(t[0], t[1].ir) for t in types])
    context = Context(Builder(block, loc=LOC), {"debug": debug}, Target.parse("sm_90a"), plain_call)
    with activate(context):
        yield [tl.tensor(a) for a in block.args]
    block.insert(ops.Return())
    verify(Module([Func("k", block)]))


def _load(pointer, array):
    """The whole array as a tensor of its shape."""
    if array.ndim == 0:
        return tl.load(pointer)
    return tl.load(pointer + tl.arange(0, array.size)).reshape(array.shape)


def _store(pointer, x):
    if x.shape:
        tl.store(pointer + tl.arange(0, x.numel), x.ravel())
    else:
        tl.store(pointer, x)


def evaluate(fn, *arrays, debug=False):
    """What `fn` of tensors gives when run by the interpreter on whole arrays (0-d: scalars).

    fn returns one value or a tuple of them; so does this.
    """
    arrays = [np.asarray(a) for a in arrays]
    block = Block([dt.pointer_type(dt.from_any(a.dtype)).ir for a in arrays])
    context = Context(Builder(block, loc=LOC), {"debug": debug}, Target.parse("sm_90a"), plain_call)
    outs = []
    with activate(context):
        results = fn(*[_load(tl.tensor(p), a) for p, a in zip(block.args, arrays, strict=True)])
        many = isinstance(results, tuple)
        for x in results if many else (results,):
            x = tl.to_tensor(x)
            pointer = tl.tensor(block.add_arg(dt.pointer_type(x.dtype).ir))
            _store(pointer, x)
            outs.append(np.zeros(x.shape, dtype_of(x.handle.type)))
    block.insert(ops.Return())
    module = Module([Func("k", block)])
    verify(module)
    flat = [np.ascontiguousarray(a).reshape(-1) for a in (*arrays, *outs)]
    run(module, "k", flat, (1,))
    values = [f.reshape(o.shape) for f, o in zip(flat[len(arrays):], outs, strict=True)]
    return tuple(values) if many else values[0]
