"""LLVM IR text to PTX text, by llvmlite.

LLVM's back end ends the process where it meets something it cannot select, so everything known
to do that is refused here beforehand. (The pass pipeline: see `_optimise`.)
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tilec.errors import InternalError, IRError, TilecError
from tilec.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
DATA_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"

# Generic intrinsics that NVPTX selects for every float and integer width on sm_75 and later,
# scalar and vector. tests/codegen/test_llvm.py runs each through the back end.
SAFE_INTRINSICS = frozenset(
    """bitreverse ceil copysign ctlz ctpop cttz fabs floor fma fmuladd fptosi.sat fptoui.sat fshl
    fshr ldexp maximum maximumnum maxnum minimum minimumnum minnum nearbyint rint round roundeven
    sadd.sat sqrt smax smin sshl.sat ssub.sat trunc uadd.sat umax umin ushl.sat usub.sat abs
    vector.reduce.fadd vector.reduce.fmax vector.reduce.fmaximum vector.reduce.fmin
    vector.reduce.fminimum vector.reduce.fmul vector.reduce.add vector.reduce.and vector.reduce.mul
    vector.reduce.or vector.reduce.smax vector.reduce.smin vector.reduce.umax vector.reduce.umin
    vector.reduce.xor smul.with.overflow umul.with.overflow assume trap dbg.value dbg.declare
    lifetime.start lifetime.end expect launder.invariant.group""".split()
)
# These have an f32, f16 and bf16 form only; those of the second line only where `afn` allows an
# approximation.
NO_F64 = frozenset(["exp2", "sin", "cos", "tanh"])
AFN_ONLY = frozenset(["sin", "cos", "tanh"])

_DECLARED = re.compile(r'^[ \t]*declare [^@]*@"?llvm\.([\w.]+)"?\(', re.M)
# Type suffixes of an overloaded intrinsic: .f32, .v4bf16, .i32, .p3 ...
_SUFFIX = re.compile(r"(\.(nxv\d+|v\d+)?(f16|bf16|f32|f64|i\d+|p\d+))+$")
_PACKED_SUM = re.compile(r"add\.s16x2\s+([^,;]+),\s*([^,;]+),\s*([^,;]+);")
_EXTERN = re.compile(r"^\.extern \.func[^;]*?(llvm\.[\w.]+)", re.M)
_PARSE_ERROR = re.compile(r"<string>:(\d+):(\d+): error: (.*)")


@functools.cache
def _binding() -> Any:
    """llvmlite.binding with the targets registered (about 0.1 s, once)."""
    import llvmlite.binding as binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


@functools.cache
def _target_machine(cpu: str, features: str) -> Any:
    backend = _binding().Target.from_triple(TRIPLE)
    return backend.create_target_machine(cpu=cpu, features=features, opt=3)


def version() -> str:
    """The version of LLVM inside llvmlite, "22.1.0"."""
    return ".".join(map(str, _binding().llvm_version_info))


def verify(llir: str) -> None:
    """Parse and verify LLVM IR text; IRError shows LLVM's message and the line it names."""
    _parse(llir)


def emit_ptx(llir: str, target: Target, opt_level: int = 1, isolated: bool = False) -> str:
    """The PTX that LLVM makes of `llir` for `target`.

    opt_level: 0 no passes, 1 the short pipeline, 2 and 3 LLVM's own. isolated: run in a process
    of its own; use it for text that a person edited, since LLVM may end the process it runs in.
    Raises IRError where the text does not parse or verify, and where NVPTX has no instruction for
    it InternalError, or IRError if it was edited.
    """
    try:
        llir.encode()
    except UnicodeEncodeError as e:
        raise IRError(f"no file can hold this text: {e}") from None
    if isolated:
        return _emit_isolated(llir, target, opt_level)
    _refuse_unselectable(llir)
    module = _parse(llir)
    machine = _target_machine(target.name, f"+ptx{target.ptx_version}")
    _optimise(module, machine, opt_level)
    ptx = _PACKED_SUM.sub(_unpacked_sum, machine.emit_assembly(module))
    if unknown := _EXTERN.search(ptx):
        raise InternalError(f"LLVM does not know the intrinsic `{unknown[1]}`")
    return ptx


def _unpacked_sum(found: re.Match[str]) -> str:
    """Two sums of 16 bits that share a register, one by one. From sm_90 on LLVM packs those of
    vectors, also of 32-bit ones that need 16 bits only; of `add.s16x2` with a constant ptxas,
    nvJitLink and the driver of CUDA 13.0 lose the constant's upper half (13.5 does not)."""
    d, a, b = found.groups()
    return (f"{{ .reg .b16 l, h, m, n; mov.b32 {{l, h}}, {a}; mov.b32 {{m, n}}, {b}; "
            f"add.s16 l, l, m; add.s16 h, h, n; mov.b32 {d}, {{l, h}}; }}")


def _parse(llir: str) -> Any:
    binding = _binding()
    # The parser resolves omitted alignments by the layout, so it must be in the text; on the
    # first line, so that LLVM's line numbers stay those of `llir`.
    layout = "" if "target datalayout" in llir else f'target datalayout = "{DATA_LAYOUT}" '
    try:
        module = binding.parse_assembly(layout + llir)
        module.triple = TRIPLE
        module.data_layout = DATA_LAYOUT
        module.verify()
    except RuntimeError as e:
        raise IRError(_explain(str(e), llir)) from None
    return module


def _explain(message: str, llir: str) -> str:
    """LLVM's message, with the line of text that it points at."""
    found = _PARSE_ERROR.search(message)
    if not found:
        return "LLVM IR does not verify: " + message.strip()
    line, column, what = int(found[1]), int(found[2]), found[3]
    lines = llir.splitlines()
    text = lines[line - 1] if line <= len(lines) else ""
    return f"LLVM IR, line {line}: {what}\n    {text}\n    {' ' * (column - 1)}^"


def _refuse_unselectable(llir: str) -> None:
    """InternalError for a generic intrinsic on which the NVPTX back end is known to abort. (NVPTX's
    own are checked where they are emitted.)"""
    for name in _DECLARED.findall(llir):
        if name.startswith("nvvm."):
            continue
        base = _SUFFIX.sub("", name)
        if base in NO_F64:
            if name.endswith("f64"):
                raise InternalError(f"NVPTX has no f64 `llvm.{base}`")
            if base in AFN_ONLY:
                _require_afn(llir, name)
        elif base not in SAFE_INTRINSICS:
            raise InternalError(f"NVPTX is not known to select `llvm.{name}`")


def _require_afn(llir: str, name: str) -> None:
    for call in re.finditer(rf'^.*\bcall\b(.*)@"?llvm\.{re.escape(name)}"?\(', llir, re.M):
        if not re.search(r"\b(afn|fast)\b", call[1]):
            raise InternalError(f"NVPTX selects `llvm.{name}` only where it is called with `afn`")


def _optimise(module: Any, machine: Any, opt_level: int) -> None:
    """The pass pipeline.

    tilec's own passes have done CSE, LICM and unrolling, and ptxas optimises again: on tile
    code this short list gives the same SASS as LLVM's O1 to O3 (or less, since it does not
    rotate loops) in a fifth of the time. Loops are never unrolled or vectorised: a loop around
    mma instructions must stay one.
    """
    if opt_level == 0:
        return
    binding = _binding()
    options = binding.create_pipeline_tuning_options(speed_level=opt_level)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.loop_interleaving = False
    builder = binding.create_pass_builder(machine, options)
    if opt_level > 1:
        builder.getModulePassManager().run(module, builder)
        return
    passes = binding.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def _emit_isolated(llir: str, target: Target, opt_level: int) -> str:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tilec.codegen.llvm", target.name, str(opt_level)],
            input=llir, capture_output=True, encoding="utf-8", timeout=_PATIENCE,
            env={**os.environ, "PYTHONPATH": path})
    except subprocess.TimeoutExpired:
        raise IRError(f"LLVM has not come to an end with this text in {_PATIENCE} s") from None
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    if done.returncode == _OUR_ERROR:
        raise IRError("\n".join(lines))
    fatal = next((x for x in lines if "error" in x.lower()), lines[-1])
    raise IRError(f"LLVM's back end gave up: {fatal}", None,
                  "NVPTX has no instruction for something in the edited text")


_OUR_ERROR = 3
_PATIENCE = 300  # seconds; the largest kernels take some 40


def _main() -> int:
    target, opt_level = Target.parse(sys.argv[1]), int(sys.argv[2])
    try:
        ptx = emit_ptx(sys.stdin.read(), target, opt_level)
    except TilecError as e:
        print(e, file=sys.stderr)
        return _OUR_ERROR
    sys.stdout.write(ptx)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
