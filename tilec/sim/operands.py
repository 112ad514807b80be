"""Reads the operands of a PTX instruction; each spelling is parsed once."""

from __future__ import annotations

import re
from functools import lru_cache

from tilec.sim.ptx import Operand

_NAME = re.compile(r"[A-Za-z_$%][\w$]*(?:\.[xyzw])?")
_ADDRESS = re.compile(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?\w+))?\s*(?:,\s*(.*?)\s*)?\]\Z", re.S)
_INT = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?\Z")
_MAX_NESTING = 64  # brackets and signs in one instruction's operands


@lru_cache(maxsize=4096)
def modifiers(text: str) -> tuple[str, ...]:
    """The words behind an opcode's dots."""
    return tuple(text[1:].split(".")) if text else ()


@lru_cache(maxsize=65536)
def parse_operands(text: str) -> tuple[Operand, ...]:
    """Operands between commas; ValueError where one has no meaning."""
    if sum(map(text.count, "{(!")) > _MAX_NESTING:
        raise ValueError("operands are nested too deep")
    return tuple(parse_operand(part) for part in _split(text)) if text else ()


def _split(text: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    if "{" not in text and "[" not in text and "(" not in text:
        return [part.strip() for part in text.split(",")]
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return parts


@lru_cache(maxsize=65536)
def parse_operand(text: str) -> Operand:
    """Parse one operand; ValueError where it has no meaning."""
    if not text:
        raise ValueError("an operand is missing")
    first = text[0]
    if first in "{(" and text[-1] != {"{": "}", "(": ")"}[first]:
        raise ValueError(f"'{text}' is not closed")
    if first == "{":
        return Operand("vec", items=parse_operands(text[1:-1].strip()))
    if first == "(":
        return Operand("list", items=parse_operands(text[1:-1].strip()))
    if first == "[":
        match = _ADDRESS.match(text)
        if match is None:
            raise ValueError(f"not an address: '{text}'")
        base, offset, extra = match.groups()
        items = (parse_operand(base), *(parse_operands(extra) if extra else ()))
        return Operand("addr", value=_integer(offset) if offset else 0, items=items)
    if text == "_":
        return Operand("sink")
    if first == "!":
        return parse_operand(text[1:].strip())._replace(negated=True)
    if "|" in text:
        left, right = text.split("|")
        return Operand("pair", items=(parse_operand(left.strip()), parse_operand(right.strip())))
    if text[:2] in ("0f", "0F") and len(text) == 10:
        return Operand("f32", value=int(text[2:], 16))
    if text[:2] in ("0d", "0D") and len(text) == 18:
        return Operand("f64", value=int(text[2:], 16))
    if first.isdigit() or first == "-":
        return _literal(text)
    if first == '"':
        return Operand("str", text[1:-1])
    if "+" in text:
        name, offset = text.split("+")
        return Operand("sym", name.strip(), _integer(offset.strip()))
    if not _NAME.fullmatch(text):
        raise ValueError(f"not an operand: '{text}'")
    return Operand("reg", text)


def _literal(text: str) -> Operand:
    if _INT.match(text):
        return Operand("imm", value=_integer(text))
    try:
        return Operand("float", name=repr(float(text)))
    except ValueError:
        raise ValueError(f"not a constant: '{text}'") from None


def _integer(text: str) -> int:
    """A PTX integer: decimal, 0x, 0b or 0 for octal, with an optional U."""
    if not _INT.match(text):
        raise ValueError(f"not an integer: '{text}'")
    text = text.rstrip("U")
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text)
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    value = int(digits, 8 if octal else 0)
    if value >> 64:
        raise ValueError(f"an integer of more than 64 bits: '{text}'")
    return sign * value
