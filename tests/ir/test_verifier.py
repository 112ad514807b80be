"""Every kind of broken IR is caught, and said at the op that is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.lit import FILES
from tilec.errors import IRError, Location
from tilec.ir import ops
from tilec.ir.core import Block, Builder, Module, Op, Value
from tilec.ir.parser import parse, parse_layout
from tilec.ir.types import Tensor, f32, i1, i32
from tilec.ir.verifier import verify
from tilec.tools.opt import split

GOOD = """module {
  func @k(%n: i32, %c: i1, %p: ptr<f32>) {
    %a = tile.neg(%n) : i32
    %r = scf.for(%a, %n, %n, %a) { ^(%i: i32, %x: i32):
      %b = tile.add(%x, %i) : i32
      scf.yield(%b)
    } : i32
    %t = tile.arange() {start = 0, end = 8} : tensor<8xi32>
    %s = tile.reduce(%t) {axis = 0} { ^(%u: i32, %v: i32):
      %w = tile.add(%u, %v) : i32
      scf.yield(%w)
    } : i32
    scf.if(%c) {
      scf.yield()
    }, {
      scf.yield()
    }
    tile.print(%r, %s)
    func.return()
  }
}"""
LAYOUT = "blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"


def find(module: Module, cls: type[Op]) -> Op:
    return next(op for op in module.walk() if isinstance(op, cls))


def value(module: Module, name: str) -> Value:
    return next(r for op in module.walk() for r in op.results if r.name == name)


def use_before_definition(m: Module) -> None:
    find(m, ops.Neg).move_before(m.funcs[0].body.terminator)


def use_out_of_scope(m: Module) -> None:
    find(m, ops.Print).set_operand(0, value(m, "b"))


def forgotten_use(m: Module) -> None:
    m.funcs[0].args[0].uses.clear()


def wrong_result_type(m: Module) -> None:
    value(m, "a").type = f32


def operand_types(m: Module) -> None:
    find(m, ops.Add).set_operand(0, m.funcs[0].args[1])


def yielded_types(m: Module) -> None:
    find(m, ops.Yield).set_operand(0, m.funcs[0].args[1])


def yielded_count(m: Module) -> None:
    find(m, ops.Yield).set_operands([])


def no_terminator(m: Module) -> None:
    m.funcs[0].body.terminator.erase()


def terminator_inside(m: Module) -> None:
    Builder(before=find(m, ops.Neg)).insert(ops.Return())


def wrong_terminator(m: Module) -> None:
    block = find(m, ops.For).regions[0]
    block.terminator.erase()
    block.insert(ops.Return())


def function_ends_in_yield(m: Module) -> None:
    body = m.funcs[0].body
    body.terminator.erase()
    body.insert(ops.Yield())


def wrong_parent(m: Module) -> None:
    find(m, ops.Neg).parent = Block()


def stolen_region(m: Module) -> None:
    find(m, ops.For).regions[0].owner = find(m, ops.If)


def stolen_body(m: Module) -> None:
    m.funcs[0].body.owner = None


def stolen_argument(m: Module) -> None:
    m.funcs[0].args[0].owner = Block()


def bad_attribute(m: Module) -> None:
    find(m, ops.Arange).attributes["end"] = "8"


def missing_attribute(m: Module) -> None:
    del find(m, ops.Reduce).attributes["axis"]


def bad_axis(m: Module) -> None:
    find(m, ops.Reduce).attributes["axis"] = 1


def unknown_level(m: Module) -> None:
    m.attributes["level"] = "asm"


def conversion_at_tile_level(m: Module) -> None:
    t = value(m, "t")
    Builder(before=find(m, ops.Reduce)).insert(ops.ConvertLayout(t, types=[t.type]))


def layout_at_tile_level(m: Module) -> None:
    t = Tensor((8,), i32, parse(f"#a = {LAYOUT} module {{ func @f(%t: tensor<8xi32, #a>) "
                                "{ func.return() } }").funcs[0].args[0].type.layout)
    value(m, "t").type = t


def no_layout_at_gpu_level(m: Module) -> None:
    m.attributes["level"] = "gpu"


def effect_in_reduce(m: Module) -> None:
    reduce = find(m, ops.Reduce)
    Builder(before=reduce.regions[0].first).insert(ops.Print([]))


def argument_layout_at_tile_level(m: Module) -> None:
    m.funcs[0].body.add_arg(Tensor((8,), f32, parse_layout(LAYOUT)), "x")
    m.funcs[0].arg_attrs.append({})


def unknown_attribute(m: Module) -> None:
    find(m, ops.Arange).attributes["stop"] = 8


CASES: dict[Callable[[Module], None], str] = {
    use_before_definition: "is not defined before its use",
    use_out_of_scope: "is not defined before its use",
    forgotten_use: "does not know this use",
    wrong_result_type: "result type is f32, expected i32",
    operand_types: "operand types differ",
    yielded_types: "yield is (i1), expected (i32)",
    yielded_count: "yield is (), expected (i32)",
    no_terminator: "a block does not end with a terminator",
    terminator_inside: "a terminator stands before the end of its block",
    wrong_terminator: "the block must end with scf.yield",
    function_ends_in_yield: "the block must end with func.return",
    wrong_parent: "the op's parent is another block",
    stolen_region: "region 0 belongs to another op",
    stolen_body: "the body belongs to something else",
    stolen_argument: "a block argument belongs to another block",
    bad_attribute: "attribute `end` is '8', expected int",
    missing_attribute: "attribute `axis` is missing",
    bad_axis: "axis 1 is not in 0..0",
    unknown_level: "the module: attribute `level` is 'asm'",
    conversion_at_tile_level: "gpu.convert_layout stands at level tile",
    layout_at_tile_level: "layout",
    argument_layout_at_tile_level: "block argument %x: tensor<8xf32, blocked",
    unknown_attribute: "there is no attribute `stop`",
    no_layout_at_gpu_level: "layout at level gpu",
    effect_in_reduce: "the region of a reduce or scan must be pure",
}


@pytest.mark.parametrize("damage", CASES, ids=lambda f: f.__name__)
def test_damage_is_caught(damage: Callable[[Module], None]) -> None:
    module = parse(GOOD)
    verify(module)
    damage(module)
    with pytest.raises(IRError) as e:
        verify(module)
    assert CASES[damage] in e.value.message
    assert "@k" in e.value.message or damage is unknown_level


def test_the_error_is_at_the_op() -> None:
    module = parse(GOOD)
    find(module, ops.Add).loc = Location("k.py", 12, 3)
    operand_types(module)
    with pytest.raises(IRError) as e:
        verify(module)
    assert e.value.loc == Location("k.py", 12, 3) and "%b = tile.add(" in e.value.message


def test_layouts_are_for_the_modules_warps() -> None:
    text = f"#a = {LAYOUT}\nmodule attributes {{level = \"gpu\", num_warps = 8}} {{\n" \
        "func @k(%n: i32) { %0 = tile.splat(%n) : tensor<512xi32, #a> func.return() } }"
    with pytest.raises(IRError, match="the layout is for 4 warps, the module has 8"):
        verify(parse(text))


def test_select_condition_needs_the_shape_of_the_arms() -> None:
    block = Block([i1, Tensor((4,), f32)])
    c, x = block.args
    with pytest.raises(IRError, match="condition is i1, expected tensor<4xi1>"):
        ops.Select(c, x, x)


@pytest.mark.parametrize(("layout", "message"), [
    ("#a", "operands differ in layout: tensor<512xi32, blocked.*> and tensor<512xi32, linear"),
    ("#b", "")])
def test_operands_that_are_combined_lie_in_one_layout(layout: str, message: str) -> None:
    """Layouts that only print differently are one."""
    text = f"#a = {LAYOUT}\n#c = linear<{{register = [[1], [2]], lane = [[4], [8], [16], [32], " \
        "[64]], warp = [[256], [128]]}>\n#b = linear<{register = [[1], [2]], lane = [[4], [8], " \
        "[16], [32], [64]], warp = [[128], [256]]}>\n" + f"""
        module attributes {{level = "gpu", num_warps = 4}} {{
          func @k(%n: i32) {{
            %x = tile.splat(%n) : tensor<512xi32, #a>
            %y = tile.splat(%n) : tensor<512xi32, {layout.replace("#a", "#c")}>
            %s, %t = tile.scan(%x, %y) {{axis = 0}} {{ ^(%a: i32, %b: i32, %c: i32, %d: i32):
              scf.yield(%c, %d)
            }} : tensor<512xi32, #a>, tensor<512xi32, {layout.replace("#a", "#c")}>
            func.return()
          }}
        }}"""
    module = parse(text)
    if message:
        with pytest.raises(IRError, match=message):
            verify(module)
    else:
        verify(module)


@pytest.mark.parametrize(("text", "message"), [
    ("%s = tile.scan(%x) {axis = 1} { ^(%a: i32, %b: i32): scf.yield(%a) } : tensor<8xi32>",
     r"tile.scan: axis 1 is not in 0..0"),
    ("%s = tile.scan(%x) {axis = 0} { ^(%a: i32, %b: i32): scf.yield(%a) } : i32",
     r"result type is i32, expected tensor<8xi32>"),
    ("%s, %t = tile.scan(%x, %y) {axis = 0} { ^(%a: i32, %b: i32, %c: i32, %d: i32):\n"
     "scf.yield(%a, %b) } : tensor<8xi32>, tensor<4xi32>", r"operands differ in shape: \(8,\) and"),
    ("%s = tile.scan(%x) {axis = 0} { ^(%a: i32): scf.yield(%a) } : tensor<8xi32>",
     r"region takes \(i32\) and yields \(i32\), expected twice and once \(i32\)"),
    ("%s = tile.scan(%x) {axis = 0, reverse = 1} { ^(%a: i32, %b: i32): scf.yield(%a) } : "
     "tensor<8xi32>", "attribute `reverse` is 1, expected true or false"),
    ("%s = tile.gather(%x, %y) {axis = 1} : tensor<4xi32>", "tile.gather: axis 1 is not in 0..0"),
    ("%s = tile.gather(%x, %y) {axis = 0} : tensor<8xi32>",
     "result type is tensor<8xi32>, expected tensor<4xi32>"),
    ("%f = tile.cast(%y) : tensor<4xf32>\n%s = tile.gather(%x, %f) {axis = 0} : tensor<4xi32>",
     "index is tensor<4xf32>, expected integers"),
    ("%e = tile.expand_dims(%y) {axis = 0} : tensor<1x4xi32>\n"
     "%s = tile.gather(%x, %e) {axis = 0} : tensor<1x4xi32>", "expected tiles of one rank"),
    ("%s = tile.histogram(%x) {bins = 0} : tensor<1xi32>", "attribute `bins` is 0, expected int"),
    ("%s = tile.histogram(%x) {bins = 5} : tensor<8xi32>", "expected tensor<5xi32>"),
    ("%e = tile.expand_dims(%y) {axis = 0} : tensor<1x4xi32>\n"
     "%s = tile.histogram(%e) {bins = 5} : tensor<5xi32>", "expected integers in a tile of rank 1"),
])
def test_scans_gathers_and_histograms_that_are_none(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse("module { func @k() {\n%x = tile.arange() {start = 0, end = 8} : tensor<8xi32>\n"
              f"%y = tile.arange() {{start = 0, end = 4}} : tensor<4xi32>\n{text}\n"
              "func.return() } }")


@pytest.mark.parametrize("path", [p for p in FILES if "tools" not in p.parts],
                         ids=lambda p: p.stem)
def test_the_golden_inputs_verify(path: object) -> None:
    for piece in split(path.read_text(encoding="utf-8")):  # type: ignore[attr-defined]
        verify(parse(piece))
