"""Which of Triton's names tilec answers to, and where in tilec each is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

VERSION = "3.6.0"  # of the Triton whose names these are


class Names(NamedTuple):
    """What one of Triton's modules holds: all public names of one of tilec's modules, and others,
    each with the module that has it, as "module" or "module:name there"."""

    module: str = ""
    others: Mapping[str, str] = {}


def _of(module: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, module)


_TUNING = {**_of("tilec.runtime.tuner", "Autotuner", "Config", "autotune"),
           **_of("tilec.runtime.heuristics", "Heuristics", "heuristics")}
_JIT = {**_of("tilec.runtime.jit", "JITFunction", "jit"),
        **_of("tilec.language.values", "constexpr_function"),
        **_of("tilec.runtime.arguments", "TensorWrapper", "reinterpret"),
        **_of("tilec.runtime.interface", "KernelInterface")}
_ERRORS = {**_of("tilec.errors", "CompilationError", "OutOfResources"),
           "TritonError": "tilec.errors:TilecError"}
_ABSENT = _of("tilec.compat.absent", "float8e4b8", "float8e5b16")
_COMPILED = _of("tilec.runtime.kernel", "CompiledKernel")

MODULES = {
    "triton": Names(others={
        **_TUNING, **_JIT, **_ERRORS, **_of("tilec.runtime.aot", "cdiv", "next_power_of_2"),
        **_of("tilec.runtime.driver", "set_allocator")}),
    "triton.backends": Names(others=_of("tilec.compat.absent", "backends")),
    "triton.backends.compiler": Names(others=_of("tilec.runtime.interface", "GPUTarget")),
    "triton.compiler": Names(others={**_ERRORS, **_COMPILED}),
    "triton.compiler.compiler": Names(others={
        **_COMPILED, "triton_key": "tilec.runtime.fingerprint:source_fingerprint"}),
    "triton.compiler.errors": Names(others=_ERRORS),
    "triton.language": Names("tilec.language", _ABSENT),
    "triton.language.core": Names("tilec.language.core", _ABSENT),
    "triton.language.extra": Names("tilec.language.extra"),
    "triton.language.extra.cuda": Names("tilec.language.extra.cuda"),
    "triton.language.extra.cuda.libdevice": Names("tilec.language.extra.libdevice"),
    "triton.language.extra.libdevice": Names("tilec.language.extra.libdevice"),
    "triton.language.math": Names("tilec.language.math"),
    "triton.language.random": Names("tilec.language.random"),
    "triton.language.standard": Names("tilec.language.standard"),
    "triton.runtime": Names(others={**_TUNING, **_JIT, **_ERRORS}),
    "triton.runtime.autotuner": Names(others={**_TUNING, **_ERRORS}),
    "triton.runtime.cache": Names(others={
        "triton_key": "tilec.runtime.fingerprint:source_fingerprint"}),
    "triton.runtime.driver": Names(others=_of("tilec.runtime.driver", "active")),
    "triton.runtime.errors": Names(others=_ERRORS),
    "triton.runtime.jit": Names(others=_JIT),
    "triton.testing": Names("tilec.testing"),
    "triton.tools": Names(),
    "triton.tools.tensor_descriptor": Names(
        others=_of("tilec.runtime.descriptors", "TensorDescriptor")),
}
