"""`build_module`: a function and the types of its arguments to a module of tile IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tilec.language as tl
from tilec.errors import CompilationError, InternalError, IRError, Location, TilecError
from tilec.frontend import expressions, loops, scope, statements  # noqa: F401  (register handlers)
from tilec.frontend.calls import Inliner, run
from tilec.frontend.function import MISSING, Function
from tilec.frontend.signature import ArgSpec, Spec, check_names, parse_signature
from tilec.frontend.visitor import Visitor
from tilec.ir import ops
from tilec.ir.core import Block, Builder, Func, Module
from tilec.ir.flight import check_products
from tilec.ir.ops.named_barriers import check_named_barriers
from tilec.ir.spelling import as_authors_say
from tilec.ir.warps import check_tiles, hold_tiles
from tilec.language.context import Context, activate
from tilec.language.descriptors import DescriptorForm, tensor_descriptor
from tilec.language.values import constexpr, like, tensor, unwrap
from tilec.target import Target

_LANGUAGE = Path(tl.__file__).parent


def build_module(fn: Function, specs: Mapping[str, Any], constexprs: Mapping[str, Any], *,
                 target: Target | str, num_warps: int = 4,
                 options: Mapping[str, Any] | None = None) -> Module:
    """The tile IR of a kernel.

    specs: an ArgSpec, or its text, for each run-time parameter; a tuple of them for a parameter
    that is a tuple, whose elements become parameters `name_0`, `name_1`, but for those that are a
    tl.constexpr; a tuple that ends with a DescriptorForm is a descriptor, with the parameters
    `name`, `name_shape_0`, `name_stride_0`. constexprs: the values of the others. options: what
    builtins may ask for, such as `debug`. Raises CompilationError at the author's line,
    InternalError for what is tilec's fault.
    """
    if isinstance(target, str):
        target = Target.parse(target)
    parsed = parse_signature(fn, specs)
    _check_names(fn, parsed, constexprs)
    block = Block()
    attrs: list[dict[str, Any]] = []
    names: dict[str, Any] = {}
    for p in fn.params:
        if p.name in parsed:
            names[p.name] = _parameter(block, attrs, p.name, parsed[p.name])
        else:
            names[p.name] = unwrap(constexprs.get(p.name, p.default))
    builder = Builder(block)
    inliner = Inliner()
    context = Context(builder=builder, options={"num_warps": num_warps, **(options or {})},
                      target=target, call=inliner,
                      func=Func(fn.name, block, attrs, fn.def_location))
    inliner.context = context
    visitor = Visitor(context, fn, names)
    builder.loc = fn.def_location
    with activate(context):
        _run(visitor)
    func = context.func
    assert func is not None
    attributes: dict[str, Any] = {"level": "tile", "target": target.name, "num_warps": num_warps}
    if context.options.get("debug"):
        attributes["debug"] = True
    return Module([func], attributes)


def _run(v: Visitor) -> None:
    """Run the kernel's body; every error leaves with a place."""
    try:
        run(v)
        func = v.context.func
        assert func is not None
        func.body.insert(ops.Return(loc=v.location(v.fn.tree.body[-1])))
        _check_combining(func)
        _check_explicit(func)
        _check_warps(func, v.context.num_warps)
        check_named_barriers(func, v.context.num_warps)
    except IRError as e:
        raise CompilationError(as_authors_say(e.message), _shown(e.loc or v.builder.loc),
                               as_authors_say(e.advice)) from e
    except TilecError as e:
        e.loc = _shown(e.loc or v.builder.loc)
        raise
    except RecursionError:
        raise CompilationError("this is nested too deeply", v.builder.loc,
                               "split long expressions; end recursion earlier") from None
    except Exception as e:
        raise InternalError(f"the front end failed: {type(e).__name__}: {e}", v.builder.loc,
                            "this is a bug in tilec; please report it with this kernel") from e


def _shown(loc: Location) -> Location:
    """A place without the parts of its chain that are in functions of the language itself."""
    if loc.caller is None:
        return loc
    caller = _shown(loc.caller)
    return caller if Path(loc.file).is_relative_to(_LANGUAGE) else replace(loc, caller=caller)


def _check_combining(func: Func) -> None:
    """IRError where the combine function of a reduction or scan does more than compute: how often
    it runs, and on which partial results, is nobody's to know."""
    for op in func.walk():
        outer = next((a for a in op.ancestors() if isinstance(a, ops.Combining)), None)
        if outer is not None and not (op.pure or op.terminator):
            what = "scan" if isinstance(outer, ops.Scan) else "reduction"
            raise op.fail(f"stands in the combine function of a {what}, which only computes",
                          f"put it before or after the {what}")


def _check_explicit(func: Func) -> None:
    """IRError where ops of the explicit level are not used as they may be."""
    explicit = [op for op in func.walk() if op.name.startswith("gpu.")]
    for op in explicit:
        if not isinstance(op, ops.Wgmma):  # of products the next check says more
            op.check()
    if any(isinstance(op, ops.Wgmma) for op in explicit):
        check_products(func)


def _check_warps(func: Func, num_warps: int) -> None:
    """Roles may have any number of warps, but tiles a power of two."""
    roles = any(isinstance(op, ops.WarpSpecialize) for op in func.walk())
    if not roles and not hold_tiles(num_warps):
        raise CompilationError(f"num_warps is {num_warps}, expected 1, 2, 4, 8, 16 or 32", func.loc,
                               "only a kernel that divides its warps, by tlg.warp_specialize, may "
                               "have another sum")
    if roles:
        check_tiles(func, num_warps)


def _check_names(fn: Function, specs: Mapping[str, Spec], constexprs: Mapping[str, Any]) -> None:
    """Every parameter has either a type or a value."""
    check_names(fn, constexprs)
    for p in fn.params:
        if p.name in specs and p.is_constexpr:
            raise CompilationError(f"`{p.name}` of `{fn.name}` is a tl.constexpr, but the "
                                   "signature gives it a run-time type", fn.def_location,
                                   "give its value in `constexprs`")
        if p.name in specs and p.name in constexprs:
            raise CompilationError(f"`{p.name}` of `{fn.name}` is in both the signature and "
                                   "`constexprs`", fn.def_location, "give it once")
        if p.name not in specs and p.name not in constexprs and p.default is MISSING:
            what = "a value for the constexpr" if p.is_constexpr else "an argument for"
            raise CompilationError(
                f"`{fn.name}` needs {what} `{p.name}`", fn.def_location,
                f"pass {p.name}=..." if p.is_constexpr else
                f'pass it, or give its type in the signature, as in {{"{p.name}": "*fp32"}}')


def _parameter(block: Block, attrs: list[dict[str, Any]], name: str, spec: Spec | constexpr) -> Any:
    if isinstance(spec, constexpr):
        return spec.value
    if isinstance(spec, ArgSpec):
        attrs.append({"divisibility": spec.divisibility} if spec.divisibility > 1 else {})
        return tensor(block.add_arg(spec.type, name))
    described = bool(spec) and isinstance(unwrap(spec[-1]), DescriptorForm)
    names = ("", "_shape", "_stride", "_form") if described else map("_{}".format, range(len(spec)))
    parts = [_parameter(block, attrs, name + n, s) for n, s in zip(names, spec)]
    return tensor_descriptor(*parts) if described else like(spec, parts)
