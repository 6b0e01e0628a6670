"""What a docstring says to the model: the description, and a line for each parameter.

Reads Google style (``Args:``) and numpy style (``Parameters`` underlined). Pure.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest

from attrs import frozen

from ..vocabulary import clean_text

_ARGUMENTS = r"(?:Keyword |Other )?(?:Args|Arguments|Parameters|Params)"
_SECTION = (
    rf"(?:{_ARGUMENTS}|Attributes|Examples?|Notes?|Raises|References|Returns?|See Also|Todo"
    r"|Warnings?|Warns|Yields?)"
)
_GOOGLE = re.compile(rf"{_SECTION}:\s*", re.IGNORECASE)
_NUMPY = re.compile(_SECTION, re.IGNORECASE)
_IS_ARGUMENTS = re.compile(rf"{_ARGUMENTS}\b", re.IGNORECASE)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*)|)$")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


@frozen
class Documented:
    """*description* is all text before the first section; *parameters* are one line each."""

    description: str
    parameters: Mapping[str, str]


def read_docstring(body: Callable[..., object]) -> Documented:
    """What the docstring of *body* says; empty where it says nothing."""
    lines = clean_text(_docstring(body)).splitlines()
    description: list[str] = []
    parameters: dict[str, str] = {}
    section: list[str] = description
    sections: list[tuple[bool, list[str]]] = []
    skip = False
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        underlined = following.startswith("---") and not following.strip("- ")
        numpy = underlined and bool(_NUMPY.fullmatch(line.strip()))
        if skip:  # the underline
            skip = False
        elif numpy or _GOOGLE.fullmatch(line):
            section = []
            sections.append((numpy, section))
            skip = numpy
            if not _IS_ARGUMENTS.match(line.strip()):
                sections.pop()
        else:
            section.append(line)
    for numpy, block in sections:
        parameters.update(_numpy_entries(block) if numpy else _google_entries(block))
    return Documented("\n".join(description).strip(), parameters)


def _docstring(body: Callable[..., object]) -> str:
    while isinstance(body, functools.partial):
        body = body.func
    if inspect.isroutine(body):
        return inspect.getdoc(body) or ""
    # An object: its class may explain the calling, or itself.
    return inspect.getdoc(type(body).__call__) or inspect.getdoc(type(body)) or ""


def _google_entries(block: list[str]) -> dict[str, str]:
    """``name (type): text``, indented alike; deeper lines go on with the text."""
    found: dict[str, list[str]] = {}
    margin: int | None = None
    name: str | None = None
    for line in filter(str.strip, block):
        indent = len(line) - len(line.lstrip())
        margin = indent if margin is None else margin
        entry = _GOOGLE_ENTRY.match(line.strip()) if indent == margin > 0 else None
        if indent == 0:  # plain text after the section
            name = None
        elif entry:
            name = str(entry[1])
            found[name] = [entry[2] or ""]
        elif name is not None:
            found[name].append(line)
    return {key: _joined(texts) for key, texts in found.items()}


def _numpy_entries(block: list[str]) -> dict[str, str]:
    """``name : type`` at the margin, the text indented below it."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in filter(str.strip, block):
        if line[0].isspace():
            for name in names:
                found[name].append(line)
        elif entry := _NUMPY_ENTRY.match(line):
            names = [name.strip(" *") for name in entry[1].split(",")]
            found.update((name, []) for name in names)
        else:
            names = []
    return {key: _joined(texts) for key, texts in found.items()}


def _joined(texts: list[str]) -> str:
    return " ".join(" ".join(texts).split())
