"""Where the operands of dots lie that wgmma computes: what is not in a buffer of a loop's copies is
brought to one, once, where it is made."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.buffers import stage_bytes
from tilec.ir.core import Block, Builder, Func, Op, Value
from tilec.ir.layouts import DotOperand, Mma, SwizzledShared, same_layout
from tilec.ir.ops.gpu import allocation
from tilec.ir.tensor_maps import TensorMaps, block_layout, buffer_type
from tilec.ir.types import MemDesc, Scalar, Tensor, i32, i64, layout_of, linear_shape, scalar_of
from tilec.passes.expand import number

BARRIER = SwizzledShared(1, 1, 1, (0,))


def just_after(value: Value) -> Builder:
    """Inserts where a value is made."""
    first = value.owner.first if isinstance(value.owner, Block) else value.owner.next
    assert first is not None
    return Builder(before=first, loc=first.loc)


class Operands:
    """The buffers of one function's operands. stored: by the tile in them. arrived: of tiles that
    TMA brings, the mbarrier. waited: where it has been waited for."""

    def __init__(self, func: Func, target: object) -> None:
        self.maps = TensorMaps(func, target)
        self.stored: dict[Value, Value] = {}
        self.arrived: dict[Value, Value] = {}
        self.waited: set[tuple[Value, Block]] = set()

    def of(self, value: Value, dot: ops.Dot, here: Builder) -> Value:
        """The buffer, or the view of one, that an operand lies in; the operand itself if threads
        hold it as wgmma takes it from registers."""
        op = value.op
        if value is dot.a and _in_registers(dot):
            return value
        if isinstance(op, ops.SharedLoad):
            return op.buffer
        if isinstance(op, ops.ConvertLayout):
            return self.of(op.x, dot, here)
        if isinstance(op, ops.Trans):
            return here.emit(ops.MemdescTrans(self.of(op.x, dot, here), order=op.order))
        if isinstance(op, ops.DescriptorLoad):
            buffer = self.bring(op)
            self.wait(op.result, dot)
            return buffer
        return self.store(value)

    def store(self, value: Value) -> Value:
        """A buffer with a tile that threads hold."""
        if value not in self.stored:
            t, here = value.type, just_after(value)
            assert isinstance(t, Tensor) and isinstance(t.element, Scalar)
            layout = block_layout(t.shape, t.element)
            assert layout is not None
            buffer = here.emit(ops.AllocShared(types=[MemDesc(t.shape, t.element, layout)]))
            buffer.name = value.name
            if here.block is not None and here.block.parent_op is not None:
                # Products of the round before may still read it.
                here.insert(ops.Barrier())
            here.insert(ops.SharedStore(buffer, value))
            here.insert(ops.FenceAsync())
            here.insert(ops.Barrier())
            self.stored[value] = buffer
        return self.stored[value]

    def bring(self, load: ops.DescriptorLoad) -> Value:
        """A buffer to which TMA copies a block, outside of all loops: it begins there."""
        if load.result not in self.stored:
            here, body = Builder(before=load, loc=load.loc), Block()
            t = buffer_type(load)
            buffer = here.emit(ops.AllocShared(types=[t]))
            full = here.emit(ops.AllocShared(types=[MemDesc((1,), i64, BARRIER)]))
            buffer.name, full.name = load.result.name, "full"
            inside = Builder(body, loc=load.loc)
            inside.insert(ops.MbarrierInit(full))
            inside.insert(ops.MbarrierExpect(full, bytes=stage_bytes(t)))
            inside.insert(ops.TmaLoad(self.maps.parameter(load), buffer, full, *load.parts()[2]))
            inside.insert(ops.Yield())
            here.insert(ops.Elect(body=body))
            here.insert(ops.Barrier())
            self.stored[load.result], self.arrived[load.result] = buffer, full
        return self.stored[load.result]

    def keeps(self, operand: Value) -> bool:
        """Whether nothing fills an operand's buffer before the next round's products."""
        if not isinstance(operand.type, MemDesc):
            return False
        buffer = allocation(operand).result
        assert isinstance(buffer.type, MemDesc)
        return buffer.type.stages > 1 or buffer in self.stored.values()

    def read(self) -> None:
        """Give threads the blocks outside of loops that others than dots use."""
        for load in [op for op in self.maps.func.body if isinstance(op, ops.DescriptorLoad)]:
            buffer, here = self.bring(load), Builder(before=load, loc=load.loc)
            here.insert(ops.MbarrierWait(self.arrived[load.result], number(here, 0, i32)))
            load.replace_by([here.emit(ops.SharedLoad(buffer, types=[load.result.type]))])

    def wait(self, value: Value, user: Op) -> None:
        """Wait for a block before its first user, or the loop around that."""
        blocks = [user.parent, *(a.parent for a in user.ancestors())]
        if any((value, block) in self.waited for block in blocks if block is not None):
            return
        loops = [a for a in user.ancestors() if isinstance(a, ops.ControlFlow) and a.loop]
        first = loops[-1] if loops else user
        here = Builder(before=first, loc=user.loc)
        here.insert(ops.MbarrierWait(self.arrived[value], number(here, 0, i32)))
        assert first.parent is not None
        self.waited.add((value, first.parent))


def _in_registers(dot: ops.Dot) -> bool:
    """Whether threads hold operand a as wgmma takes it."""
    a, mma = dot.a.type, layout_of(dot.result.type)
    assert isinstance(a, Tensor) and isinstance(mma, Mma)
    return scalar_of(a).bits == 16 and a.layout is not None and \
        same_layout(a.layout, DotOperand(mma, 0, 2), linear_shape(a.shape))
