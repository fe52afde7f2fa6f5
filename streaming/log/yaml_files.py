"""Files in YAML, with bounds: a small file can name a value that fills the memory, or nests deeper than any stack. Their values are those
of JSON: no dates, no infinity."""

from errno import EFBIG
from math import isfinite
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.nodes import ScalarNode

from sinks.small_files import in_utf8, read_small

MOST_VALUES = 200_000
"""Names and values, each alias as what it stands for."""
DEEPEST = 60
_LONGEST_NUMBER = 100
"""Characters of a whole number."""

_TAGS = "tag:yaml.org,2002:"


class NotYaml(ValueError):
    """A file is not YAML, or has too much in it, or what JSON has not. The text says where, and what to write."""


def read_yaml(path: str | Path, *, with_lines: bool = False) -> Any:
    """The content of a file; `with_lines`: as ruamel's types, which know their lines. Raises `NotYaml` and `OSError`."""
    try:
        text = in_utf8(read_small(path)).decode()
        _check(text)
        return (YAML() if with_lines else YAML(typ="safe")).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f"line {mark.line + 1}: "
        what = error.problem or error.context or ""
        what += ": indent with spaces" if r"'\t'" in what else ""
        raise NotYaml(f"{where}this is not YAML: {what}") from error
    except NotYaml:
        raise
    except OSError as error:
        if error.errno != EFBIG:
            raise
        raise NotYaml(error.strerror) from error
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        raise NotYaml(f"this is not YAML: {' '.join(str(error).split())}") from error


class _Open:
    """A map or a list that has not ended. `values`: how many are in it, `height`: how deep they nest."""

    def __init__(self, anchor: str | None) -> None:
        self.anchor, self.values, self.height = anchor, 1, 1


def _check(text: str) -> None:
    """Raises `NotYaml` for what would become too much, and for what JSON has not."""
    known: dict[str, tuple[int, int]] = {}
    opened = [_Open(None)]

    def add(anchor: str | None, values: int, height: int, line: int) -> None:
        if anchor is not None:
            known[anchor] = values, height
        opened[-1].values += values
        opened[-1].height = max(opened[-1].height, height + 1)
        if opened[-1].values > MOST_VALUES:
            raise NotYaml(f"line {line}: it has more than {MOST_VALUES:,} values: remove some")
        if len(opened) + height > DEEPEST:
            raise NotYaml(f"line {line}: it nests deeper than {DEEPEST} levels: write it flatter")

    yaml = YAML(typ="safe", pure=True)
    for event in yaml.parse(text):
        line = event.start_mark.line + 1
        match event:
            case (
                MappingStartEvent(tag=str(tag)) | SequenceStartEvent(tag=str(tag)) | ScalarEvent(tag=str(tag))
            ):
                raise NotYaml(
                    f"line {line}: {tag.replace(_TAGS, '!!')[:40]} is not a supported type: remove it"
                )
            case MappingStartEvent() | SequenceStartEvent():
                opened.append(_Open(event.anchor))
                if len(opened) > DEEPEST:
                    raise NotYaml(f"line {line}: it nests deeper than {DEEPEST} levels: write it flatter")
            case MappingEndEvent() | SequenceEndEvent():
                ended = opened.pop()
                add(ended.anchor, ended.values, ended.height, line)
            case AliasEvent():
                if event.anchor not in known:
                    raise NotYaml(
                        f"line {line}: *{event.anchor} refers to no anchor that ends before it: define it "
                        "above"
                    )
                add(None, *known[event.anchor], line)
            case ScalarEvent(value=value):
                kind = str(yaml.resolver.resolve(ScalarNode, value, event.implicit)).removeprefix(_TAGS)
                if kind == "timestamp":
                    raise NotYaml(f"line {line}: {value} is a date: put it in quotes")
                if kind == "value":
                    raise NotYaml(f"line {line}: {value} is not a value that can be used: put it in quotes")
                if (kind == "int" and len(value) > _LONGEST_NUMBER) or (
                    kind == "float" and not _is_finite(value)
                ):
                    raise NotYaml(
                        f"line {line}: {value[:40]} is not a number that can be used: write another one"
                    )
                add(event.anchor, 1, 0, line)


def _is_finite(value: str) -> bool:
    """Whether a number with a fraction or an exponent, as YAML writes it, is one."""
    text = value.replace("_", "").lower()
    if text.lstrip("+-") in (".inf", ".nan"):
        return False
    return ":" in text or isfinite(float(text))  # with colons, as old YAML writes hours, it is small
