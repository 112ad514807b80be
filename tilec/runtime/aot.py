"""`tilec.compile`: a kernel from a function and a signature, with no arguments and no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilec import knobs
from tilec.codegen.cubin import available
from tilec.compiler import Options
from tilec.errors import BRIEF, CompilationError, did_you_mean, shown
from tilec.frontend.function import MISSING, Function
from tilec.frontend.signature import check_names, parse_signature
from tilec.language.context import active
from tilec.language.math import cdiv as tl_cdiv
from tilec.language.values import constexpr_function, unwrap
from tilec.runtime.arguments import as_plain, constant, constexpr_handler
from tilec.runtime.kernel import CompiledKernel
from tilec.target import DEFAULT, Target


@BRIEF
def compile(fn: Function, signature: Mapping[str, Any], constexprs: Mapping[str, Any] | None = None,
            target: str | Target | None = None, **options: Any) -> CompiledKernel:
    """Compile `fn` for argument types, without running it.

    signature: a type per run-time parameter: "*fp32", "i32", ...; ":16" marks divisibility by 16.
    constexprs: values of the other parameters. target: "sm_90a", ... (default: TILEC_TARGET, else
    sm_90a). options: those of `Options`. Raises CompilationError and OutOfResources.
    """
    kernel = specialized(fn, signature, constexprs, target, **options)
    kernel.announce()
    kernel.lower("cubin" if available() else "ptx")
    return kernel


def specialized(fn: Function, signature: Mapping[str, Any],
                constexprs: Mapping[str, Any] | None = None, target: str | Target | None = None,
                **options: Any) -> CompiledKernel:
    """What `compile` gives, not compiled yet."""
    if not isinstance(fn, Function):
        raise CompilationError(f"tilec.compile needs a @tilec.jit function, found {shown(fn)}")
    for what, given in (("signature", signature), ("constexprs", constexprs or {})):
        if not isinstance(given, Mapping):
            raise CompilationError(f"{what} is {shown(given)}, expected a dict", fn.def_location,
                                   "give each parameter's by its name")
    values = {k: constant(constexpr_handler(v)[0]) for k, v in (constexprs or {}).items()}
    specs = parse_signature(fn, signature)
    check_names(fn, values)
    for name in values:
        if name in specs:
            raise CompilationError(f"`{name}` is both in the signature and in the constexprs",
                                   fn.def_location)
    for p in fn.params:
        if p.name in specs and p.is_constexpr:
            raise CompilationError(f"`{p.name}` is a constexpr, but the signature gives it a type",
                                   fn.def_location, f"put its value into constexprs={{{p.name!r}:"
                                   " ...}")
        if p.name not in specs and p.name not in values:
            if p.default is MISSING:
                where = "constexprs" if p.is_constexpr else "the signature"
                raise CompilationError(f"`{p.name}` is not given", fn.def_location,
                                       f"add it to {where}")
            values[p.name] = unwrap(p.default)
    if target is None or isinstance(target, str) and not target:
        target = knobs.target or DEFAULT
    for name in options:
        if name not in Options.__dataclass_fields__:
            raise CompilationError(f"tilec.compile has no option `{name}`", None,
                                   did_you_mean(name, Options.__dataclass_fields__))
    chosen = Options(**{k: as_plain(v) for k, v in options.items()})
    return CompiledKernel(fn, specs, values, Target.parse(target), chosen)


def cdiv(a: Any, b: Any) -> Any:
    """a / b, rounded up; in a kernel, tl.cdiv."""
    return -(-a // b) if active() is None else tl_cdiv(a, b)


cdiv.__tilec_builtin__ = True  # type: ignore[attr-defined]


@constexpr_function
def next_power_of_2(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
