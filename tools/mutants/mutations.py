"""Every small change that the code of the core's functions admits, and modules instrumented with some of them.

A mutant replaces one expression or statement inside a function. What runs only once, at import, stays as it is, and so
do annotations, patterns, assertions and the text of messages.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""Turned, and for an order also made strict or non-strict."""
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LEFT_ALONE = (ast.Assert, ast.JoinedStr, ast.pattern, ast.arguments, ast.Import, ast.ImportFrom)


class Identity(msgspec.Struct, frozen=True):
    """What a mutant is, wherever its lines are: a file below the repository, a function, and one line of it before and
    after, as `ast.unparse` writes them."""

    file: str
    function: str
    was: str
    becomes: str


@dataclass
class Mutant:
    """One replacement: `parent.field` (or its item `index`) becomes `replacement`."""

    identity: Identity
    line: int
    parent: ast.AST
    field: str
    index: int | None
    replacement: ast.AST

    def get(self) -> Any:
        value = getattr(self.parent, self.field)
        return value if self.index is None else value[self.index]

    def set(self, node: Any) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass
class Module:
    """A module of the core: its file (relative to the repository), its tree, and all its mutants."""

    file: str
    tree: ast.Module
    mutants: list[Mutant]


def modules(root: Path, package: str) -> list[Module]:
    """All modules of a package below `root`, in the order of their names."""
    found = []
    for path in sorted((root / package).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.append(Module(file, tree, [*_in_functions(file, tree, ())]))
    return found


def instrumented(module: Module, chosen: dict[int, Mutant]) -> str:
    """The source of `module` with a switch (see `active`) in front of each of the `chosen` mutants, by number.

    The module's tree is changed.
    """
    for number, mutant in chosen.items():
        switch = ast.parse(f"__active__[{number}]", mode="eval").body
        original, replacement = mutant.get(), mutant.replacement
        if isinstance(replacement, ast.stmt):
            mutant.set(ast.If(switch, [replacement], [original]))
        else:
            assert isinstance(replacement, ast.expr)
            mutant.set(ast.IfExp(switch, replacement, original))
    body = module.tree.body
    first = len(list(takewhile(_stays_first, body)))
    body.insert(first, ast.parse("from tools.mutants.active import ACTIVE as __active__").body[0])
    return ast.unparse(ast.fix_missing_locations(module.tree)) + "\n"


def _stays_first(node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _in_functions(file: str, node: ast.AST, names: tuple[str, ...]) -> Iterator[Mutant]:
    """The mutants of all functions below `node`, of which `names` are the names around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            inner = (*names, child.name)
            for index, statement in enumerate(child.body):
                yield from _statement(file, ".".join(inner), child, "body", index, statement)
        elif isinstance(child, ast.ClassDef):
            yield from _in_functions(file, child, (*names, child.name))
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _in_functions(file, child, names)


def _statement(
    file: str, function: str, parent: ast.AST, field: str, index: int, statement: ast.stmt
) -> Iterator[Mutant]:
    """The mutants of a statement: of itself, of its expressions, and of the statements inside."""
    if isinstance(statement, LEFT_ALONE):
        return
    if isinstance(statement, ast.FunctionDef):
        for position, inner in enumerate(statement.body):
            yield from _statement(file, f"{function}.{statement.name}", statement, "body", position, inner)
        return
    was = _head(statement)
    for replacement in _instead_of_statement(statement):
        identity = Identity(file, function, was, _head(replacement))
        yield Mutant(identity, statement.lineno, parent, field, index, replacement)
    yield from _of_expressions(file, function, statement, partial(_head, statement))
    for case in getattr(statement, "cases", ()):
        yield from _of_expressions(file, function, case, partial(_head_of_case, case))
    for owner, owner_field, position, inner in _inner_statements(statement):
        yield from _statement(file, function, owner, owner_field, position, inner)


def _of_expressions(file: str, function: str, node: ast.AST, head: Callable[[], str]) -> Iterator[Mutant]:
    was = head()
    for parent, field, index, expression in _expressions(node):
        for replacement in _instead_of_expression(parent, field, expression):
            mutant = Mutant(
                Identity(file, function, was, ""), expression.lineno, parent, field, index, replacement
            )
            mutant.set(replacement)
            mutant.identity = Identity(file, function, was, head())
            mutant.set(expression)
            yield mutant


def _inner_statements(node: ast.AST) -> Iterator[tuple[ast.AST, str, int, ast.stmt]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.stmt):
                    yield node, field, index, item
                elif isinstance(item, ast.ExceptHandler | ast.match_case):
                    yield from _inner_statements(item)


def _expressions(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    """All expressions of a statement, with their places, but not those of the statements inside."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "targets", "target"):
            continue
        items = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, item in items:
            if isinstance(item, (ast.stmt, ast.match_case, *LEFT_ALONE)):
                continue
            if isinstance(item, ast.expr):
                yield node, field, index, item
            if isinstance(item, ast.AST):
                yield from _expressions(item)


def _instead_of_statement(statement: ast.stmt) -> Iterator[ast.stmt]:
    match statement:
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Return(value) if value and not (isinstance(value, ast.Constant) and not value.value):
            yield ast.Return(ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
    if isinstance(statement, ast.AugAssign) and type(statement.op) in OPERATORS:
        changed = copy.copy(statement)
        changed.op = OPERATORS[type(statement.op)]()
        yield changed


def _instead_of_expression(parent: ast.AST, field: str, node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, ops, comparators):
            for index, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield ast.Compare(left, [*ops[:index], other(), *ops[index + 1 :]], comparators)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Name(name) if name in NAMES and isinstance(parent, ast.Call) and field == "func":
            yield ast.Name(NAMES[name], ast.Load())
    tested = isinstance(parent, ast.If | ast.While | ast.IfExp) and field == "test"
    tested |= isinstance(parent, ast.comprehension) and field == "ifs"
    if tested and not isinstance(node, ast.Compare | ast.UnaryOp | ast.BoolOp):
        yield ast.UnaryOp(ast.Not(), node)


def _head(statement: ast.stmt) -> str:
    """The first line of a statement, without those inside it."""
    shown = copy.copy(statement)
    for field, value in ast.iter_fields(statement):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            setattr(shown, field, [ast.Pass()] if field == "body" else [])
    for field in ("handlers", "cases"):
        if hasattr(shown, field):
            setattr(shown, field, [])
    return ast.unparse(ast.fix_missing_locations(shown)).split("\n")[0]


def _head_of_case(case: ast.match_case) -> str:
    shown = ast.Match(ast.Name("_"), [ast.match_case(case.pattern, case.guard, [ast.Pass()])])
    return ast.unparse(ast.fix_missing_locations(shown)).split("\n")[1].strip()
