"""`breakpoint()` inside a kernel: the prompt, stepping by line, tiles under their names."""

import io
import linecache
import re

import numpy as np
import pytest

from tests.interp.kernels import module, offsets, pointer
from tilec.errors import InterpreterError
from tilec.interp.run import run

BODY = offsets(4) + pointer("x", "offs", 4) + pointer("o", "offs", 4) + """
    %v = tile.load(%xp, %mask) : tensor<4xf32>
    tile.breakpoint(%v, %offs, %offs_pid) {names = ["v", "offs", "pid"]}
    %w = tile.add(%v, %v) : tensor<4xf32>
    %u = tile.mul(%w, %v) : tensor<4xf32>
    tile.store(%op, %u, %mask)
"""


def session(monkeypatch, capsys, commands, n=8, grid=(2,), error=None):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(commands) + "\n"))
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    m = module("%x: ptr<f32>, %o: ptr<f32>, %n: i32", BODY)
    if error is None:
        run(m, "k", [x, out, n], grid, seed=0)
    else:
        with pytest.raises(InterpreterError, match=error):
            run(m, "k", [x, out, n], grid, seed=0)
    return capsys.readouterr().out, out


def test_prompt_shows_tiles_by_name(monkeypatch, capsys):
    text, out = session(monkeypatch, capsys, ["p v + 1", "pid", "vars", "p nothing", "c", "c"])
    assert "program (0, 0)" in text and "[1. 2. 3. 4.]" in text
    assert "offs: int32[4]" in text and "pid: int32[] = 0" in text and "v: float32[4]" in text
    assert "*** NameError" in text
    assert out.tolist() == (2 * np.arange(8.0) ** 2).tolist()


def test_step_by_line_sees_new_names(monkeypatch, capsys):
    text, _ = session(monkeypatch, capsys, ["n", "n", "p w", "n", "p u", "c", "c"], grid=(1,))
    assert "[0. 2. 4. 6.]" in text and "[ 0.  2.  8. 18.]" in text
    assert text.count("> k.py:") == 4


def test_poison_is_masked_and_quit_stops(monkeypatch, capsys):
    text, out = session(monkeypatch, capsys, ["p v", "q"], n=3, grid=(1,),
                        error="stopped at the prompt")
    assert "[0.0 1.0 2.0 --]" in text and not out.any()


def test_list_shows_the_source_around_the_line(monkeypatch, capsys):
    lines = [f"line {n}\n" for n in range(1, 40)]
    monkeypatch.setitem(linecache.cache, "k.py", (1, None, lines, "k.py"))
    text, _ = session(monkeypatch, capsys, ["l", "h l", "c"], grid=(1,))
    at = int(re.search(r"> k.py:(\d+)", text)[1])
    assert f"{at:4} -> line {at}\n" in text and f"{at + 5:4}    line {at + 5}\n" in text
    assert f"line {at + 6}\n" not in text and "l(ist): the source around this line" in text


def test_end_of_input_continues(monkeypatch, capsys):
    text, out = session(monkeypatch, capsys, [], grid=(2,))
    assert out.any() and text.count("> k.py:") == 2


def test_step_into_a_branch_keeps_the_names_from_before(monkeypatch, capsys):
    body = BODY.replace("tile.store(%op, %u, %mask)", "") + """
        %zero = tile.constant() {value = 0} : i32
        %c = tile.cmp(%offs_pid, %zero) {predicate = "eq"} : i1
        %q = scf.if(%c) {
            %r = tile.add(%u, %w) : tensor<4xf32>
            %t = tile.add(%r, %w) : tensor<4xf32>
            scf.yield(%t)
        }, {
            scf.yield(%u)
        } : tensor<4xf32>
        tile.store(%op, %q, %mask)
    """
    commands = ["n"] * 6 + ["p w", "n", "p r", "c"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(commands) + "\n"))
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    run(module("%x: ptr<f32>, %o: ptr<f32>, %n: i32", body), "k", [x, out, 4], (1,))
    text = capsys.readouterr().out
    assert "[0. 2. 4. 6.]" in text and "[ 0.  4. 12. 24.]" in text
    assert out.tolist() == (2 * x * x + 4 * x).tolist()
