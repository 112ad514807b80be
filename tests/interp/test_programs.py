"""The interpreter on programs that share memory, and on programs that wait for each other."""

import importlib

import ml_dtypes
import numpy as np
import pytest

from tests.interp.kernels import launch, offsets, pointer
from tilec.errors import InterpreterError

run_module = importlib.import_module("tilec.interp.run")
pytestmark = pytest.mark.usefixtures("grouping")

INPLACE = offsets(8, limit=None) + pointer("x", "offs", 8) + """
    %v = tile.load(%xp) : tensor<8xf32>
    %w = tile.add(%v, %v) : tensor<8xf32>
    tile.store(%xp, %w)
"""


def test_in_place_update_runs_grouped(monkeypatch, grouping):
    sizes = []
    real = run_module._Launch._groups

    def groups(self, order, size):
        sizes.append(size)
        real(self, order, size)

    monkeypatch.setattr(run_module._Launch, "_groups", groups)
    x = np.arange(80, dtype=np.float32)
    launch("%x: ptr<f32>", INPLACE, [x], (10,))
    assert np.array_equal(x, 2 * np.arange(80)) and len(sizes) == 1
    assert (sizes[0] > 1) == (grouping == "grouped")


CHAIN = """
    %pid = tile.program_id() {axis = 0} : i32
    %one = tile.constant() {value = 1} : i32
    %next = tile.add(%pid, %one) : i32
    %p = tile.addptr(%x, %pid) : ptr<i32>
    %q = tile.addptr(%x, %next) : ptr<i32>
    %v = tile.load(%p) : i32
    %w = tile.add(%v, %one) : i32
    tile.store(%q, %w)
"""


def test_dependent_programs_run_one_by_one_in_seeded_order():
    results = set()
    for seed in range(6):
        x = np.zeros(9, np.int32)
        launch("%x: ptr<i32>", CHAIN, [x], (8,), seed=seed)
        y = np.zeros(9, np.int32)
        for i in np.random.default_rng(seed).permutation(8):
            y[i + 1] = y[i] + 1
        assert np.array_equal(x, y)
        results.add(tuple(x))
    assert len(results) > 1


def test_the_last_program_in_seeded_order_wins_a_race_of_writes():
    body = "%pid = tile.program_id() {axis = 0} : i32\ntile.store(%x, %pid)"
    winners = []
    for seed in range(8):
        x = np.zeros(1, np.int32)
        launch("%x: ptr<i32>", body, [x], (20,), seed=seed)
        assert x[0] == np.random.default_rng(seed).permutation(20)[-1]
        winners.append(int(x[0]))
    assert len(set(winners)) > 1


def test_a_value_that_all_programs_read_and_one_writes():
    body = """
        %pid = tile.program_id() {axis = 0} : i32
        %three = tile.constant() {value = 3} : i32
        %v = tile.load(%x) : i32
        %p = tile.addptr(%o, %pid) : ptr<i32>
        tile.store(%p, %v)
        %c = tile.cmp(%pid, %three) {predicate = "eq"} : i1
        scf.if(%c) {
            tile.store(%x, %three)
            scf.yield()
        }, {
            scf.yield()
        }
    """
    for seed in range(3):
        x, out = np.zeros(1, np.int32), np.zeros(6, np.int32)
        launch("%x: ptr<i32>, %o: ptr<i32>", body, [x, out], (6,), seed=seed)
        order = np.random.default_rng(seed).permutation(6).tolist()
        after = order[order.index(3) + 1:]
        assert out.tolist() == [3 if p in after else 0 for p in range(6)]


def test_a_read_only_view_leaves_its_array_writable():
    whole = np.zeros(4, np.float32)
    view = whole[1:]
    view.flags.writeable = False
    body = """
        %v = tile.load(%x) : f32
        %one = tile.constant() {value = 1.0} : f32
        %sum = tile.add(%v, %one) : f32
        tile.store(%o, %sum)
    """
    launch("%o: ptr<f32>, %x: ptr<f32>", body, [whole, view])
    assert whole.tolist() == [1, 0, 0, 0]


def test_arrays_that_overlap_are_seen_as_one():
    body = offsets(4, limit=None) + pointer("x", "offs", 4) + pointer("o", "offs", 4) + """
        %v = tile.load(%xp) : tensor<4xf32>
        tile.store(%op, %v)
    """
    base = np.arange(12, dtype=np.float32)
    want = base.copy()
    for i in np.random.default_rng(0).permutation(2):
        want[4 + 4 * i: 8 + 4 * i] = want[4 * i: 4 * i + 4]
    launch("%x: ptr<f32>, %o: ptr<f32>", body, [base[:8], base[4:]], (2,), seed=0)
    assert np.array_equal(base, want)


def atomic_kernel(element, used):
    tail = pointer("o", "offs", 8, element) + "tile.store(%op, %old)" if used else ""
    return offsets(8, limit=None) + """
        %four = tile.constant() {value = 4} : tensor<8xi32>
        %slot = tile.rem(%offs_r, %four) : tensor<8xi32>
    """ + pointer("x", "slot", 8, element) + f"""
        %one = tile.constant() {{value = {1.0 if element[0] in "fb" else 1}}} : tensor<8x{element}>
        %old = tile.atomic_rmw(%xp, %one) {{kind = "add"}} : tensor<8x{element}>
    """ + tail


@pytest.mark.parametrize("element, dtype", [("i32", "i4"), ("u64", "u8"), ("f32", "f4"),
                                            ("f16", "f2"), ("bf16", ml_dtypes.bfloat16)])
def test_atomic_add_counts_every_lane(element, dtype):
    x = np.zeros(4, dtype)
    launch(f"%x: ptr<{element}>", atomic_kernel(element, False), [x], (5,))
    assert x.astype(float).tolist() == [10] * 4


def test_atomic_results_are_a_permutation_of_the_count():
    x, out = np.zeros(4, np.int32), np.zeros(40, np.int32)
    launch("%x: ptr<i32>, %o: ptr<i32>", atomic_kernel("i32", True), [x, out], (5,), seed=3)
    assert x.tolist() == [10] * 4
    for slot in range(4):
        assert sorted(out.reshape(10, 4)[:, slot].tolist()) == list(range(10))
    assert not np.array_equal(out.reshape(5, 8)[:, 0], np.arange(0, 10, 2))


# -- programs that wait for each other --------------------------------------------------------

def ring(wait, first):
    """Program p waits until x[p] is set, then sets x[p + 1]; program 0 starts if `first`."""
    return f"""
        %pid = tile.program_id() {{axis = 0}} : i32
        %zero = tile.constant() {{value = 0}} : i32
        %one = tile.constant() {{value = 1}} : i32
        %first = tile.constant() {{value = {first}}} : i32
        %p = tile.addptr(%x, %pid) : ptr<i32>
        %starts = tile.cmp(%pid, %first) {{predicate = "eq"}} : i1
        scf.if(%starts) {{
            tile.store(%p, %one)
            scf.yield()
        }}, {{
            scf.yield()
        }}
        %got = scf.while(%zero) {{
        ^(%seen: i32):
            %v = {wait} : i32
            %idle = tile.cmp(%v, %zero) {{predicate = "eq"}} : i1
            scf.condition(%idle, %v)
        }}, {{
        ^(%w: i32):
            scf.yield(%w)
        }} : i32
        %next = tile.addptr(%p, %one) : ptr<i32>
        %more = tile.add(%got, %one) : i32
        tile.store(%next, %more)
    """


@pytest.mark.parametrize("wait", ["tile.load(%p) {volatile = true}",
                                  'tile.atomic_rmw(%p, %zero) {kind = "add"}'])
def test_programs_wait_for_each_other_in_any_order(wait):
    for seed in range(3):
        x = np.zeros(10, np.int32)
        launch("%x: ptr<i32>", ring(wait, 0), [x], (9,), seed=seed)
        assert x.tolist() == list(range(1, 11))


def test_a_deadlock_is_reported():
    x = np.zeros(10, np.int32)
    with pytest.raises(InterpreterError, match="wait in this loop for a value that no program"):
        launch("%x: ptr<i32>", ring("tile.load(%p) {volatile = true}", 3), [x], (9,))
    assert x.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("readers", [2, 7, 20])
def test_readers_of_one_element_in_one_access_are_all_remembered(monkeypatch, readers):
    """The last of them writes it: whoever forgot the others would take that for its own matter."""
    told = []
    monkeypatch.setattr("tilec.interp.machine.note", lambda key, text: told.append(text))
    body = """
        %pid = tile.program_id() {axis = 0} : i32
        %many = tile.constant() {value = 100} : i32
        %zero = tile.div(%pid, %many) : i32
        %p = tile.addptr(%x, %zero) : ptr<i32>
        %v = tile.load(%p) : i32
        %is = tile.cmp(%pid, %last) {predicate = "eq"} : i1
        %one = tile.constant() {value = 1} : i32
        %w = tile.add(%v, %one) : i32
        tile.store(%p, %w, %is)
    """
    for seed in range(3):
        told.clear()
        x, last = np.zeros(1, np.int32), int(np.random.default_rng(seed).permutation(readers)[-1])
        launch("%x: ptr<i32>, %last: i32", body, [x, last], (readers,), seed=seed)
        assert x[0] == 1
        (text,) = told
        assert "writes element 0 of x" in text and "reads at k.py:5" in text


def test_programs_that_write_what_is_there_already_are_no_race(monkeypatch):
    told = []
    monkeypatch.setattr("tilec.interp.machine.note", lambda key, text: told.append(text))
    body = "%five = tile.constant() {value = 5} : i32\ntile.store(%x, %five)"
    x = np.zeros(1, np.int32)
    launch("%x: ptr<i32>", "%pid = tile.program_id() {axis = 0} : i32\n" + body, [x], (9,))
    assert x[0] == 5 and told == []


@pytest.mark.parametrize("stores", [False, True])
def test_additions_are_no_race_but_with_a_store(monkeypatch, stores):
    told = []
    monkeypatch.setattr("tilec.interp.machine.note", lambda key, text: told.append(text))
    body = """
        %pid = tile.program_id() {axis = 0} : i32
        %one = tile.constant() {value = 1} : i32
        %a = tile.atomic_rmw(%x, %one) {kind = "add"} : i32
    """
    x = np.zeros(1, np.int32)
    launch("%x: ptr<i32>", body + ("tile.store(%x, %pid)" if stores else ""), [x], (9,))
    assert bool(told) == stores and (stores or x[0] == 9)
