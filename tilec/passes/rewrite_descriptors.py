"""rewrite_descriptors: blocks of described tensors become tiles of pointers with masks."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Value
from tilec.ir.remarks import remark
from tilec.ir.tensor_maps import TensorMaps
from tilec.ir.types import Scalar, Tensor, element_of, i32, i64
from tilec.ir.wgmma import block_of, blocks_for_tma, by_author, wgmma_obstacle
from tilec.passes.base import Pass
from tilec.passes.fold import constant, make_constant
from tilec.target import DEFAULT, Target


class RewriteDescriptors(Pass):
    """Descriptor ops become pointer arithmetic, masks and accesses through pointers.

        %0 = tile.descriptor_load(                %start = tile.addptr(%p, %x) : ptr<f32>
            %p, %n, %one, %x)               ->    %ptrs = tile.addptr(splat(%start), 0 .. 7)
            {block = (8)} : tensor<8xf32>         %mask = 0 .. 7 < splat(min(%n - %x, 8)) & ...
                                                  %0 = tile.load(%ptrs, %mask, 0)

    Only scalars depend on the offsets: the tiles of indices are the same in every round of a loop.
    What TMA will move stays.
    """

    def run(self, module: Module) -> None:
        target = Target.parse(str(module.attributes.get("target", DEFAULT)))
        for func in module.funcs:
            blocks = [op for op in func.walk() if isinstance(op, ops.DescriptorOp)]
            if not blocks:
                continue
            blocks = [_without_units(op) for op in blocks]
            kept, maps = blocks_for_tma(func, module.num_warps, target), TensorMaps(func, target)
            dots = [op for op in func.walk() if isinstance(op, ops.Dot)]
            why = {load: reason for dot in dots for load in (block_of(dot.a)[0], block_of(dot.b)[0])
                   if load and (reason := wgmma_obstacle(dot, module.num_warps, target, maps))}
            explicit = by_author(func)
            for op in blocks:
                if op not in kept:
                    reason = "the kernel itself says what TMA copies" if explicit else \
                        f"its dot is not for wgmma: {why[op]}" if op in why else \
                        maps.obstacle(op) or "only operands of wgmma, and stores of tensors that " \
                        "nothing else in such a kernel touches, go by TMA"
                    remark(op, "tma", f"this block moves by pointers: {reason}")
                    _rewrite(op)


def _without_units(op: ops.DescriptorOp) -> ops.DescriptorOp:
    """An op whose tile is a matrix, if its block is one of a tensor of more dimensions."""
    units = len(op.block) - 2
    if units < 1 or op.unit_dims or set(op.block[:units]) != {1} or \
            isinstance(op, ops.DescriptorAtomic):
        return op
    here, shape = Builder(before=op, loc=op.loc), op.block[units:]
    t = Tensor(shape, element_of(op.results[0].type if op.results else op.operands[1].type))
    if isinstance(op, ops.DescriptorLoad):
        new = ops.DescriptorLoad(op.base, op.place, block=op.block, unit_dims=units,
                                 padding=op.padding)
        here.insert(new)
        for user in op.result.users:
            if isinstance(user, ops.Reshape) and user.result.type == t:
                user.replace_by([new.result])
        if op.result.uses:
            op.result.replace_by(here.emit(ops.Reshape(new.result, types=[op.result.type])))
        op.erase()
        return new
    assert isinstance(op, ops.DescriptorStore)
    made = op.value.op
    value = made.x if isinstance(made, ops.Reshape | ops.ExpandDims) and made.x.type == t else \
        here.emit(ops.Reshape(op.value, types=[t]))
    stored = ops.DescriptorStore(op.base, value, op.place, block=op.block, unit_dims=units)
    here.insert(stored)
    op.erase()
    return stored


def _rewrite(op: ops.DescriptorOp) -> None:
    block = _Block(op)
    ptrs, mask, builder = block.pointers(), block.inside(), block.builder
    if isinstance(op, ops.DescriptorLoad):
        fill = float("nan") if op.padding == "nan" else 0
        other = make_constant(builder, fill, op.result.type)
        op.result.replace_by(builder.emit(ops.Load(ptrs, mask, other)))
    elif isinstance(op, ops.DescriptorStore):
        builder.insert(ops.Store(ptrs, op.value, mask))
    else:
        assert isinstance(op, ops.DescriptorAtomic)
        builder.insert(ops.AtomicRmw(ptrs, op.value, mask, kind=op.kind, sem="relaxed"))
    op.erase()


class _Block:
    """Emits what a block's addresses and mask are made of, before its op."""

    def __init__(self, op: ops.DescriptorOp) -> None:
        self.builder = Builder(before=op, loc=op.loc)
        self.shape, self.base = op.block[op.unit_dims:], op.base
        self.extents, self.strides, self.offsets = op.parts()
        self.wide = [self._cast(x, i64) for x in self.offsets]
        self.units = op.unit_dims

    def pointers(self) -> Value:
        """The addresses of the elements."""
        emit, start, tile = self.builder.emit, self.base, None
        for d, (offset, stride) in enumerate(zip(self.wide, self.strides, strict=True)):
            start = emit(ops.AddPtr(start, emit(ops.Mul(offset, stride))))
            if d < self.units:
                continue
            index = self._cast(self._index(d - self.units), i64)
            term = self._whole(emit(ops.Mul(index, self._like(stride, index))))
            tile = term if tile is None else emit(ops.Add(tile, term))
        assert tile is not None
        return emit(ops.AddPtr(self._splat(start, self.shape), tile))

    def inside(self) -> Value:
        """Which elements lie within the tensor."""
        emit, mask = self.builder.emit, None
        for extent, offset in zip(self.extents[:self.units], self.offsets[:self.units]):
            above = emit(ops.Cmp(offset, make_constant(self.builder, 0, i32), predicate="ge"))
            below = emit(ops.Cmp(offset, extent, predicate="lt"))
            part = self._splat(emit(ops.And(above, below)), self.shape)
            mask = part if mask is None else emit(ops.And(mask, part))
        for d, (extent, offset, wide) in enumerate(
                zip(*(x[self.units:] for x in (self.extents, self.offsets, self.wide)))):
            index = self._index(d)
            # Cut to the block's extent, bounds fit i32, which tiles compare faster.
            room = emit(ops.Sub(self._cast(extent, i64), wide))
            part = emit(ops.Cmp(index, self._bound(room, d), predicate="lt"))
            start = constant(offset)
            if start is None or start < 0:
                before = emit(ops.Neg(wide))
                above = emit(ops.Cmp(index, self._bound(before, d), predicate="ge"))
                part = emit(ops.And(part, above))
            part = self._whole(part)
            mask = part if mask is None else emit(ops.And(mask, part))
        assert mask is not None
        return mask

    def _bound(self, x: Value, dim: int) -> Value:
        """A scalar i64, cut to 0 .. the block's extent along `dim`, as a tile like `_index`."""
        for op, limit in ((ops.Minimum, self.shape[dim]), (ops.Maximum, 0)):
            x = self.builder.emit(op(x, make_constant(self.builder, limit, i64)))
        return self._splat(self._cast(x, i32), self._along(dim))

    def _along(self, dim: int) -> tuple[int, ...]:
        """The block's shape with extents of 1 but for `dim`."""
        return tuple(n if d == dim else 1 for d, n in enumerate(self.shape))

    def _index(self, dim: int) -> Value:
        """0 .. extent - 1 along `dim`."""
        out = self.builder.emit(ops.Arange(start=0, end=self.shape[dim]))
        for d in range(len(self.shape)):
            if d != dim:
                out = self.builder.emit(ops.ExpandDims(out, axis=d))
        return out

    def _cast(self, x: Value, t: Scalar) -> Value:
        made = Tensor(x.type.shape, t) if isinstance(x.type, Tensor) else t
        return self.builder.emit(ops.Cast(x, types=[made]))

    def _splat(self, x: Value, shape: Sequence[int]) -> Value:
        element = element_of(x.type)
        return self.builder.emit(ops.Splat(x, types=[Tensor(tuple(shape), element)]))

    def _like(self, x: Value, tile: Value) -> Value:
        assert isinstance(tile.type, Tensor)
        return self._splat(x, tile.type.shape)

    def _whole(self, x: Value) -> Value:
        """A tile along one dimension, repeated to the whole block."""
        made = Tensor(self.shape, element_of(x.type))
        return x if x.type == made else self.builder.emit(ops.Broadcast(x, types=[made]))
