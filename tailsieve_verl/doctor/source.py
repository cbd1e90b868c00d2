"""Signatures and attributes of installed modules, read from their source and never imported.

Importing verl's trainers and vLLM takes half a minute, allocates memory, and fails on a machine whose GPU driver is
missing; reading them takes milliseconds. Names are followed through ``from x import y`` and base classes, as Python
would; what a program builds while it runs is not seen.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

#: Re-exports and base classes to follow; real packages need two or three, a loop of imports must end.
DEPTH = 8


@dataclass(frozen=True)
class Found:
    """A definition: the node, and the module that it stands in."""

    module: str
    node: ast.AST

    @property
    def is_async(self) -> bool:
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def signature(self) -> inspect.Signature | None:
        """Parameters of a function (``self`` included), ``None`` for anything else."""
        if not isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        return _signature(self.node.args)

    @property
    def decorators(self) -> list[str]:
        return [ast.unparse(d) for d in getattr(self.node, "decorator_list", [])]


class Source:
    """Reads packages by their folders.

    Args:
        folders: top-level package -> its folder.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._trees: dict[str, ast.Module | None] = {}

    def has(self, package: str) -> bool:
        return package in self._folders

    def find(self, where: str) -> Found | None:
        """A definition by ``module:name`` or ``module:Class.member``; ``None`` if there is none."""
        module, _, path = where.partition(":")
        first, _, member = path.partition(".")
        found = self._name(module, first, DEPTH)
        if found is None or not member:
            return found
        return self._member(found, member, DEPTH)

    def file(self, module: str) -> Path | None:
        """The file of a module or package."""
        package, *rest = module.split(".")
        if package not in self._folders:
            return None
        base = self._folders[package].joinpath(*rest)
        for candidate in (base / "__init__.py", base.with_suffix(".py")):
            if candidate.is_file():
                return candidate
        return None

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            file = self.file(module)
            self._trees[module] = None if file is None else _parsed(file, file.stat().st_mtime_ns)
        return self._trees[module]

    def _name(self, module: str, name: str, depth: int) -> Found | None:
        tree = self._tree(module)
        if tree is None or depth == 0:
            return None
        for node in _statements(tree.body):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                    return Found(module, node)
                case ast.Assign() if any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                    return Found(module, node)
                case ast.AnnAssign() if isinstance(node.target, ast.Name) and node.target.id == name:
                    return Found(module, node)
                case ast.ImportFrom():
                    for alias in node.names:
                        if (alias.asname or alias.name) != name:
                            continue
                        found = self._name(self._absolute(module, node), alias.name, depth - 1)
                        if found is not None:
                            return found
        return None

    def _member(self, found: Found, member: str, depth: int) -> Found | None:
        node = found.node
        if not isinstance(node, ast.ClassDef) or depth == 0:
            return None
        for statement in _statements(node.body):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == member:
                return Found(found.module, statement)
            if member in _targets(statement):
                return Found(found.module, statement)
        for inner in ast.walk(node):  # self.member = ..., in any method
            if isinstance(inner, ast.Assign | ast.AnnAssign) and member in _targets(inner, of_self=True):
                return Found(found.module, inner)
        for base in node.bases:
            parent = self._name(found.module, ast.unparse(base), depth - 1)
            if parent is not None and (inherited := self._member(parent, member, depth - 1)) is not None:
                return inherited
        return None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        file = self.file(module)
        parts = module.split(".")
        keep = len(parts) - node.level + (1 if file is not None and file.name == "__init__.py" else 0)
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])


@lru_cache(maxsize=256)
def _parsed(file: Path, mtime_ns: int) -> ast.Module | None:
    """A file's syntax tree; ``None`` for one that cannot be read."""
    del mtime_ns  # part of the key only
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements, those under ``if`` and ``try`` included: versions are often told apart there."""
    flat: list[ast.stmt] = []
    for node in body:
        flat.append(node)
        if isinstance(node, ast.If | ast.Try):
            flat += _statements(node.body) + _statements(node.orelse)
            for handler in getattr(node, "handlers", []):
                flat += _statements(handler.body)
    return flat


def _targets(node: ast.AST, *, of_self: bool = False) -> set[str]:
    """Names that an assignment defines, plain ones or those of ``self``."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = set()
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            if of_self and isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                if part.value.id == "self":
                    names.add(part.attr)
            elif not of_self and isinstance(part, ast.Name):
                names.add(part.id)
    return names


def _signature(arguments: ast.arguments) -> inspect.Signature:
    kinds = inspect.Parameter
    parameters: list[inspect.Parameter] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    for i, argument in enumerate(positional):
        kind = kinds.POSITIONAL_ONLY if i < len(arguments.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
        parameters.append(_parameter(argument.arg, kind, i >= without_default))
    if arguments.vararg:
        parameters.append(_parameter(arguments.vararg.arg, kinds.VAR_POSITIONAL, False))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(_parameter(argument.arg, kinds.KEYWORD_ONLY, default is not None))
    if arguments.kwarg:
        parameters.append(_parameter(arguments.kwarg.arg, kinds.VAR_KEYWORD, False))
    return inspect.Signature(parameters)


def _parameter(name: str, kind: inspect._ParameterKind, has_default: bool) -> inspect.Parameter:
    # The default's value does not matter, only that there is one.
    return inspect.Parameter(name, kind, default=... if has_default else inspect.Parameter.empty)
