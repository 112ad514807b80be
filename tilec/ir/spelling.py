"""What the authors of kernels call ops, for errors about their kernels: `tl.load`, which is
`tile.load` in the IR."""

from __future__ import annotations

import re

from tilec.ir.core import OP_CLASSES

# The others have their own name, in `tl` or `tlg`.
_SPELLED = {
    "scf.for": "`for`", "scf.if": "`if`", "scf.while": "`while`",
    "tile.add": "`+`", "tile.sub": "`-`", "tile.mul": "`*`", "tile.div": "`/`", "tile.rem": "`%`",
    "tile.neg": "`-`", "tile.not": "`~`", "tile.and": "`&`", "tile.or": "`|`", "tile.xor": "`^`",
    "tile.shl": "`<<`", "tile.shr": "`>>`", "tile.addptr": "`+`", "tile.cmp": "a comparison",
    "tile.bitcast": "tl.cast", "tile.splat": "tl.broadcast_to", "tile.broadcast": "tl.broadcast_to",
    "tile.constant": "a constant", "tile.hint": "a hint", "tile.select": "tl.where",
    "tile.scan": "tl.associative_scan",
    "tile.atomic_rmw": "an atomic", "tile.assert": "tl.device_assert",
    "tile.print": "tl.device_print", "tile.breakpoint": "breakpoint",
    "tile.descriptor_load": "desc.load", "tile.descriptor_store": "desc.store",
    "tile.descriptor_atomic": "an atomic of a descriptor",
    "gpu.shared_load": "buffer.load", "gpu.shared_store": "buffer.store",
    "gpu.remote_load": "buffer.at(rank).load", "gpu.memdesc_index": "buffer[i]",
    "gpu.memdesc_trans": "buffer.trans", "gpu.set_layout": "tlg.convert_layout",
    "gpu.mbarrier_init": "tlg.mbarrier", "gpu.mbarrier_expect": "mbarrier.expect",
    "gpu.mbarrier_arrive": "mbarrier.arrive", "gpu.mbarrier_wait": "mbarrier.wait",
    "gpu.remote_arrive": "mbarrier.arrive", "gpu.named_barrier_arrive": "named_barrier.arrive",
    "gpu.named_barrier_sync": "named_barrier.sync", "gpu.warp_role": "tlg.warp_specialize",
    "gpu.tma_load": "tlg.tma.load", "gpu.tma_multicast": "tlg.tma.load",
    "gpu.tma_store": "tlg.tma.store", "gpu.tma_store_commit": "tlg.tma.store_commit",
    "gpu.tma_store_wait": "tlg.tma.store_wait", "gpu.prefetch_tensormap": "tlg.tma.prefetch",
    "gpu.grid_dependency_wait": "tl.extra.cuda.gdc_wait",
    "gpu.grid_dependency_launch": "tl.extra.cuda.gdc_launch_dependents",
}
_MODULES = {"tile": "tl", "gpu": "tlg"}


def as_authors_say(text: str) -> str:
    """A message, with the ops in it named as authors write them. What only looks like an op, as the
    name of a file `tile.py` or a method of an author's `tile`, stays."""
    return re.sub(r"\b(tile|gpu|scf)\.(\w+)", lambda found: found[0] if found[0] not in OP_CLASSES
                  else _SPELLED.get(found[0]) or f"{_MODULES.get(found[1], found[1])}.{found[2]}",
                  text)
