"""`tl.inline_asm_elementwise`: PTX of the author's own."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.ir import types as ir
from tilec.ir.ops.elementwise import asm_problem
from tilec.language.casting import as_dtype, common_shape, spread
from tilec.language.context import current, error
from tilec.language.values import builtin, const_value, describe, tensor, to_tensor, unwrap


@builtin
def inline_asm_elementwise(asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool,
                           pack: int) -> Any:
    """The results of PTX that is run on `args` (tensors or numbers, broadcast to one shape), for
    `pack` elements at a time; which ones come together is not specified.

    constraints: LLVM's, a letter for each register, outputs first: "=r,r,r" (h, r, l: 16, 32 and 64
    bits; f, d: float32, float64; "=&r": written before all inputs are read). In the text `$0`, `$1`
    ... are the registers. Elements of less than 32 bits come and go several to a register, the
    first one lowest, as far as `pack` goes. dtype: of the result, or a tuple of those of several.
    is_pure: whether it does nothing but compute its results; what is not pure stays where it is.
    Source: PTX ISA; LLVM Language Reference, inline assembler expressions.
    CompilationError where constraints do not fit the operands.
    """
    text, letters, count, pure = (const_value(x, f"{name} of tl.inline_asm_elementwise") for x, name
                                  in ((asm, "asm"), (constraints, "constraints"), (pack, "pack"),
                                      (is_pure, "is_pure")))
    if not isinstance(text, str) or not isinstance(letters, str):
        raise error("tl.inline_asm_elementwise: asm and constraints have to be strings, found "
                    f"{describe(text)} and {describe(letters)}", 'as in "add.u32 $0, $1, $2;" and '
                    '"=r,r,r"')
    if type(count) is not int or not 1 <= count <= 64:
        raise error(f"tl.inline_asm_elementwise: pack is {describe(count)}, expected an integer of "
                    "1 to 64", "it is how many elements one run of the PTX takes")
    args, several = unwrap(args), isinstance(unwrap(dtype), (tuple, list))
    inputs = [to_tensor(x) for x in (args if isinstance(args, (tuple, list)) else (args,))]
    dtypes = [as_dtype(t, "the dtype of tl.inline_asm_elementwise")
              for t in (unwrap(dtype) if several else (dtype,))]
    shape = common_shape("tl.inline_asm_elementwise", *[x.shape for x in inputs] or [()])
    handles = [spread(x, shape).handle for x in inputs]
    elements = [t.ir for t in dtypes if t.ir is not None]
    types = [ir.Tensor(shape, t) if shape else t for t in elements]
    if problem := asm_problem(text, letters, count, [v.type for v in handles], types):
        raise error(f"tl.inline_asm_elementwise: {problem}",
                    "there is a letter for each register: outputs with =, then inputs")
    op = ops.InlineAsm(handles, types=types, asm=text, constraints=letters, pack=count,
                       is_pure=bool(pure))
    current().builder.insert(op)
    results = tuple(tensor(v) for v in op.results)
    return results if several else results[0]
