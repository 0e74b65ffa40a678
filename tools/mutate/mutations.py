"""The mutations of a file: small faults as a person makes them, one at a time.

A mutation is found again by its number, since a file is always walked in the same order. What is never run, or changes
only words, is left out: annotations, docstrings, texts, messages, lines of the log, what is imported for types alone.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Final

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COUNTED: Final[dict[type[ast.operator], type[ast.operator]]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_SIMPLE: Final = (ast.Expr, ast.Assign, ast.AugAssign)
LARGEST: Final = 2
"""Larger numbers are limits and intervals that somebody chose; one more or less of them is no fault."""
DROP: Final = "dropped"
SWAP: Final = "swapped with the next"
_OF_DERIVED: Final = ("compare", "repr")
"""Whether a dataclass compares and shows a field that it makes of others says nothing new."""
_WORDS: Final = ("log", "warnings", "invariant")
"""Calls whose removal changes no behaviour: lines of the log, and checks of what is never so."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault in one file. number: its place in the walk. before, after: the source of what changes. same: how many
    in front of it in the function read like it.
    """

    path: str
    number: int
    line: int
    kind: str
    where: str
    before: str
    after: str
    same: int = 0

    @property
    def name(self) -> str:
        """What identifies it though lines move: the file, the function and the change."""
        text = f"{self.path}:{self.where}: {self.before} -> {self.after}"
        return f"{text} #{self.same + 1}" if self.same else text


def mutations_of(path: Path, root: Path) -> list[Mutation]:
    """Return every mutation of a file, in the order of its lines."""
    walk = _Walk(path.relative_to(root).as_posix(), ast.parse(path.read_bytes()))
    found, same = [], Counter[str]()
    for mutation in walk.run():
        found.append(replace(mutation, same=same[mutation.name]))
        same[mutation.name] += 1
    return found


def mutated_code(path: Path, number: int) -> CodeType:
    """Compile the file with the mutation of this number."""
    tree = ast.parse(path.read_bytes())
    for _ in _Walk(path.name, tree, apply=number).run():
        pass
    return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)


class _Walk:
    """Goes through a tree. `apply`: the number of the mutation that is made in it."""

    def __init__(self, path: str, tree: ast.Module, apply: int | None = None) -> None:
        self._path = path
        self._tree = tree
        self._apply = apply
        self._number = 0
        self._scope: list[str] = []

    def run(self) -> Iterator[Mutation]:
        yield from self._body(self._tree.body)

    def _found(self, node: ast.AST, kind: str, change: Callable[[], None]) -> Iterator[Mutation]:
        """Yield one mutation of `node`, or make it."""
        number, self._number = self._number, self._number + 1
        if self._apply is None:
            before = _source(node)
            yield Mutation(
                self._path,
                number,
                getattr(node, "lineno", 0),
                kind,
                ".".join(self._scope) or "module",
                before,
                kind if kind in (DROP, SWAP) else _changed(node, self._tree, change, before),
            )
        elif self._apply == number:
            change()

    # --- statements -----------------------------------------------------------------------------------------------

    def _body(self, body: list[ast.stmt], *, is_branch: bool = False) -> Iterator[Mutation]:
        for index, statement in enumerate(list(body)):
            if index == 0 and _is_text(statement):
                continue
            if _is_never_run(statement) or _is_said(statement):
                continue
            if _can_drop(statement, body, is_branch=is_branch):
                yield from self._found(statement, DROP, partial(_drop, body, index))
            following = body[index + 1] if index + 1 < len(body) else None
            if following is not None and _can_swap(statement, following):
                yield from self._found(statement, SWAP, partial(_swap, body, index))
            yield from self._statement(statement)

    def _statement(self, statement: ast.stmt) -> Iterator[Mutation]:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._scope.append(statement.name)
                for default in (*statement.args.defaults, *statement.args.kw_defaults):
                    if default is not None:
                        yield from self._expression(default)
                yield from self._body(statement.body)
                self._scope.pop()
            case ast.ClassDef():
                self._scope.append(statement.name)
                yield from self._body(statement.body)
                self._scope.pop()
            case ast.If() | ast.While():
                yield from self._expression(statement.test)
                yield from self._body(statement.body, is_branch=True)
                yield from self._body(statement.orelse, is_branch=True)
            case ast.For() | ast.AsyncFor():
                yield from self._expression(statement.iter)
                yield from self._body(statement.body, is_branch=True)
                yield from self._body(statement.orelse)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    yield from self._expression(item.context_expr)
                yield from self._body(statement.body)
            case ast.Try():
                yield from self._body(statement.body)
                for handler in statement.handlers:
                    yield from self._body(handler.body, is_branch=True)
                yield from self._body(statement.orelse)
                yield from self._body(statement.finalbody)
            case ast.Match():
                yield from self._expression(statement.subject)
                for branch in statement.cases:
                    if branch.guard is not None:
                        yield from self._expression(branch.guard)
                    yield from self._body(branch.body, is_branch=True)
            case ast.AugAssign():
                if type(statement.op) in _COUNTED:
                    yield from self._found(statement, "operator", lambda: _replace_operator(statement))
                yield from self._expression(statement.value)
            case ast.AnnAssign():
                if statement.value is not None:
                    yield from self._expression(statement.value)
            case ast.Raise():
                pass  # its message
            case _:
                for child in ast.iter_child_nodes(statement):
                    if isinstance(child, ast.expr):
                        yield from self._expression(child)

    # --- expressions ----------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr) -> Iterator[Mutation]:
        match node:
            case ast.Compare():
                for index, operator in enumerate(node.ops):
                    if type(operator) in _COMPARED:
                        yield from self._found(node, "comparison", partial(_replace_comparison, node, index))
            case ast.BinOp() if type(node.op) in _COUNTED and not (_is_words(node.left) or _is_words(node.right)):
                yield from self._found(node, "operator", lambda: _replace_operator(node))
            case ast.BoolOp():
                yield from self._found(node, "and, or", lambda: _replace_and_or(node))
            case ast.UnaryOp(op=ast.Not()):
                yield from self._found(node, "not", lambda: _drop_not(node))
            case ast.Constant(value=bool()):
                yield from self._found(node, "constant", lambda: setattr(node, "value", not node.value))
            case ast.Constant(value=int(number)) if abs(number) <= LARGEST:
                yield from self._found(node, "off by one", partial(setattr, node, "value", number + 1))
            case ast.JoinedStr() | ast.Lambda(args=ast.arguments(defaults=[_, *_])):
                return
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child)
            elif isinstance(child, ast.keyword) and not (child.arg in _OF_DERIVED and _is_derived_field(node)):
                yield from self._expression(child.value)
            elif isinstance(child, ast.comprehension):
                yield from self._expression(child.iter)
                for condition in child.ifs:
                    yield from self._expression(condition)


def _source(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= 100 else text[:99] + "…"


def _changed(node: ast.AST, tree: ast.Module, change: Callable[[], None], before: str) -> str:
    """Return the source after `change`, which is undone."""
    saved = {name: copy.copy(getattr(node, name)) for name in node._fields}
    kept = node.__class__
    change()
    after = _source(node)
    node.__class__ = kept
    for name, value in saved.items():
        setattr(node, name, value)
    assert _source(node) == before, tree
    return after


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_never_run(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal):
        return True
    return isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING")


def _is_said(statement: ast.stmt) -> bool:
    """Whether it only writes to the log or asserts what is never otherwise."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(value, ast.Call):
        return isinstance(statement, ast.Assert)
    name = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    return isinstance(name, ast.Name) and name.id in _WORDS


def _can_drop(statement: ast.stmt, body: list[ast.stmt], *, is_branch: bool) -> bool:
    """A call for its effect, an error that is raised, or a branch that returns early."""
    if isinstance(statement, ast.Expr):
        value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        return isinstance(value, ast.Call)
    if isinstance(statement, ast.Return | ast.Continue | ast.Break):
        return is_branch
    return isinstance(statement, ast.Raise | ast.AugAssign)


def _can_swap(first: ast.stmt, second: ast.stmt) -> bool:
    """Two statements for their effects, of which the second does not need what the first names."""
    if not (isinstance(first, _SIMPLE) and isinstance(second, _SIMPLE)) or _is_text(second) or _is_said(second):
        return False
    if not all(any(isinstance(node, ast.Call) for node in ast.walk(statement)) for statement in (first, second)):
        return False
    if not any(isinstance(statement, ast.Expr) for statement in (first, second)):
        return False  # two values are taken; their order has no effect
    named = {node.id for node in ast.walk(first) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = {node.id for node in ast.walk(second) if isinstance(node, ast.Name)}
    return not named & used


def _drop(body: list[ast.stmt], index: int) -> None:
    body[index] = ast.copy_location(ast.Pass(), body[index])


def _swap(body: list[ast.stmt], index: int) -> None:
    body[index], body[index + 1] = body[index + 1], body[index]


def _replace_comparison(node: ast.Compare, index: int) -> None:
    node.ops[index] = _COMPARED[type(node.ops[index])]()


def _replace_operator(node: ast.BinOp | ast.AugAssign) -> None:
    node.op = _COUNTED[type(node.op)]()


def _replace_and_or(node: ast.BoolOp) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _drop_not(node: ast.UnaryOp) -> None:
    node.op, node.operand = ast.Not(), ast.UnaryOp(op=ast.Not(), operand=node.operand)


def _is_derived_field(node: ast.expr) -> bool:
    """Whether this is `field(init=False, ...)`: what a dataclass makes of its other fields."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "field"):
        return False
    return any(one.arg == "init" and ast.unparse(one.value) == "False" for one in node.keywords)


def _is_words(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
