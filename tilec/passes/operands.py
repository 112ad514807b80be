"""Where the operands of dots lie that wgmma computes: what is not in a buffer of a loop's copies is
brought to one, once, where it is made."""

from __future__ import annotations

from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.buffers import is_asynchronous, mbarrier_type
from tilec.ir.core import Block, Builder, Func, Op, Value
from tilec.ir.ops.gpu import allocation
from tilec.ir.tensor_maps import TensorMaps, block_layout, buffer_type
from tilec.ir.types import MemDesc, Scalar, Tensor, i32
from tilec.passes.allocate_shared import round_bytes
from tilec.passes.dot_buffers import a_in_registers, wgmma_buffer
from tilec.passes.expand import number


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
        if value is dot.a and a_in_registers(dot):
            return value
        # A ring's, and not an author's buffer, which may hold something else by now.
        if isinstance(op, ops.SharedLoad) and (
                op.parent is dot.parent or is_asynchronous(allocation(op.buffer).result)):
            return op.buffer
        if isinstance(op, ops.ConvertLayout):
            return self.of(op.x, dot, here)
        if isinstance(op, ops.Trans):
            return here.emit(ops.MemdescTrans(self.of(op.x, dot, here), order=op.order))
        if isinstance(op, ops.DescriptorLoad):
            buffer = self.bring(op)
            self.wait(op.result, dot)
            return buffer
        if isinstance(op, ops.Load) and op.parent is dot.parent:
            buffer = here.emit(ops.AllocShared(types=[wgmma_buffer(op)]))
            here.insert(ops.SharedStore(buffer, value))
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
            here.insert(ops.SharedStore(buffer, value))
            here.insert(ops.FenceAsync())
            self.stored[value] = buffer
        return self.stored[value]

    def bring(self, load: ops.DescriptorLoad) -> Value:
        """A buffer to which TMA copies a block, outside of all loops: it begins there.
        CompilationError in a loop, whose blocks earlier passes bring."""
        if any(isinstance(a, ops.ControlFlow) and a.loop for a in load.ancestors()):
            raise CompilationError("a block is loaded in a loop where a product is to begin",
                                   load.loc, "run specialize_warps and pipeline before")
        if load.result not in self.stored:
            here, body = Builder(before=load, loc=load.loc), Block()
            t = buffer_type(load)
            buffer = here.emit(ops.AllocShared(types=[t]))
            full = here.emit(ops.AllocShared(types=[mbarrier_type()]))
            buffer.name, full.name = load.result.name, "full"
            inside = Builder(body, loc=load.loc)
            inside.insert(ops.MbarrierInit(full))
            inside.insert(ops.MbarrierExpect(full, bytes=round_bytes([buffer], self.maps.target)))
            inside.insert(ops.TmaLoad(self.maps.parameter(load), buffer, full, *load.parts()[2]))
            inside.insert(ops.Yield())
            here.insert(ops.Elect(body=body, by="warp"))
            here.insert(ops.Barrier())
            self.stored[load.result], self.arrived[load.result] = buffer, full
        return self.stored[load.result]

    def keeps(self, operand: Value) -> bool:
        """Whether an operand was brought to its buffer before the loop."""
        return isinstance(operand.type, MemDesc) and \
            allocation(operand).result in self.stored.values()

    def finish(self) -> None:
        """Give threads the blocks outside of loops that others than dots use, and wait at the end
        for those for which only a branch has waited: shared memory must outlive the copies."""
        body = self.maps.func.body
        for load in [op for op in body if isinstance(op, ops.DescriptorLoad)]:
            buffer, here = self.bring(load), Builder(before=load, loc=load.loc)
            here.insert(ops.MbarrierWait(self.arrived.pop(load.result), number(here, 0, i32)))
            load.replace_by([here.emit(ops.SharedLoad(buffer, types=[load.result.type]))])
        end = Builder(before=body.terminator)
        for value, full in self.arrived.items():
            if (value, body) not in self.waited:
                end.insert(ops.MbarrierWait(full, number(end, 0, i32)))

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

