"""Seeded changes of a text, token by token and line by line, from likely slips to plain damage."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

_TOKEN = re.compile(r'"[^"\n]*"|[%@#$.]?[\w.$:]+|\S')
_NUMBER = re.compile(r"-?\d+")
ODD = ("0", "-1", "1", "2", "3", "7", "16", "31", "32", "33", "255", "256", "4096", "65536",
       "1048577", "2147483647", "2147483648", "-2147483649", "9223372036854775808",
       "99999999999999999999999", "1e999", "-0.0", "nan", "0.5", "1" * 5000)
CHARACTERS = ("\0\x01\x1b\t\n\x7f\u00e9\u0661\ud800\udfff\u202e\U0001f4a1\"'\\"
              "{}[]()<>:,;=%@#^|!~+-*/")


def mutate(text: str, others: Sequence[str], rng: random.Random) -> str:
    """One to three changes; others: texts of the kind, from which pieces are taken."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choices(_CHANGES, _WEIGHTS)[0](text, others, rng)
    return text


def _spans(text: str, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    return [m.span() for m in pattern.finditer(text)]


def _put(text: str, span: tuple[int, int], new: str) -> str:
    return text[:span[0]] + new + text[span[1]:]


def number(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Another number."""
    spans = _spans(text, _NUMBER)
    return _put(text, rng.choice(spans), rng.choice(ODD)) if spans else text


def token(text: str, others: Sequence[str], rng: random.Random) -> str:
    """A token of this text in the place of one that begins alike: a register, a type, a name."""
    spans = _spans(text, _TOKEN)
    if not spans:
        return text
    at = rng.choice(spans)
    like = [text[a:b] for a, b in spans if text[a] == text[at[0]]]
    return _put(text, at, rng.choice(like))


def foreign(text: str, others: Sequence[str], rng: random.Random) -> str:
    """A token of another text."""
    spans, found = _spans(text, _TOKEN), _TOKEN.findall(rng.choice(others))
    return _put(text, rng.choice(spans), rng.choice(found)) if spans and found else text


def part(text: str, others: Sequence[str], rng: random.Random) -> str:
    """A dotted part of a word (a modifier of an instruction, an op's name) exchanged or dropped."""
    spans = _spans(text, re.compile(r"\.\w+"))
    if not spans:
        return text
    return _put(text, rng.choice(spans), rng.choice(["", *(text[a:b] for a, b in spans)]))


def drop(text: str, others: Sequence[str], rng: random.Random) -> str:
    """A token less."""
    spans = _spans(text, _TOKEN)
    return _put(text, rng.choice(spans), "") if spans else text


def line(text: str, others: Sequence[str], rng: random.Random) -> str:
    """A line less, twice, elsewhere, or from another text."""
    lines = text.splitlines(True)
    if not lines:
        return text
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[i]
        case 1:
            lines.insert(i, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case 3:
            lines.insert(i, lines.pop(j))
        case _:
            lines.insert(i, rng.choice(rng.choice(others).splitlines(True) or [""]))
    return "".join(lines)


def character(text: str, others: Sequence[str], rng: random.Random) -> str:
    """A character more, less or other."""
    at = rng.randrange(len(text) + 1)
    new = rng.choice(["", *rng.choices(CHARACTERS, k=3)])
    return text[:at] + new + text[at + rng.randrange(2):]


def cut(text: str, others: Sequence[str], rng: random.Random) -> str:
    """The text ends early."""
    return text[:rng.randrange(len(text) + 1)]


def nest(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Brackets, very deep."""
    left, right = rng.choice(("[]", "{}", "()", "<>"))
    spans = _spans(text, _TOKEN)
    if not spans:
        return text
    a, b = rng.choice(spans)
    depth = rng.choice((3, 70, 3000))
    return text[:a] + left * depth + text[a:b] + right * depth + text[b:]


_TABLE: dict[Callable[[str, Sequence[str], random.Random], str], int] = {
    number: 8, token: 10, foreign: 4, part: 5, drop: 2, line: 6, character: 2, cut: 1, nest: 1}
_CHANGES, _WEIGHTS = list(_TABLE), list(_TABLE.values())
