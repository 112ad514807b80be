"""Textual kernels that several interpreter tests use."""

from tilec.interp.run import run
from tilec.ir.parser import parse


def module(params, body, level="tile", file="k.py"):
    """A module with one function @k; each line of `body` is an op, located at its own line."""
    lines = [line.strip() for line in body.strip().splitlines() if line.strip()]
    ops = []
    for i, line in enumerate(lines):
        closed = not line.endswith(("{", ":")) and not line.startswith(("}", "^"))
        ops.append(f'{line} loc("{file}":{i + 1}:1)' if closed else line)
    text = "\n".join([f'module attributes {{level = "{level}"}} {{', f"func @k({params}) {{", *ops,
                      "func.return()", "}", "}"])
    return parse(text)


def launch(params, body, args, grid=(1,), **options):
    """Parse and run; arrays in `args` are written in place."""
    run(module(params, body), "k", args, grid, **options)


def offsets(block, name="offs", limit="n"):
    """Lines that define %offs, the program's `block` indices, and %mask, offs < limit."""
    mask = f"""
        %{name}_n = tile.splat(%{limit}) : tensor<{block}xi32>
        %mask = tile.cmp(%{name}, %{name}_n) {{predicate = "lt"}} : tensor<{block}xi1>""" \
        if limit else ""
    return f"""
        %{name}_pid = tile.program_id() {{axis = 0}} : i32
        %{name}_c = tile.constant() {{value = {block}}} : i32
        %{name}_b = tile.mul(%{name}_pid, %{name}_c) : i32
        %{name}_s = tile.splat(%{name}_b) : tensor<{block}xi32>
        %{name}_r = tile.arange() {{start = 0, end = {block}}} : tensor<{block}xi32>
        %{name} = tile.add(%{name}_s, %{name}_r) : tensor<{block}xi32>{mask}
    """


def pointer(base, offs, block, element="f32", name=None):
    """Lines that define %<base>p = base + offs."""
    name = name or f"{base}p"
    return f"""
        %{name}_s = tile.splat(%{base}) : tensor<{block}xptr<{element}>>
        %{name} = tile.addptr(%{name}_s, %{offs}) : tensor<{block}xptr<{element}>>
    """
