"""All op declarations: `ops.Add`, `ops.For`, `ops.ConvertLayout`, ...

A new op is declared in the file of its dialect; importing this package registers it.
"""

from tilec.ir.ops.elementwise import (
    Abs,
    Add,
    AddPtr,
    And,
    Bitcast,
    Cast,
    Ceil,
    Cmp,
    Cos,
    Div,
    Elementwise,
    Erf,
    Exp,
    Exp2,
    Floor,
    Fma,
    Hint,
    Log,
    Log2,
    MathUnary,
    Maximum,
    Minimum,
    Mul,
    Neg,
    Not,
    Or,
    Rem,
    Rsqrt,
    Select,
    Shl,
    Shr,
    Sin,
    Sqrt,
    Sub,
    Tanh,
    Xor,
)
from tilec.ir.ops.gpu import AllocShared, Barrier, ConvertLayout, SharedLoad, SharedStore
from tilec.ir.ops.memory import Assert, Assume, AtomicRmw, Breakpoint, Load, Print, Store
from tilec.ir.ops.scf import Condition, ControlFlow, For, If, Return, While, Yield
from tilec.ir.ops.tile import (
    Arange,
    Broadcast,
    Constant,
    Dot,
    ExpandDims,
    NumPrograms,
    ProgramId,
    Reduce,
    Reshape,
    Splat,
    Trans,
)

__all__ = [
    "Abs", "Add", "AddPtr", "AllocShared", "And", "Arange", "Assert", "Assume", "AtomicRmw",
    "Barrier", "Bitcast", "Breakpoint", "Broadcast", "Cast", "Ceil", "Cmp", "Condition", "Constant",
    "ControlFlow", "ConvertLayout", "Cos", "Div", "Dot", "Elementwise", "Erf", "Exp", "Exp2",
    "ExpandDims", "Floor", "Fma", "For", "Hint", "If", "Load", "Log", "Log2", "MathUnary",
    "Maximum", "Minimum", "Mul", "Neg", "Not", "NumPrograms", "Or", "Print", "ProgramId", "Reduce",
    "Rem", "Reshape", "Return", "Rsqrt", "Select", "SharedLoad", "SharedStore", "Shl", "Shr", "Sin",
    "Splat", "Sqrt", "Store", "Sub", "Tanh", "Trans", "While", "Xor", "Yield",
]
