"""YAML text into plain values: text keys, plain scalars, no key twice, no tricks with anchors."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import yaml

MOST_CHARACTERS = 2_000_000
"""Longest YAML text that is read; the largest shipped file has about 100,000 characters."""

MOST_VALUES = 200_000
"""Most values of a document with every alias written out; a few lines of aliases can stand for billions."""

MOST_LEVELS = 100
"""Deepest nesting; shipped files have six levels, and validation can follow some 250."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge")}
_EXPONENT = re.compile(r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
_LARGEST = 2**1000
_LAYOUT = "\t\n\r"


class ParseError(ValueError):
    """Text that is not such YAML.

    Attributes:
        problem: what is wrong, a sentence.
        line: where, from 1; None if it concerns the whole.
        remedy: what to do, a sentence.
    """

    def __init__(self, problem: str, line: int | None, remedy: str) -> None:
        self.problem, self.line, self.remedy = problem, line, remedy
        super().__init__(problem)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, by libyaml where PyYAML has it. Integers have limits.

    1e-3 is a number as in YAML 1.2 (YAML 1.1 wants 1.0e-3).
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if abs(value) > _LARGEST:
            raise ParseError("the number is too large.", _line(node), "write a smaller one.")
        return value


_Loader.add_implicit_resolver(f"{_TAG}float", _EXPONENT, [*"-+.0123456789"])
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)


def parse_yaml(text: str) -> Any:
    """The value of one YAML document made of mappings with text keys, lists, text, numbers, true, false and null.

    Raises:
        ParseError: anything else, a key written twice, a value that contains itself, or a text too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise ParseError(
            f"has more than {MOST_CHARACTERS:,} characters.", None, "check that it is the right file."
        )
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Check().size(node)
        return loader.construct_document(node)
    except ParseError:
        raise
    except RecursionError:
        raise ParseError("is nested too deeply.", None, "flatten it.") from None
    except (yaml.YAMLError, ValueError, LookupError) as error:
        mark = getattr(error, "problem_mark", None)
        detail = getattr(error, "problem", None) or (str(error).splitlines() or ["a value is malformed"])[0]
        if detail.startswith("found undefined alias") and mark is not None:
            alias = text.splitlines()[mark.line][mark.column :].split()[0].strip("*,]}")
            detail = f"'*{alias}' stands for the value marked '&{alias}', and there is none before it"
        elif detail == "but found another document":
            detail = "a second document begins"
        where = "is not valid YAML" if mark is None else "is not valid YAML here"
        raise ParseError(
            f"{where}: {detail}.", None if mark is None else mark.line + 1, "correct the syntax."
        ) from None


class _Check:
    """What the grammar of YAML allows and a configuration does not."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()

    def size(self, node: yaml.Node) -> int:
        """Values in a node with aliases written out. Raises ParseError at the first that may not be."""
        if id(node) in self._open:
            raise ParseError("the value contains itself.", _line(node), "remove the alias inside it.")
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        if node.tag not in _PLAIN:
            raise _unusual(node)
        total = 1
        if isinstance(node, yaml.ScalarNode):
            _refuse_control(node)
        else:
            if len(self._open) == MOST_LEVELS:
                raise ParseError(
                    f"is nested more than {MOST_LEVELS} levels deep.", _line(node), "flatten it."
                )
            self._open.add(id(node))
            if isinstance(node, yaml.MappingNode):
                _refuse_repeated(node)
                total += sum(self.size(key) + self.size(value) for key, value in node.value)
            else:
                total += sum(self.size(item) for item in node.value)
            self._open.discard(id(node))
        if total > MOST_VALUES:
            raise ParseError(
                f"aliases make it more than {MOST_VALUES:,} values.", _line(node), "write out fewer aliases."
            )
        self._sizes[id(node)] = total
        return total


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _unusual(node: yaml.Node) -> ParseError:
    shown = node.value if isinstance(node, yaml.ScalarNode) and len(node.value) < 40 else ""
    if node.tag == f"{_TAG}timestamp":
        return ParseError(f"{shown or 'the value'} is read as a date.", _line(node), "put it in quotes.")
    if node.tag == f"{_TAG}value":
        return ParseError("'=' alone has a meaning of its own.", _line(node), "put it in quotes.")
    tag = str(node.tag).replace(_TAG, "!!")
    return ParseError(
        f"the tag {tag!r} is not allowed: only text, numbers, lists and mappings are.",
        _line(node),
        "remove the tag, or put text that begins with '!' in quotes.",
    )


def _refuse_control(node: yaml.ScalarNode) -> None:
    for char in node.value:
        if char not in _LAYOUT and unicodedata.category(char) in ("Cc", "Cs"):
            raise ParseError(
                f"the text holds the control character U+{ord(char):04X}.", _line(node), "remove it."
            )


def _refuse_repeated(node: yaml.MappingNode) -> None:
    """Every key is text and stands once; YAML itself would keep the last of two."""
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            shown = f" {key.value}" if isinstance(key, yaml.ScalarNode) and len(key.value) < 40 else ""
            raise ParseError(f"the key{shown} is not text.", _line(key), "put it in quotes.")
        if key.value in seen:
            raise ParseError(
                f"the key {key.value!r} is written twice, first at line {seen[key.value]}.",
                _line(key),
                "keep one of the two."
                if key.tag != f"{_TAG}merge"
                else "take over several mappings with one '<<: [*first, *second]'.",
            )
        seen[key.value] = _line(key)
