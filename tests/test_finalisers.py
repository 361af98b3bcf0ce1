"""Tests that what the collector or a signal may run at any point of any thread takes no plain lock and sends nothing.

The code is read, not run: from each `__del__`, each callback of `weakref` and each handler of a signal through what it calls,
as far as names tell what that is. A method is looked for in its class, and elsewhere where few classes have one of that
name; a function in its module and where it is imported from.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DEPTH = 3  # calls that are followed
FEW = 3  # classes with a method of one name that are all looked at

SENDS = {"post", "broadcast", "tell", "sendall", "start_thread"}

# Calls that are given a function to be called at any point, and which argument that is; attributes that are one.
CALLED_BACK = {
    "weakref.finalize": 1,
    "weakref.ref": 1,
    "signal.signal": 1,
    "read_if_dropped": 1,
    "UnobservedError": 0,
    "unwanted": 0,
}
NAMES = {called.rpartition(".")[2] for called in CALLED_BACK}

# What may take a lock there, and why: "file: function". This list only shrinks.
ALLOWED = {
    "monarch/_runtime/loop.py: Loop._deaf": "starts a thread once, when the program has closed the loop's descriptors",
}


class Function(NamedTuple):
    """A function, a method or a lambda."""

    path: str
    owner: str  # its class
    name: str
    node: ast.AST

    def __str__(self) -> str:
        return f"{self.path}: {self.owner + '.' if self.owner else ''}{self.name}"


class Code:
    """All functions of the package, and its plain locks."""

    def __init__(self) -> None:
        self.methods: dict[str, list[Function]] = defaultdict(list)
        self.functions: dict[tuple[str, str], Function] = {}  # by module and name
        self.imported: dict[tuple[str, str], tuple[str, str]] = {}
        self.locks: set[tuple[str, str]] = set()  # (file, name of the variable or attribute)
        self.roots: list[Function] = []
        for path in sorted((ROOT / "monarch").rglob("*.py")):
            self._read(str(path.relative_to(ROOT)), ast.parse(path.read_text()))

    def _read(self, path: str, tree: ast.Module) -> None:
        self._take(path, "", tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                there = node.module.replace(".", "/")
                self.imported |= {(path, name.asname or name.name): (there, name.name) for name in node.names}
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("threading.Lock", "Lock"):
                    self.locks |= {(path, name_of(target)) for target in targets}
                elif any(name_of(target) in CALLED_BACK for target in targets):
                    self.roots.append(callback(path, ast.unparse(targets[0]), node.value))
            elif isinstance(node, ast.Call):
                at = CALLED_BACK.get(ast.unparse(node.func), -1) if name_of(node.func) in NAMES else -1
                if 0 <= at < len(node.args):
                    self.roots.append(callback(path, f"{ast.unparse(node.func)} (line {node.lineno})", node.args[at]))

    def _take(self, path: str, owner: str, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._take(path, node.name, node.body)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                function = Function(path, owner, node.name, node)
                if owner:
                    self.methods[node.name].append(function)
                else:
                    self.functions[path, node.name] = function
                if node.name == "__del__":
                    self.roots.append(function)

    def called(self, function: Function) -> Iterator[tuple[ast.Call, list[Function]]]:
        """The calls in a function, but for those in functions that it only makes, and what may be called there."""
        for node in own_nodes(function.node):
            if not isinstance(node, ast.Call):
                continue
            found: list[Function] = []
            if isinstance(node.func, ast.Name):
                place = function.path, node.func.id
                module, name = self.imported.get(place, ("", ""))
                for key in (place, (f"{module}.py", name)):
                    found += [self.functions[key]] if key in self.functions else []
            elif isinstance(node.func, ast.Attribute):
                named = self.methods[node.func.attr]
                here = [method for method in named if method.path == function.path]
                mine = [method for method in here if method.owner == function.owner]
                if ast.unparse(node.func.value) == "self" and (mine or here):
                    found = mine or here
                elif len(named) <= FEW:
                    found = named
            yield node, found

    def offences(self, function: Function) -> Iterator[str]:
        for node in own_nodes(function.node):
            taken: list[ast.expr] = []
            if isinstance(node, ast.With):
                taken = [item.context_expr for item in node.items]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                waits = "False" not in map(ast.unparse, [*node.args, *(keyword.value for keyword in node.keywords)])
                taken = [node.func.value] if node.func.attr == "acquire" and waits else []
                if node.func.attr in SENDS:
                    yield f"sends by {ast.unparse(node.func)}()"
            elif isinstance(node, ast.Call) and name_of(node.func) in SENDS:
                yield f"calls {ast.unparse(node.func)}()"
            for expression in taken:
                if (function.path, name_of(expression)) in self.locks:
                    yield f"takes {ast.unparse(expression)}"


def callback(path: str, name: str, given: ast.expr) -> Function:
    """The function that is called back: a lambda, or a call of what is named."""
    return Function(path, "", name, given if isinstance(given, ast.Lambda) else ast.Call(given, [], []))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run with a function: those of functions and lambdas within run later."""
    inner = [node.body] if isinstance(node, ast.Lambda) else list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        inner = [node]
    todo: list[ast.AST] = list(inner)
    while todo:
        one = todo.pop()
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(one)


def name_of(expression: ast.AST) -> str:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def test_what_may_run_at_any_point_takes_no_plain_lock_and_sends_nothing() -> None:
    code = Code()
    found: dict[str, str] = {}
    looked_at = 0
    for root in code.roots:
        todo, seen = [(root, 0, str(root))], {str(root)}
        while todo:
            function, depth, way = todo.pop()
            looked_at += 1
            for offence in code.offences(function):
                found.setdefault(str(function), f"{offence}; reached by {way}")
            if str(function) in ALLOWED or depth == DEPTH:
                continue
            for _, targets in code.called(function):
                for target in targets:
                    if str(target) not in seen:
                        seen.add(str(target))
                        todo.append((target, depth + 1, f"{way} > {target.name}"))
    print(f"{len(code.roots)} roots, {looked_at} functions, {len(code.locks)} plain locks")
    unexpected = {where: how for where, how in found.items() if where not in ALLOWED}
    assert not unexpected, "\n".join(f"{where}: {how}" for where, how in unexpected.items())
    assert set(ALLOWED) <= set(found), "these are no longer needed"
    assert looked_at > 40
