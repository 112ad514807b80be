"""What the disk cache holds of a compiled kernel: the texts and the cubin as files, the rest in
`meta.json`, whose kinds are declared here and checked when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tilec.codegen.cubin import LinkResult
from tilec.compiler import Compiled, Options
from tilec.errors import TilecError
from tilec.runtime import checks
from tilec.runtime.cache import conforms, parse_json
from tilec.runtime.maps import from_json, to_json
from tilec.target import Target

META = "meta.json"
FILES = {META, "cubin", "ptx", "ll"}
_LINKED = {"n_regs": int, "n_spills": int, "stack": int, "static_shared": int, "assembler": str,
           "log": str}
_META = {"name": str, "threads": int, "shared": int, "linked": _LINKED, "maps": [list],
         "checks": [checks.KIND]}


def to_files(made: Compiled) -> dict[str, bytes]:
    """The files of a kernel that was compiled down to the cubin."""
    linked = made.linked
    assert linked is not None
    meta = {"name": made.name, "threads": made.threads, "shared": made.shared,
            "linked": {name: getattr(linked, name) for name in _LINKED},
            "maps": list(map(to_json, made.maps)), "checks": checks.to_json(made.checks)}
    return {META: json.dumps(meta).encode(), "cubin": linked.cubin, "ptx": made.ptx.encode(),
            "ll": made.llir_text.encode()}


def from_files(files: Mapping[str, bytes], target: Target, options: Options) -> Compiled | None:
    """The kernel that `to_files` wrote; None for files that are not of its making."""
    if files.keys() != FILES:
        return None
    try:
        meta = parse_json(files[META])
        if not conforms(meta, _META):
            return None
        return Compiled(target, options, meta["name"], ptx=files["ptx"].decode(),
                        llir_text=files["ll"].decode(), threads=meta["threads"],
                        shared=meta["shared"],
                        linked=LinkResult(cubin=files["cubin"], **meta["linked"]),
                        maps=list(map(from_json, meta["maps"])),
                        checks=checks.from_json(meta["checks"]))
    except (ValueError, TilecError):
        return None
