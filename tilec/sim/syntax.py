"""Which modifiers each instruction may have, in which order: PTX ISA, "Instruction Set".

A form is a list of slots. `a|b` is one of the words, `[a|b]` one of them or none, and a name in
capitals stands for the words of SETS. An instruction that no form of its opcode fits is refused.
"""

from __future__ import annotations

import re
from functools import cache

from tilec.sim.ptx import Instr, Operand

SETS = {
    "INT": "u16|s16|u32|s32|u64|s64", "SINT": "s16|s32|s64",
    "WORD": "u32|s32|u64|s64",
    "WIDE": "u16|s16|u32|s32", "INT32": "u32|s32", "BITS": "b16|b32|b64", "BIT": "b32|b64",
    "ANY": "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64",
    "MEMORY": "b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
    "HALF": "f16|f16x2|bf16|bf16x2", "ROUND": "rn|rz|rm|rp", "SCOPE": "cta|cluster|gpu|sys",
    "SHARED": r"shared|shared::cta|shared::cluster", "OP": "and|or|xor",
    "ORDER": "eq|ne|lt|le|gt|ge", "ABOVE": "lo|ls|hi|hs",
    "UNORDERED": "equ|neu|ltu|leu|gtu|geu|num|nan",
    "SPACE": "global|const|local|param|param::entry|param::func|shared|shared::cta|shared::cluster",
    "EVICT": r"L1::evict_\w+|L1::no_allocate", "EVICT2": r"L2::evict_\w+",
    "PREFETCH": "L2::64B|L2::128B|L2::256B", "HINT": "L2::cache_hint", "VEC": "v2|v4|v8",
    "CVTI": "u8|u16|u32|u64|s8|s16|s32|s64", "SMALL": "e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2",
    "INTEGRAL": "rni|rzi|rmi|rpi",
    "MMA": "f16|bf16|tf32|f32|f64|s32|s8|u8|s4|u4|b1|e4m3|e5m2|e3m2|e2m3|e2m1",
    "SHAPE": r"m\d+n\d+k\d+", "DIM": "[1-5]d", "BYTES": r"mbarrier::complete_tx::bytes",
}

_FLOAT2 = ("[ROUND] [ftz] [sat] f32", "[ROUND] f64", "[rn] [ftz] [sat] f16|f16x2",
           "[rn] bf16|bf16x2", "[ROUND] [ftz] f32x2", "[ROUND] [sat] f32 f16|bf16")
_MINMAX = ("INT", "u16x2|s16x2", "relu s16x2|s32", "[ftz] [NaN] [xorsign] [abs] f32", "f64",
           "[ftz] [NaN] [xorsign] [abs] HALF")
_APPROX = ("approx [ftz] f32",)
_ROOT = (*_APPROX, "ROUND [ftz] f32", "ROUND f64")
_COMPARE = ("eq|ne [OP] {} BITS", "ORDER [OP] {} SINT", "ORDER|ABOVE [OP] {} u16|u32|u64",
            "ORDER|UNORDERED [OP] [ftz] {} f32|HALF", "ORDER|UNORDERED [OP] {} f64")
_REDUCE = ("and|or|xor [HINT] BIT", "inc|dec [HINT] u32", "add [HINT] u32|s32|u64|f32|f64",
           "min|max [HINT] WORD", "add noftz [HINT] HALF", "min|max noftz [HINT] HALF",
           "add|min|max [noftz] [HINT] VEC f32|HALF")
_ATOM = (*_REDUCE, "cas [HINT] BITS|b128", "exch [HINT] BIT|b128")
_WAIT = ("[parity] [acquire|relaxed] [cta|cluster] SHARED b64", "[parity] [acquire|relaxed] "
         "[cta|cluster] b64")
_ARRIVE = "[release|relaxed] [cta|cluster] [SHARED] b64"
_TRANSFER = r"[shared::cta|shared::cluster|global] [shared::cta|global]"

FORMS: dict[str, tuple[str, ...]] = {
    "add": ("INT", "u16x2|s16x2", "sat s32", "cc WORD", *_FLOAT2),
    "sub": ("INT", "sat s32", "cc WORD", *_FLOAT2),
    "addc": ("[cc] WORD",), "subc": ("[cc] WORD",),
    "mul": ("lo|hi INT", "wide WIDE", *_FLOAT2[:-1]), "mul24": ("lo|hi INT32",),
    "mad": ("lo|hi INT", "wide WIDE", "hi sat s32", "lo|hi cc WORD", "[ROUND] [ftz] [sat] f32",
            "ROUND f64"),
    "mad24": ("lo|hi INT32", "hi sat s32"), "madc": ("lo|hi [cc] WORD",),
    "fma": ("ROUND [ftz] [sat] f32", "ROUND f64", "rn [ftz] [sat] f16|f16x2",
            "rn [ftz] relu f16|f16x2", "rn [relu] bf16|bf16x2", "rn oob [relu] HALF",
            "ROUND [ftz] f32x2", "ROUND [sat] f32 f16|bf16"),
    "div": ("INT", "approx|full|ROUND [ftz] f32", "ROUND f64"), "rem": ("INT",), "sad": ("INT",),
    "abs": ("SINT", "[ftz] f32", "f64", "[ftz] f16|f16x2", "bf16|bf16x2"),
    "neg": ("SINT", "[ftz] f32", "f64", "[ftz] f16|f16x2", "bf16|bf16x2"),
    "min": _MINMAX, "max": _MINMAX,
    "dp4a": ("INT32 INT32",), "dp2a": ("lo|hi INT32 INT32",),
    "and": ("BITS|pred",), "or": ("BITS|pred",), "xor": ("BITS|pred",), "not": ("BITS|pred",),
    "cnot": ("BITS",), "shl": ("BITS",), "shr": ("BITS|INT",), "shf": ("l|r clamp|wrap b32",),
    "lop3": ("[and|or] b32",), "popc": ("BIT",), "clz": ("BIT",), "brev": ("BIT",),
    "bfind": ("[shiftamt] WORD",), "bfe": ("WORD",), "bfi": ("BIT",), "fns": ("b32",),
    "bmsk": ("clamp|wrap b32",), "szext": ("clamp|wrap INT32",),
    "prmt": ("b32 [f4e|b4e|rc8|ecl|ecr|rc16]",),
    "rcp": (*_ROOT, "approx ftz f64"), "sqrt": _ROOT,
    "rsqrt": ("approx [ftz] f32", "approx [ftz] f64"),
    "sin": _APPROX, "cos": _APPROX, "lg2": _APPROX,
    "ex2": (*_APPROX, "approx f16|f16x2", "approx ftz bf16|bf16x2"),
    "tanh": ("approx f32|HALF",),
    "testp": ("finite|infinite|number|notanumber|normal|subnormal f32|f64",),
    "copysign": ("f32|f64",),
    "setp": tuple(form.format("") for form in _COMPARE),
    "set": tuple(form.format("u32|s32|f32|u16|s16|HALF") for form in _COMPARE),
    "selp": ("ANY",), "slct": ("[ftz] ANY s32|f32",),
    "mov": ("ANY|pred|b128",),
    "cvt": ("[sat] CVTI CVTI",
            "INTEGRAL [ftz] [sat] CVTI f32", "INTEGRAL [sat] CVTI f16|f64", "INTEGRAL CVTI bf16",
            "ROUND [ftz] [sat] f32 CVTI", "ROUND [sat] f16|f64 CVTI", "ROUND bf16 CVTI",
            "[INTEGRAL] [ftz] [sat] f32 f32", "[INTEGRAL] [sat] f16 f16", "[INTEGRAL] bf16 bf16",
            "[INTEGRAL] [sat] f64 f64", "[ROUND] f16 bf16", "[ROUND] bf16 f16",
            "[ftz] [sat] f32 f16", "[ROUND] [ftz] f32 bf16", "[sat] f64 f16", "[ROUND] f64 bf16",
            "[ftz] [sat] f64 f32", "ROUND [ftz] [sat] f16 f32", "ROUND [ftz] bf16 f32",
            "ROUND [sat] f16 f64", "ROUND bf16 f64", "ROUND [ftz] [sat] f32 f64",
            "rn|rz [relu] [satfinite] f16|bf16|f16x2|bf16x2 f32",
            "rn|rz [satfinite] [relu] tf32 f32", "rna [satfinite] tf32 f32",
            "rs [relu] [satfinite] f16x2|bf16x2 f32", "rn [ftz] [sat] f16x2|bf16x2 f32",
            "rn satfinite [relu] SMALL f32|f16x2", "rn [relu] f16x2 SMALL",
            "rz|rp [satfinite] ue8m0x2 f32|bf16x2", "rn bf16x2 ue8m0x2",
            "pack sat u16|s16|u8|s8|u4|s4|u2|s2 s32 [b32]"),
    "cvta": ("[to] SPACE u32|u64",), "isspacep": ("SPACE",),
    "ld": ("[weak] [SPACE] [ca|cg|cs|lu|cv|nc] [EVICT] [EVICT2] [HINT] [PREFETCH] [VEC] MEMORY",
           "[SPACE] [ca|cg|cs] nc [EVICT] [EVICT2] [HINT] [PREFETCH] [VEC] MEMORY",
           "volatile [SPACE] [PREFETCH] [VEC] MEMORY",
           "relaxed|acquire SCOPE [SPACE] [EVICT] [EVICT2] [HINT] [PREFETCH] [VEC] MEMORY",
           "mmio relaxed sys [global] MEMORY"),
    "ldu": ("[global] [VEC] MEMORY",),
    "st": ("[weak] [SPACE] [wb|cg|cs|wt] [EVICT] [EVICT2] [HINT] [VEC] MEMORY",
           "volatile [SPACE] [VEC] MEMORY",
           "relaxed|release SCOPE [SPACE] [EVICT] [EVICT2] [HINT] [VEC] MEMORY",
           "async [weak] [shared::cluster] BYTES [v2|v4] b32|b64|u32|u64|s32|s64|f32|f64"),
    "prefetch": ("[global|local] L1|L2", r"global EVICT2", "[param|const] tensormap"),
    "prefetchu": ("L1",), "applypriority": ("[global] EVICT2",), "discard": ("[global] L2",),
    "createpolicy": ("fractional EVICT2 [EVICT2] b64", "range [global] EVICT2 [EVICT2] b64",
                     "cvt L2 b64"),
    "atom": (*(f"[relaxed|acquire|release|acq_rel] [SCOPE] [SPACE] {form}" for form in _ATOM),
             *(f"[SPACE] [SCOPE] [relaxed|acquire|release|acq_rel] {form}" for form in _ATOM)),
    "red": (*(f"[relaxed|release] [SCOPE] [SPACE] {form}" for form in _REDUCE),
            "async relaxed cluster [shared::cluster] BYTES and|or|xor|add|inc|dec|min|max "
            "BIT|WORD"),
    "bar": ("[cta] sync|arrive", "[cta] red popc u32", "[cta] red and|or pred", "warp sync"),
    "barrier": ("[cta] sync|arrive [aligned]", "[cta] red popc [aligned] u32",
                "[cta] red and|or [aligned] pred", "cluster arrive [release|relaxed] [aligned]",
                "cluster wait [acquire] [aligned]"),
    "membar": ("cta|gl|sys", r"proxy alias|async|async.global|async.shared::cta"),
    "fence": ("[sc|acq_rel|acquire|release] SCOPE",
              "proxy alias|async|async.global|async.shared::cta|async.shared::cluster",
              r"proxy tensormap::generic acquire|release SCOPE", "mbarrier_init release cluster",
              "acquire|release sync_restrict::shared::cluster|sync_restrict::shared::cta cluster",
              "proxy async::generic acquire|release "
              "sync_restrict::shared::cluster|sync_restrict::shared::cta cluster"),
    "shfl": ("sync up|down|bfly|idx b32",), "vote": ("sync all|any|uni pred", "sync ballot b32"),
    "match": ("any|all sync BIT",), "activemask": ("b32",), "elect": ("sync",),
    "redux": ("sync add|min|max INT32", "sync OP b32", "sync min|max [abs] [NaN] f32"),
    "griddepcontrol": ("wait|launch_dependents",), "nanosleep": ("u32",),
    "setmaxnreg": ("inc|dec sync aligned u32",),
    "mapa": ("[shared::cluster] u32|u64",), "getctarank": ("[shared::cluster] u32|u64",),
    "bra": ("[uni]",), "brx": ("idx [uni]",), "call": ("[uni]",), "ret": ("[uni]",), "exit": ("",),
    "trap": ("",), "brkpt": ("",), "pmevent": ("[mask]",),
    "mbarrier": ("init|inval [SHARED] b64", f"arrive|arrive_drop {_ARRIVE}",
                 f"arrive|arrive_drop expect_tx {_ARRIVE}",
                 f"arrive|arrive_drop noComplete {_ARRIVE}",
                 *(f"test_wait|try_wait {form}" for form in _WAIT), "pending_count b64",
                 "expect_tx|complete_tx [relaxed] [cta|cluster] [SHARED] b64"),
    "ldmatrix": ("sync aligned m8n8 x1|x2|x4 [trans] [shared|shared::cta] b16",
                 "sync aligned m16n16 x1|x2 trans [shared|shared::cta] b8"),
    "stmatrix": ("sync aligned m8n8 x1|x2|x4 [trans] [shared|shared::cta] b16",
                 "sync aligned m16n8 x1|x2|x4 trans [shared|shared::cta] b8"),
    "mma": ("sync aligned SHAPE row|col row|col [satfinite] MMA MMA MMA MMA",
            "sync aligned SHAPE row|col row|col s32 b1 b1 s32 xor|and popc"),
    "wgmma": ("fence|commit_group|wait_group sync aligned",
              "mma_async sync aligned SHAPE MMA MMA MMA [satfinite]"),
    "cp": ("async ca|cg shared|shared::cta global [HINT] [PREFETCH]",
           "async commit_group|wait_group|wait_all", "async mbarrier arrive [noinc] [SHARED] b64",
           "async bulk commit_group", "async bulk wait_group [read]",
           f"async bulk {_TRANSFER} [BYTES|bulk_group] [multicast::cluster] [HINT] [cp_mask]",
           "async bulk prefetch L2 global [HINT]",
           f"async bulk tensor DIM {_TRANSFER} [tile|im2col] [BYTES|bulk_group] "
           "[multicast::cluster] [cta_group::1|cta_group::2] [HINT]",
           "async bulk prefetch tensor DIM L2 global [tile|im2col] [HINT]",
           "reduce async bulk tensor DIM global shared::cta add|min|max|inc|dec|and|or|xor "
           "[tile|im2col] bulk_group [HINT]",
           f"reduce async bulk {_TRANSFER} [BYTES|bulk_group] [HINT] "
           "add|min|max|inc|dec|and|or|xor [noftz] BIT|WORD|f16|bf16|f32|f64"),
}


# Of opcodes whose rules read some operands only: how many there are, without what a modifier adds.
COUNTS = {"ld": 2, "ldu": 2, "st": 2, "mov": 2, "cvta": 2, "shfl": 5, "setp": 3, "selp": 4,
          "bra": 1, "atom": 3, "red": 2, "ret": 0, "exit": 0, "trap": 0, "prefetch": 1,
          "prefetchu": 1, "applypriority": 2, "discard": 2, "nanosleep": 1, "membar": 0,
          "griddepcontrol": 0, "isspacep": 2}
# What takes the address of a variable, or a special register: all others take registers.
NAMING = frozenset({"mov", "cvta", "call"})
# Which results may be `_`: the only one, and each of `a|b`. Of a vector any but not all may.
SINKS = frozenset({"atom", "setp", "lop3", "mbarrier.arrive", "mbarrier.arrive_drop"})
SINKS_OF_PAIRS = {"setp": (True, True), "match": (True, True), "shfl": (False, True),
                  "elect": (True, False)}


@cache
def _pattern(op: str) -> re.Pattern[str]:
    """The modifiers that an opcode may have, each with its dot in front."""
    return re.compile("|".join(map(_form, FORMS[op])))


def _form(text: str) -> str:
    slots = []
    for slot in text.split():
        optional = slot[0] == "[" and slot[-1] == "]"
        words = re.sub(r"\b[A-Z][A-Z0-9]+\b", lambda m: SETS.get(m[0], m[0]),
                       slot[1:-1] if optional else slot)
        slots.append(rf"(?:\.(?:{words.replace('.', chr(92) + '.')}))" + "?" * optional)
    return "".join(slots)


def counts(op: str, mods: tuple[str, ...], operands: int) -> bool:
    """Whether an instruction may have so many operands."""
    if op not in COUNTS or "async" in mods:
        return True
    more = ("L2::cache_hint" in mods) + (op == "atom" and "cas" in mods)
    more += op == "setp" and bool({"and", "or", "xor"} & set(mods))
    return operands == COUNTS[op] + more


def discards(instr: Instr) -> bool:
    """Whether an instruction has `_` only where it may have it for a result, by what ptxas takes;
    where a source is `_`, its rule refuses it."""
    result = instr.operands[0] if instr.operands else Operand("list")
    if result.kind == "sink":
        return instr.op in SINKS or ".".join((instr.op, *instr.mods[:1])) in SINKS
    sinks = [item.kind == "sink" for item in result.items]
    if result.kind == "pair":
        may = SINKS_OF_PAIRS.get(instr.op, (False, False))
        return sum(sinks) < 2 and all(allowed for allowed, sink in zip(may, sinks) if sink)
    return not sinks or result.kind != "vec" or not all(sinks)


@cache
def known(op: str, mods: tuple[str, ...]) -> bool:
    """Whether an instruction may have these modifiers; any where the opcode has no form here."""
    return op not in FORMS or _pattern(op).fullmatch("".join(f".{m}" for m in mods)) is not None
