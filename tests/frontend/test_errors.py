"""Bad kernels: each is refused at its line, with a caret under the culprit and advice."""

import re

import pytest

import tilec.language as tl
import tilec.language.gpu as tlg
from tests.frontend.harness import from_text
from tilec.errors import CompilationError, CompileTimeAssertionError
from tilec.frontend.build import build_module
from tilec.frontend.function import function

LIMIT = 5
ARRAY = __import__("numpy").zeros(3)


def ordinary(x):
    return x


@function
def helper(x, y=1, SIZE: tl.constexpr = 4):
    return x + y


@function
def forever(x):
    return forever(x)


OUTER = {"tlg": tlg, "LIMIT": LIMIT, "ARRAY": ARRAY, "ordinary": ordinary, "helper": helper,
         "forever": forever}

# name: body of `kernel(p, q, ip, n, m, f, B)` with p, q: *fp32, ip: *i32, n, m: i32, f: fp32 and
# B = 16; the text under the caret; patterns for the message and for the advice.
CASES = {
    "undefined": ("tl.store(p, offss)", "offss", "`offss` is not defined", "assign it"),
    "misspelt": ("offset = n\ntl.store(p, ofset)", "ofset", "not defined", "`offset`"),
    "misspelt tl": ("x = tl.summ(tl.arange(0, B))", "tl.summ", "has no `summ`", "`tl.sum`"),
    "misspelt method": ("x = tl.arange(0, B).summ()", "tl.arange(0, B).summ",
                        r"int32\[16\] tile has no attribute", "sum`"),
    "before assignment": ("tl.store(ip, x)\nx = n", "x", "before it is assigned", "every path"),
    "one arm": ("if n > 0:\n    y = n\ntl.store(ip, y)", "y",
                "only assigned where the condition at line 3 holds", "before that `if`"),
    "other arm": ("if n > 0:\n    pass\nelse:\n    y = n\ntl.store(ip, y)", "y",
                  "only assigned where the condition at line 3 does not hold", "before that `if`"),
    "types of arms": ("if n > 0:\n    y = 1\nelse:\n    y = 1.0\ntl.store(p, y)", "if n > 0:",
                      "int32 scalar where .* line 3 holds, and fp32 scalar", "to"),
    "shapes of arms": ("if n > 0:\n    y = tl.zeros([B], tl.float32)\nelse:\n    y = 0.0\n"
                       "tl.store(p, y)", "if n > 0:", r"fp32\[16\] tile .*fp32 scalar", "zeros"),
    "loop local": ("for i in range(n):\n    y = i\ntl.store(ip, y)", "y",
                   "only assigned inside the loop at line 3", "before the loop"),
    "loop variable after": ("for i in range(n):\n    pass\ntl.store(ip, i)", "i",
                            "only assigned inside the loop", "before the loop"),
    "carried dtype": ("acc = 0\nfor i in range(n):\n    acc += f\ntl.store(p, acc)", "acc",
                      "`acc` is int32 scalar before the loop at line 4, and fp32 scalar",
                      "tl.float32"),
    "carried shape": ("acc = 0.0\nfor i in range(n):\n    acc += tl.load(p + tl.arange(0, B))\n"
                      "tl.store(p, acc)", "acc", r"fp32 scalar before .*fp32\[16\] tile",
                      r"acc = tl.zeros\(\[16\], tl.float32\)"),
    "carried infinity": ('acc = -float("inf")\nfor i in range(n):\n    acc = tl.maximum(acc, '
                         "tl.load(p + tl.arange(0, B)))\ntl.store(p, acc)", "acc",
                         r"fp32 scalar before .*fp32\[16\] tile",
                         r'`acc = tl.full\(\[16\], float\("-inf"\), tl.float32\)`$'),
    "carried number": ("acc = 0.1\nfor i in range(n):\n    acc *= tl.load(p + tl.arange(0, B))\n"
                       "tl.store(p, acc)", "acc", "fp32 scalar before",
                       r"`acc = tl.full\(\[16\], 0.1, tl.float32\)`$"),
    "carried scalar": ("acc = tl.load(p)\nfor i in range(n):\n    acc += tl.load(p + "
                       "tl.arange(0, B))\ntl.store(p, acc)", "acc", "fp32 scalar before",
                       r"`acc = tl.full\(\[16\], acc, tl.float32\)`$"),
    "carried row": ("acc = tl.load(p + tl.arange(0, B))\nfor i in range(n):\n    acc = acc[None, :]"
                    "\ntl.store(p, acc)", "acc", r"fp32\[16\] tile before",
                    r"`acc = tl.broadcast_to\(acc, \[1, 16\]\)`$"),
    "pointer's blocks": ("x = p.block_shape[0]", "p.block_shape",
                         r"^`p` is a pointer \(pointer<fp32> scalar\), expected a tensor "
                         "descriptor$", "^pass a tilec.TensorDescriptor, or make one by "
                         r"tl.make_tensor_descriptor; a pointer is read by tl.load\(p \+ "
                         r"offsets\), written by tl.store$"),
    "pointer's shape": ("x = p.shape[0]", "p.shape", "`p` is a pointer .*, expected a tensor desc",
                        "TensorDescriptor"),
    "pointer's load": ("x = p.load([n, n])", "p.load", "`p` is a pointer", "tl.load"),
    "pointer's store": ("p.store([n, n], f)", "p.store", "`p` is a pointer", "tl.store"),
    "carried in while": ("x = n\nwhile x > 0:\n    x = x / 2\n", "x", "int32 scalar before",
                         "tl.int32"),
    "carried None": ("acc = None\nfor i in range(n):\n    acc = f\ntl.store(p, acc)", "acc",
                     "None", "one form"),
    "tile condition": ("if tl.arange(0, B) < n:\n    pass", "tl.arange(0, B) < n",
                       r"condition of `if` is a int1\[16\] tile", "tl.where"),
    "tile while": ("while tl.arange(0, B) < n:\n    n -= 1", "tl.arange(0, B) < n",
                   "condition of `while`", "tl.where"),
    "tile ternary": ("x = 1 if tl.arange(0, B) < n else 2", "tl.arange(0, B) < n", "condition",
                     "tl.where"),
    "ternary types": ("x = n if n > 0 else f", "n if n > 0 else f", "int32 scalar .*fp32 scalar",
                      "to"),
    "global": ("x = n + LIMIT", "LIMIT", "global variable", r"LIMIT = tl.constexpr\(5\)"),
    "global array": ("x = n + ARRAY", "ARRAY", "global array", "argument"),
    "ordinary function": ("x = ordinary(n)", "ordinary(n)", "ordinary Python function",
                          "@tilec.jit"),
    "too many arguments": ("x = helper(n, 1, 2, 3)", "helper(n, 1, 2, 3)",
                           "takes 3 arguments, 4 were given", r"helper\(x, y=1, SIZE=4\)"),
    "missing argument": ("x = helper()", "helper()", "needs a value for `x`", "signature"),
    "unknown keyword": ("x = helper(n, SISE=3)", "helper(n, SISE=3)", "no parameter `SISE`",
                        "`SIZE`"),
    "argument twice": ("x = helper(n, x=3)", "helper(n, x=3)", "`x` twice", "signature"),
    "endless recursion": ("x = forever(n)", "forever(x)", "nested 40 deep", "compile time"),
    "tl arguments": ("x = tl.program_id(0, 1, 2, 3)", "tl.program_id(0, 1, 2, 3)",
                     "tl.program_id", "signature"),
    "tl keyword": ("x = tl.load(p, masc=n)", "tl.load(p, masc=n)", "masc",
                   r"^did you mean `mask`\? the signature is tl.load\(pointer, mask=None"),
    "range arguments": ("for i in range(1, 2, 3, 4, 5, 6, 7, 8, 9, 10):\n    pass",
                        "range(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)", "argument", ""),
    "tl.range keyword": ("for i in tl.range(n, stages=3):\n    pass", "tl.range(n, stages=3)",
                         "'stages'", r"^did you mean `num_stages`\? the signature is "
                         r"tl.range\(arg1, arg2=None, step=None, num_stages=None"),
    "range keyword": ("for i in range(n, warp_specialize=True):\n    pass",
                      "range(n, warp_specialize=True)", "'warp_specialize'",
                      "^write tl.range, which takes warp_specialize$"),
    "range unknown keyword": ("for i in range(n, stages=3):\n    pass", "range(n, stages=3)",
                              "'stages'", r"^in a kernel it is range\(start"),
    "max keyword": ("x = max(tl.arange(0, B), axis=0)", "max(tl.arange(0, B), axis=0)", "'axis'",
                    "^write tl.max, which takes axis$"),
    "no flag": ('for i in tl.range(n, warp_specialize="yes"):\n    pass',
                'tl.range(n, warp_specialize="yes")',
                "^warp_specialize of tl.range is 'yes', expected True or False$",
                "^write warp_specialize=True, or leave it out$"),
    "break of one thread": ("for i in range(n):\n    if tlg.elect():\n        break",
                            "if tlg.elect():", "one thread alone cannot return, or leave a loop",
                            "after"),
    "walrus in an arm": ("x = (y := n) if n > 0 else 2", "y := n",
                         "`:=` stands in an arm that may not be computed", "before this"),
    "only in the loop": ("while True:\n    x = n\n    if x > 3:\n        break\ntl.store(p, x)",
                         "x", "`x` is only assigned inside the loop", "before the loop"),
    "endless": ("while True:\n    tl.store(p, f)", "True", "the loop never ends", "depend"),
    "changed before break": ("x = 1\nfor i in range(n):\n    x = 2.0\n    break\n"
                             "tl.store(p, x)", "x",
                             "int32 scalar before", "convert it"),
    "for else": ("for i in range(n):\n    pass\nelse:\n    x = 1", "x = 1", "`else` of a loop",
                 "after the loop"),
    "while else": ("while n > 0:\n    n -= 1\nelse:\n    x = 1", "x = 1", "`else` of a loop",
                   "after the loop"),
    "return a value": ("return n", "return n", "cannot return a value", "tl.store"),
    "try": ("try:\n    x = 1\nexcept ValueError:\n    pass", "try:", "`try`", "remove"),
    "raise": ("raise ValueError(n)", "raise ValueError(n)", "`raise`", "static_assert"),
    "with": ("with n:\n    pass", "with n:", "`with`", "remove"),
    "global statement": ("global LIMIT", "global LIMIT", "`global`", "return"),
    "nested def": ("def g():\n    pass", "def g():", "nested function", "outside"),
    "lambda": ("g = lambda x: x", "lambda x: x", "a lambda", "outside"),
    "class": ("class C:\n    pass", "class C:", "a class", "outside"),
    "import": ("import math", "import math", "`import`", "top of the file"),
    "dict": ("x = {1: n}", "{1: n}", "a dict", "tuple"),
    "set": ("x = {n}", "{n}", "a set", "tuple"),
    "match": ("match n:\n    case 1:\n        pass", "match n:", "`match`", "if"),
    "subscript store": ("x = tl.arange(0, B)\nx[0] = 1", "x[0]", "by element", "tl.where"),
    "attribute store": ("n.x = 1", "n.x", "attributes cannot", "local name"),
    "star target": ("a, *b = (1, 2, 3)", "*b", "`*`", "name every"),
    "star keywords": ("x = helper(**n)", "n", r"`\*\*`", "write out"),
    "unpack count": ("a, b = (1, 2, 3)", "a, b", "3 values for 2 names", "one name"),
    "unpack a tile": ("a, b = tl.arange(0, B)", "a, b", r"cannot unpack int32\[16\] tile",
                      "one value"),
    "loop over number": ("for i in n:\n    pass", "n", "cannot loop over", "tl.range"),
    "float bound": ("for i in range(n / 2):\n    pass", "range(n / 2)", "fp32 scalar", "to"),
    "float literal bound": ("for i in range(2.0):\n    pass", "range(2.0)", "2.0", "//"),
    "zero step": ("for i in range(0, n, 0):\n    pass", "range(0, n, 0)", "must not be 0", ""),
    "static_range bound": ("for i in tl.static_range(n):\n    pass", "tl.static_range(n)",
                           "known at compile time", "constexpr"),
    "endless while": ("while True:\n    n -= 1", "True", "never ends", "assigns"),
    "run-time index": ("t = (1, 2)\nx = t[n]", "t[n]", "indexed at compile time", "static_range"),
    "index out of range": ("t = (1, 2)\nx = t[2]", "t[2]", "out of range", "compile time"),
    "arange of run time": ("x = tl.arange(0, n)", "tl.arange(0, n)", "known at compile time",
                           "constexpr"),
    "constexpr annotation": ("x: tl.constexpr = n", "n", "run-time int32 scalar", "annotation"),
    "constexpr division": ("x = B // 0", "B // 0", "by zero", "compile time"),
    "constexpr types": ('x = "a" + 1', '"a" + 1', "at compile time", "Python computes"),
    "run-time power": ("x = n ** 2", "n ** 2", r"`\*\*`", ""),
    "None operand": ("y = None\nx = n + y", "n + y", r"`\+`", "None"),
    "shapes": ("x = tl.arange(0, 16) + tl.arange(0, 32)", "tl.arange(0, 16) + tl.arange(0, 32)",
               r"\[16\] and \[32\]", "equal"),
    "mixed signs": ("x = n // n.to(tl.uint32)", "n // n.to(tl.uint32)", "signed", "cast"),
    "float floor division": ("x = f // 2.0", "f // 2.0", "`//` takes integers", ""),
    "float bit operation": ("x = f & 1", "f & 1", "&", ""),
    "pointer sum": ("x = p + q", "p + q", r"`\+`", "integer|int"),
    "float offset": ("x = tl.load(p + f)", "p + f", "offset is an integer", "tl.int32"),
    "load of a number": ("x = tl.load(n)", "tl.load(n)", "pointer", ""),
    "out of range number": ("x = n.to(tl.int8) + 1000", "n.to(tl.int8) + 1000", "out of range",
                            "wider"),
    "uncalled function": ("x = n + helper", "n + helper", r"`\+` does not apply", ""),
    "call of a number": ("x = n(1)", "n(1)", "cannot be called", ""),
    "call of a dtype": ("x = tl.float32(n)", "tl.float32(n)", "is a type", "to"),
    "int of run time": ("x = int(n)", "int(n)", "compile-time values only", "tl.int32"),
    "f-string": ('tl.static_assert(B == 16, f"{n}")', "n", "f-string", "device_print"),
    "python builtin": ("x = sorted((2, 1))", "sorted", "Python's `sorted`", "tilec.language"),
    "in": ("if n in (1, 2):\n    pass", "n in (1, 2)", "`in`", "=="),
    "is": ("if n is m:\n    pass", "n is m", "`is`", "=="),
    "complex literal": ("x = 1j", "1j", "1j", "floats"),
    "deleted": ("x = n\ndel x\ny = x", "x", "before it is assigned", ""),
    "static_print expression": ("x = tl.nothing_like_this", "tl.nothing_like_this", "has no", ""),
    "dunder": ("x = n.__class__", "n.__class__", "cannot be read", ""),
}
SPECS = {"p": "*fp32", "q": "*fp32", "ip": "*i32", "n": "i32", "m": "i32", "f": "fp32"}


def refuse(fn, specs=SPECS, **constexprs):
    with pytest.raises(CompilationError) as caught:
        build_module(fn, specs, constexprs, target="sm_90a")
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_bad_kernel(name):
    body, at, message, advice = CASES[name]
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    text = f"@jit\ndef kernel(p, q, ip, n, m, f, B: tl.constexpr):\n{indented}"
    error = refuse(from_text(text, **OUTER), B=16)
    assert re.search(message, error.message), error.message
    assert re.search(advice, error.advice), error.advice
    if advice:
        assert error.advice
    head, line, caret = str(error).splitlines()[:3]
    assert head == f"{error.loc}: {error.message.splitlines()[0]}"
    under = line[caret.index("^"):caret.rindex("^") + 1]
    assert under == at, str(error)
    assert error.loc.line == error.loc.chain()[0].line > 0


def test_line_numbers_are_those_of_the_file():
    error = refuse(from_text("\n\n@jit\ndef k(n):\n    x = n\n\n    y = xx\n"), {"n": "i32"})
    assert (error.loc.line, error.loc.col) == (7, 8)


def test_an_indented_kernel_keeps_its_columns():
    text = 'if True:\n    @jit\n    def k(n):\n        """A\ndocstring."""\n        y = xx\n'
    error = refuse(from_text(text), {"n": "i32"})
    assert (error.loc.line, error.loc.col) == (6, 12)


def test_an_error_in_a_callee_shows_its_call_sites():
    text = ("@jit\ndef inner(x):\n    return x + tl.arange(0, 8)\n\n"
            "@jit\ndef middle(x):\n    return inner(x)\n\n"
            "@jit\ndef kernel(n):\n    y = middle(tl.arange(0, 4))\n")
    error = refuse(from_text(text), {"n": "i32"})
    assert [loc.line for loc in error.loc.chain()] == [3, 7, 11]
    shown = str(error)
    assert shown.count("called from") == 2 and "return inner(x)" in shown


def test_static_assert_and_assert():
    for body in ("tl.static_assert(B == 3, 'wants 3')", "assert B == 3, 'wants 3'"):
        fn = from_text(f"@jit\ndef k(n, B: tl.constexpr):\n    {body}\n")
        error = refuse(fn, {"n": "i32"}, B=4)
        assert isinstance(error, CompileTimeAssertionError) and "wants 3" in error.message
        assert error.loc.line == 3
        build_module(fn, {"n": "i32"}, {"B": 3}, target="sm_90a")


@pytest.mark.parametrize("specs, constexprs, message, advice", [
    ({}, {"B": 1}, "needs an argument for `n`", "signature"),
    ({"n": "i32"}, {}, "needs a value for the constexpr `B`", "B="),
    ({"n": "i32", "nn": "i32"}, {"B": 1}, "no parameter `nn`", "`n`"),
    ({"n": "i32"}, {"B": 1, "C": 2}, "no parameter `C`", "n, B"),
    ({"n": "i32", "B": "i32"}, {}, "`B` of `k` is a tl.constexpr", "constexprs"),
    ({"n": "i32"}, {"B": 1, "n": 2}, "both", "once"),
    ({"n": "int33"}, {"B": 1}, "no type", "did you mean"),
    ({"n": "*fp32:x"}, {"B": 1}, "no divisor", ":16"),
])
def test_signatures_that_do_not_fit(specs, constexprs, message, advice):
    fn = from_text("@jit\ndef k(n, B: tl.constexpr):\n    pass\n")
    error = refuse(fn, specs, **constexprs)
    assert re.search(message, error.message), error.message
    assert re.search(advice, error.advice), error.advice


@pytest.mark.parametrize("text, message", [
    ("@jit\ndef k(**xs):\n    pass\n", r"takes `\*\*xs`"),
    ("@jit\nasync def k(x):\n    pass\n", "async"),
    ("@jit\ndef k(x):\n    yield x\n", "generator"),
    ("k = jit(lambda x: x)\n", "lambda"),
    ("@jit\nclass K:\n    pass\n", "plain Python functions"),
])
def test_refused_at_decoration(text, message):
    with pytest.raises(CompilationError, match=message) as caught:
        from_text(text)
    assert caught.value.advice


def test_source_that_cannot_be_read():
    scope = {}
    exec(compile("def k(x):\n    pass\n", "<nowhere>", "exec"), scope)
    with pytest.raises(CompilationError, match="source of `k` cannot be read") as caught:
        function(scope["k"])
    assert "notebook" in caught.value.advice


def test_a_kernel_cannot_be_called_from_python():
    with pytest.raises(CompilationError, match="cannot be called from Python"):
        helper(3)


def test_deep_nesting_is_an_error_not_a_crash():
    text = "@jit\ndef k(ip, n):\n    tl.store(ip, " + "+".join(["n"] * 2000) + ")\n"
    error = refuse(from_text(text), {"ip": "*i32", "n": "i32"})
    assert "nested too deeply" in error.message
