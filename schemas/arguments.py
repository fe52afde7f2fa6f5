"""Arguments of the wrong type, and counts below one, are an error at the call that says so, instead of anything later."""

import builtins
import inspect
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import cache, wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

P = ParamSpec("P")
T = TypeVar("T")

COUNTS = frozenset(
    {
        "partitions",
        "processes",
        "batches",
        "shuffle_partitions",
        "every",
        "most",
        "most_states",
        "max_ahead_ms",
    }
)
"""Parameters that are numbers of something, of which there is one at least. Their names are the same everywhere."""

_LONGEST = 60


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, with arguments of the types that it says. For what users call, not for what is called often.

    It raises `TypeError` for an argument of another type, and `ValueError` for one of `COUNTS` below 1, for a timedelta that is not
    positive, and for an empty path, which would be the current folder. A class that only type checkers
    import is known by its name.
    """
    signature = inspect.signature(function)

    @cache
    def expected() -> dict[str, Any]:
        names = _Names(vars(builtins) | function.__globals__)
        parameters = inspect.signature(function, locals=names, eval_str=True).parameters.values()
        return {each.name: each.annotation for each in parameters if each.annotation is not each.empty}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        where = function.__qualname__.removesuffix(".__init__")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from None
        for name, value in bound.arguments.items():
            if name in expected() and not _is(value, expected()[name]):
                wanted = inspect.formatannotation(signature.parameters[name].annotation).strip("'")
                raise TypeError(f"{where}: {name} is {_shown(value)}, but must be {wanted}")
            if name in expected() and _takes_path(expected()[name]) and "" in _texts(value):
                raise ValueError(f"{where}: {name} is empty, but must be a path")
            if isinstance(value, Integral) and hasattr(value, "dtype"):
                bound.arguments[name] = int(value)  # numpy's are of no use in JSON
            if name in COUNTS and value is not None and value < 1:
                raise ValueError(f"{where}: {name} is {value}, but must be 1 or more")
            if isinstance(value, timedelta) and value <= timedelta():
                raise ValueError(f"{where}: {name} is {value}, but must be more than 0")
        return function(*bound.args, **bound.kwargs)

    return call


def _takes_path(wanted: Any) -> bool:
    return wanted is Path or any(map(_takes_path, get_args(wanted)))


def _texts(value: object) -> list[str]:
    """An argument, or those in a sequence, which a record with fields is none of."""
    each = value if isinstance(value, list | tuple) and not hasattr(value, "_fields") else [value]
    return [one for one in each if isinstance(one, str)]


class _Names(dict[str, Any]):
    """What a function's annotations may name. It has any name."""

    def __missing__(self, name: str) -> Any:
        return type(name, (_Named,), {})


class _Module(type):
    """A module may be imported so, too: what it has is named in the same way."""

    def __getattr__(cls, name: str) -> Any:
        return type(name, (_Named,), {})


class _Named(metaclass=_Module):
    """A class that is imported for type checkers alone."""


def _is(value: object, wanted: Any) -> bool:
    """Whether a value is of a type, as far as a look tells."""
    origin, args = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return any(_is(value, each) for each in args)
    if origin is Literal:
        return value in args
    if origin in (Sequence, Collection):
        is_one = isinstance(value, origin) and not isinstance(value, str | bytes)
        return is_one and all(_is(each, args[0]) for each in value)  # type: ignore[attr-defined]
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _is(each, one) for item in value.items() for each, one in zip(item, args, strict=True)
        )
    if origin is tuple:
        return isinstance(value, Sequence) and len(value) == len(args) and all(map(_is, value, args))
    if origin is Callable:
        return callable(value)
    return value is None if wanted in (None, types.NoneType) else _is_one(value, wanted)


def _is_one(value: object, wanted: Any) -> bool:
    """As `_is`, for a class."""
    if wanted is Any or not isinstance(wanted, type):
        return True
    if issubclass(wanted, _Named):
        return any(each.__name__ == wanted.__name__ for each in type(value).__mro__)
    if wanted in (int, float):
        return isinstance(value, Integral if wanted is int else Real) and not isinstance(value, bool)
    if wanted is Path:
        return isinstance(value, PathLike)
    if getattr(wanted, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(wanted) if not name.startswith("_"))
    return isinstance(value, wanted)


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > _LONGEST or "\n" in text:
        return f"of type {type(value).__name__}"
    return f"{text} (of type {type(value).__name__})"
