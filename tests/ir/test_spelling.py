"""Errors about kernels call ops as their authors do."""

import pytest

import tilec.language as tl
import tilec.language.gpu as tlg
from tilec.ir.core import OP_CLASSES
from tilec.ir.spelling import as_authors_say
from tilec.language.descriptors import tensor_descriptor
from tilec.language.gpu.barriers import barrier_array
from tilec.language.gpu.named_barriers import barrier_of_roles

KNOWN = {"tl": tl, "tlg": tlg, "desc": tensor_descriptor, "buffer": tlg.shared_buffer,
         "mbarrier": barrier_array, "named_barrier": barrier_of_roles}


@pytest.mark.parametrize("name", [n for n in OP_CLASSES if n.split(".")[0] in ("tile", "gpu")])
def test_every_name_is_one_of_the_language(name):
    said = as_authors_say(name)
    assert said != name
    base, *parts = said.partition("(")[0].split(".")
    found = KNOWN.get(base)
    for part in parts:
        found = getattr(found, part)
    assert parts or base[0] == "`" or base in ("breakpoint", "buffer[i]") or \
        base.startswith(("a ", "an "))


def test_in_a_sentence():
    assert as_authors_say("gpu.tma_store reads what gpu.shared_store wrote; tile.add, scf.for at "
                          "x.py:3, gpu.fence_async and a gpu.barrier, other.load") == \
        "tlg.tma.store reads what buffer.store wrote; `+`, `for` at x.py:3, tlg.fence_async and " \
        "a tlg.barrier, other.load"


def test_what_looks_like_an_op_stays():
    text = "assertion failed: tile.sum(0) < 3 at /home/gpu.py:12, in gpu.frames"
    assert as_authors_say(text) == text
