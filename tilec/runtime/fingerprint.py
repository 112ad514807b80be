"""What decides, beside a kernel's own source, what it compiles to: a part of every cache key, so
that nothing is ever taken from an older tilec, or from another LLVM, nvJitLink, ptxas or Python.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tilec.codegen import cubin, llvm, ptxas

_SOURCE_SUFFIXES = (".py", ".lark")


@functools.cache
def source_fingerprint() -> str:
    """A digest of tilec's sources, LLVM, nvJitLink, ptxas and Python. Computed once a process, in
    a few milliseconds."""
    return _digest(Path(__file__).parents[1], *_toolchain(), _python())


def _digest(package: Path, *parts: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.encode() + b"\0")
    for name, path in sorted(_sources(package)):
        with open(path, "rb", buffering=0) as f:
            digest.update(name.encode() + b"\0" + f.read() + b"\0")
    return digest.hexdigest()


def _sources(package: Path) -> Iterator[tuple[str, str]]:
    """(path inside the package, full path) of every source file."""
    pending = [(str(package), "")]
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SOURCE_SUFFIXES):
                    yield prefix + entry.name, entry.path
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    pending.append((entry.path, prefix + entry.name + "/"))


def _python() -> str:
    return sys.implementation.cache_tag or sys.version


def _toolchain() -> list[str]:
    """LLVM's and nvJitLink's versions, by the names of their packages' metadata folders: asking
    the libraries would load them (0.2 s), which a cache hit has no other need for. ptxas is named
    by its file."""
    wanted = {"llvmlite-": llvm.version, "nvidia_nvjitlink-": cubin.version}
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                for prefix in wanted:
                    if name.startswith(prefix):
                        found.setdefault(prefix, name)
    return [*(found.get(prefix) or prefix + ask() for prefix, ask in wanted.items()),
            ptxas.identity()]
