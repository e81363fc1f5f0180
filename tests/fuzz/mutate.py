"""Spoiling files: trees of plain values, then the text they are written as, then raw bytes; all from one number."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from typing import Any

import yaml

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
)
DOCUMENTS: list[bytes] = [
    b"",
    b"\n \n",
    b"# nothing\n",
    b"\xef\xbb\xbf",
    b"\x00",
    b"\xff\xfe\x00\x01",
    b"null\n",
    b"- 1\n- 2\n",
    b"a sentence",
    b"a: [1, 2\nb: }",
    b"\ta: 1\n",
    b"a: 1\na: 2\n",
    b"a: &a [*a]\n",
    b"a: &a {b: *a}\n",
    b"a: *nobody\n",
    b"a: !!python/object/apply:os.system ['true']\n",
    b"a: !!python/name:os.system ''\n",
    b"a: !!binary QUJD\n",
    b"a: !!int abc\n",
    b"a: !!float ''\n",
    b"a: !!bool perhaps\n",
    b"a: !!str [x]\n",
    b"a: !mine x\n",
    b"a: 2026-01-05\n",
    b"? [a, b]\n: 1\n",
    b"1: 2\n",
    b"a: 1\n---\nb: 2\n",
    b"a: '\\0'\n",
    b'a: "\\0"\n',
    b'a: "\\ud800"\n',
    b"a: " + b"9" * 5000 + b"\n",
    b"a: 0x" + b"f" * 5000 + b"\n",
    b"a: 1e999999\n",
    b"{" * 1500,
    b"[" * 20_000,
    b"a: " + b"{a: " * 2000 + b"}" * 2000,
    b'{"a": ' * 3000 + b"1" + b"}" * 3000,
    LAUGHS.encode(),
    b"x: {<<: [*a, *a]}\n",
    b"PK\x03\x04" + b"\x00" * 40,
    b"PAR1" + b"\x00" * 40 + b"PAR1",
]
"""Whole documents that have troubled somebody's parser."""

SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 10**9, 2**63, 10**30, 10**400, 1e-320, 1e308,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "1e-3", "3", "yes", "null", "é", "\u202e", "a\nb",
    "a\tb", "a|b", "$x$", "${HOME}", "$(id)", "`id`", "; id", "{x}", "%s", "--help", "-x", ".", "..", "../../x", "/",
    "/etc/passwd", "a/b", "~", "*", "\\", "'", '"', "<b>", "x" * 300, [], {}, [[]], {"": ""}, {"name": "x"}, [None],
    datetime.date(2026, 1, 5), b"bytes",
]  # fmt: skip
JUNK = [
    b"\x00", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1b[31m", b"\r", b"\t", b"\n", b":", b",", b'"',
    b"'", b"{", b"]", b"&a", b"*a", b"!!x ", b"1e5", b"-", b"NaN",
]  # fmt: skip
KEYS = [
    "",
    "x",
    "name",
    "kind",
    "id",
    "__class__",
    "..",
    "a.b",
    "1",
    "{x}",
    "\n",
    "é",
    "x" * 200,
    "$ref",
    "<<",
]


def tree(value: Any, rng: random.Random, most: int = 3) -> Any:
    """A copy of plain data with one to ``most`` places spoilt."""
    value = json.loads(json.dumps(value, default=str))
    for _ in range(rng.randint(1, most)):
        places = list(_places(value))
        if not places:
            return rng.choice(SCALARS)
        holder, key = rng.choice(places)
        rng.choice(OPERATIONS)(holder, key, rng)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) of plain data."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        here = stack.pop()
        inside = (
            list(here.items())
            if isinstance(here, dict)
            else list(enumerate(here))
            if isinstance(here, list)
            else []
        )
        found += [(here, key) for key, _ in inside]
        stack += [item for _, item in inside]
    return found


def _delete(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = rng.choice(SCALARS)


def _rename(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        name = rng.choice([*KEYS, f"{key}x", str(key)[:-1]])
        holder[name] = holder.pop(key)
    else:
        holder.append(holder[key])


def _repeat(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(KEYS)] = holder[key]
    else:
        holder.insert(key, holder[key])


def _retype(holder: Any, key: Any, rng: random.Random) -> None:
    old = holder[key]
    holder[key] = rng.choice([[old], {"value": old}, str(old), [old, old], None if old else old])


def _nudge(holder: Any, key: Any, rng: random.Random) -> None:
    old = holder[key]
    if isinstance(old, bool):
        holder[key] = not old
    elif isinstance(old, (int, float)):
        third = old / 3 if abs(old) < 1e300 else 0.1  # no float holds a third of 10**400
        holder[key] = rng.choice([-old, old + 1, old * 1000, third, old * 10**18])
    elif isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        holder[key] = old[:at] + rng.choice(["é", "\n", "$", "../", "_", " ", "\x07", '"']) + old[at:]
    else:
        holder[key] = rng.choice(SCALARS)


def _deepen(holder: Any, key: Any, rng: random.Random) -> None:
    value = holder[key]
    for _ in range(rng.choice([3, 60, 400])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    holder[key] = value


def _swap(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


OPERATIONS: list[Callable[[Any, Any, random.Random], None]] = [
    _delete, _replace, _replace, _rename, _repeat, _retype, _nudge, _nudge, _swap, _deepen,
]  # fmt: skip


def raw(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four places spoilt, or cut, or with the marks of another encoding."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        junk = rng.choice([*JUNK, bytes([rng.randrange(256)])])
        kind = rng.randrange(6)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + junk + data[at:]
        elif kind == 2:
            data = data[:at] + junk + data[at + len(junk) :]
        elif kind == 3:
            lines = data.splitlines(keepends=True) or [b""]
            line = rng.randrange(len(lines))
            lines.insert(rng.randrange(len(lines) + 1), lines[line])
            data = b"".join(lines)
        elif kind == 4:
            lines = data.splitlines(keepends=True) or [b""]
            del lines[rng.randrange(len(lines))]
            data = b"".join(lines)
        else:
            end = min(len(data), at + rng.randint(1, 40))
            data = data[:at] + data[end:]
    if rng.random() < 0.05:
        data = data.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-8-sig"]), "replace")
    return data


def as_yaml(value: Any, rng: random.Random) -> bytes:
    """Plain data as YAML, in one of its styles."""
    text = yaml.safe_dump(
        value,
        default_flow_style=rng.choice([None, False, True]),
        allow_unicode=rng.random() < 0.5,
        sort_keys=False,
    )
    return text.encode("utf-8", "surrogatepass")


def as_json(value: Any, rng: random.Random) -> bytes:
    """Plain data as JSON, with Python's NaN and Infinity where there are such."""
    return json.dumps(value, default=str, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def spoilt(good: bytes, seed: int, kind: str) -> bytes:
    """A spoilt file.

    Args:
        good: the good file.
        seed: which way to spoil it.
        kind: ``yaml`` or ``json`` for structured files, ``text`` for anything else.
    """
    rng = random.Random(seed)
    way = rng.random()
    if way < 0.08:
        return rng.choice(DOCUMENTS)
    if kind == "text" or way < 0.4:
        return raw(good, rng)
    try:
        value = tree(yaml.safe_load(good) if kind == "yaml" else json.loads(good), rng)
        return (as_yaml if kind == "yaml" else as_json)(value, rng)
    except RecursionError:  # too deep to be written down by the libraries
        return raw(good, rng)
