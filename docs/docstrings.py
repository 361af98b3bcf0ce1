"""How the docstrings of the package become pages of the reference: an extension of Sphinx.

Docstrings are plain text: paragraphs, lists with "- ", indented code, names in backticks. This makes reStructuredText of
them, shows signatures as they are written, and keeps private modules out of sight: an object is known by the public name
under which a page of docs/reference/ has it, and mentions of that name lead there.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, get_origin, get_overloads

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from monarch.actor import EndpointProperty

HERE = Path(__file__).resolve().parent
DIRECTIVE = re.compile(
    r"^\.\. auto(?:class|exception|function|decorator|data|method|attribute|property):: *([\w.]+)", re.M
)
MODULE = re.compile(r"^\.\. py:currentmodule:: *([\w.]+)|" + DIRECTIVE.pattern, re.M)

INLINE = re.compile(r"(``.+?``|`[^`]+`|(?<!\w)\*\*[^*]+\*\*|\bdocs/[\w-]+\.md\b|\b[A-Z][a-zA-Z]*\b)", re.S)
CODE = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST


@cache
def documented() -> dict[str, list[str]]:
    """Where the reference has each name: "HostMesh" -> ["monarch.actor.HostMesh"]."""
    found: dict[str, list[str]] = {}
    for page in sorted((HERE / "reference").rglob("*.md")):
        module = ""
        for match in MODULE.finditer(page.read_text()):
            if match[1]:
                module = match[1]
            else:
                found.setdefault(match[2], []).append(f"{module}.{match[2]}")
    return found


def home(name: str, module: str = "") -> str:
    """Where the reference has `name`, as a docstring of `module` means it; "" when it has none or more than one."""
    before, _, last = name.rpartition(".")
    known = documented().get(last, [])
    if before.startswith("monarch"):
        return name if name in known else ""
    if before:
        owner = home(before, module)
        return f"{owner}.{last}" if owner and last.isidentifier() else ""
    while module:  # as a package's modules mean it
        if f"{module}.{name}" in known:
            return f"{module}.{name}"
        module = module.rpartition(".")[0]
    return known[0] if len(known) == 1 else ""


# --- text ------------------------------------------------------------


def is_code(lines: list[str]) -> bool:
    return all(not line or line.startswith("    ") for line in lines)


def paragraphs(lines: list[str]) -> list[list[str]]:
    """Divided at empty lines; code with empty lines in it stays whole, and a list that begins right below text is cut off."""
    found: list[list[str]] = [[]]
    for line in lines:
        starts_list = line.startswith("- ") and found[-1] and not found[-1][0].startswith("- ")
        if not line.strip() or starts_list:
            found.append([])
        if line.strip():
            found[-1].append(line.rstrip())
    merged: list[list[str]] = []
    for block in filter(None, found):
        if merged and is_code(block) and is_code(merged[-1]):
            merged[-1] += ["", *block]
        else:
            merged.append(block)
    return merged


class Origin:
    """What a docstring belongs to: its module, its own name and parameters, to which no mention need lead, and what it has
    mentioned already."""

    def __init__(self, full: str, parameters: Iterable[str] = ()) -> None:
        parts = full.split(".")
        known = [
            index
            for index in range(1, len(parts) + 1)
            if ".".join(parts[:index]) in documented().get(parts[index - 1], ())
        ]
        self.module = ".".join(parts[: known[0] - 1]) if known else full.rpartition(".")[0]
        self.plain = {*parts, *parameters}


def converted(lines: list[str], origin: Origin) -> list[str]:
    """The same text as reStructuredText."""
    result: list[str] = []
    for block in paragraphs(lines):
        if is_code(block):
            code = [line[4:] for line in block]
            result += [f".. code-block:: {language(code)}", "", *("    " + line for line in code), ""]
        elif block[0].startswith("- "):
            for item in re.split(r"\n(?=- )", "\n".join(block)):
                result.append("- " + inline(" ".join(item[2:].split()), origin))
            result.append("")
        else:
            result += [inline(" ".join(line.strip() for line in block), origin), ""]
    return result


def language(code: list[str]) -> str:
    try:
        compile("\n".join(code), "<docstring>", "exec", CODE)
    except SyntaxError:
        return "text"
    return "python"


def inline(text: str, origin: Origin) -> str:
    """Names in backticks become code, or references if the reference has them; so do bare names of classes, once a text."""
    parts: list[str] = []
    for index, part in enumerate(INLINE.split(text)):
        if index % 2 == 0:
            parts.append(re.sub(r"([\\*|_`])", r"\\\1", part))
            continue
        if part.startswith("**"):
            markup = part.replace("`", "")  # reStructuredText has no code in bold
        elif part.startswith("`"):
            markup = named(part.strip("`"), origin)
        elif part.startswith("docs/"):
            page = part.removeprefix("docs/").removesuffix(".md")
            markup = f":doc:`{page} </{page}>`" if (HERE / f"{page}.md").exists() else part
        else:
            markup = bare(part, origin)
        if markup != part or part.startswith("**"):  # markup wants no letters beside it
            markup = f"\\ {markup}\\ "
        parts.append(markup)
    joined = "".join(parts)
    joined = re.sub(r"(^|[\s(\[{,])\\ ", r"\1", joined)
    return re.sub(r"\\ (?=$|[\s.,;:!?)\]}])", "", joined)


def named(text: str, origin: Origin) -> str:
    text = re.sub(r"\(\s+", "(", " ".join(text.split()))
    name = re.sub(r"\(.*\)$", "", text).removeprefix("monarch.actor.")
    telling = text.endswith(")") or re.search(r"[A-Z_.]", name)  # `shard` may be a parameter of the function `shard`
    full = home(name, origin.module) if telling and name not in origin.plain else ""
    return f":py:obj:`{text} <{full}>`" if full else f"``{text}``"


def bare(word: str, origin: Origin) -> str:
    full = home(word, origin.module)
    if not full or word in origin.plain or not re.search(r"[a-z][A-Z]|[A-Z]{2}[a-z]|^Future$", word):
        return word
    origin.plain.add(word)
    return f":py:obj:`{word} <{full}>`"


# --- what autodoc asks ------------------------------------------------

_class: list[type] = []  # the class whose members are being written


def public(cls: type) -> str:
    """The name by which the reference has a class."""
    for full in documented().get(cls.__name__, ()) if cls.__module__.startswith("monarch") else ():
        if getattr(importlib.import_module(full.rpartition(".")[0]), cls.__name__) is cls:
            return full
    return ""


def bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__[1:] if public(base)]


def says(obj: Any) -> str:
    """The docstring that an attribute of a class itself has."""
    if isinstance(obj, (classmethod, staticmethod)):
        obj = obj.__func__
    own = getattr(obj, "__doc__", None)
    if not isinstance(own, str) or own == type(obj).__doc__ or own.startswith("Alias for field number"):
        return ""
    return own


def same(value: Any, other: Any) -> bool:
    return other is not None and says(value) in ("", says(other))


def own_members(cls: type) -> list[str]:
    """Public attributes that the page of a class has to show: its own and those of its private bases."""
    found: list[str] = []
    foreign = [base for base in cls.__mro__[1:] if not base.__module__.startswith("monarch")]
    for base in cls.__mro__:
        if not base.__module__.startswith("monarch") or (base is not cls and public(base)):
            continue
        for name, value in vars(base).items():
            inherited = any(same(value, vars(other).get(name)) for other in [*bases(cls), *foreign])
            if not name.startswith("_") and says(value) and not inherited and name not in found:
                found.append(name)
    return found


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    if what not in ("class", "exception") or not _class:
        return None
    if issubclass(_class[-1], enum.Enum):
        return name not in _class[-1].__members__
    return True if name not in own_members(_class[-1]) or isinstance(obj, EndpointProperty) else None


def endpoints(cls: type) -> list[str]:
    """The endpoints of an actor class: to autodoc they are neither methods nor attributes."""
    found: list[str] = []
    for name in own_members(cls):
        prop = vars(cls).get(name)
        if isinstance(prop, EndpointProperty):
            parameters, result = signature_text(inspect.unwrap(prop), True) or ("()", "")
            found += [f".. py:method:: {name}{parameters} -> {result or 'None'}", ""]
            text = converted((inspect.getdoc(prop) or "").splitlines(), Origin(f"{public(cls)}.{name}"))
            found += ["   " + line for line in text]
    return found


def docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "module" or (what == "data" and type(obj).__module__ == "builtins"):
        lines.clear()  # pages say themselves what modules and numbers are for
        return
    origin = Origin(name, parameters_of(obj))
    text = converted(lines, origin)
    if isinstance(obj, type):
        if issubclass(obj, BaseException):
            plain = [base.__name__ for base in obj.__bases__ if base is not object]
            text += ["Bases: " + ", ".join(named(base, origin) for base in plain) + ".", ""]
        for base in bases(obj) if not issubclass(obj, BaseException) else []:
            names = ", ".join(f":py:obj:`{member} <{public(base)}.{member}>`" for member in own_members(base))
            text += [f"From :py:obj:`{base.__name__} <{public(base)}>`: {names}.", ""] if names else []
        text += endpoints(obj)
    lines[:] = text


def shown(annotation: Any, scope: dict[str, Any]) -> str:
    """A type as the source writes it, with the package's own short names for unions spelled out."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", text)

    def spelled(match: re.Match[str]) -> str:
        meant = scope.get(match[0]) or unloaded(match[0])
        union = isinstance(meant, types.UnionType) or get_origin(meant) is not None
        return inspect.formatannotation(meant) if union else match[0]

    text = re.sub(r"(?<![\w.])_?[A-Z]\w+(?![\w.\[])", spelled, text)
    return re.sub(r"\b(?:typing|collections\.abc|pathlib|(?:monarch|torch)(?:\.\w+)*)\.(?=[A-Z])", "", text)


@cache
def unloaded(name: str) -> Any:
    """What a module means by a name that it imports for type checkers only: that of another module of the package."""
    modules = [module for place, module in sorted(sys.modules.items()) if place.startswith("monarch.")]
    return next((vars(module)[name] for module in modules if name in vars(module)), None)


def parameters_of(obj: Any) -> list[str]:
    try:
        return list(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return []


def signature_text(obj: Any, method: bool) -> tuple[str, str] | None:
    try:
        signature = inspect.signature(obj)
    except (TypeError, ValueError):
        return None
    function = inspect.unwrap(obj.__init__ if isinstance(obj, type) else obj)
    scope = getattr(getattr(function, "__func__", function), "__globals__", {})
    parameters = []
    for index, parameter in enumerate(signature.parameters.values()):
        if (index == 0 and method and parameter.name in ("self", "cls")) or (
            parameter.name.startswith("_") and parameter.default is not parameter.empty
        ):
            continue
        plain: dict[str, Any] = {}
        if parameter.annotation is not parameter.empty:
            plain["annotation"] = Plain(shown(parameter.annotation, scope))
        if parameter.default is not parameter.empty:
            plain["default"] = Plain(default(parameter.default))
        parameters.append(parameter.replace(**plain))
    returned = signature.return_annotation
    overloads = get_overloads(function) if returned == "Any" and inspect.isfunction(function) else []
    if overloads:  # the plainest of them
        returned = min((str(inspect.signature(overload).return_annotation) for overload in overloads), key=len)
    result = "" if returned is signature.empty else shown(returned, scope)
    bare_signature = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return str(bare_signature), "" if isinstance(obj, type) else result


class Plain:
    """Stands in a signature for a text that is to be shown as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def default(value: Any) -> str:
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    text = repr(value)
    return "..." if text.startswith("<") else text


def signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, args: str | None, result: str | None) -> Any:
    if what in ("class", "exception"):
        _class[:] = [obj]
        text = signature_text(obj, False)
        return (args if args == "()" else text[0] if text else "", None)
    if what in ("function", "method", "decorator"):
        text = signature_text(obj, what == "method")
        return text or (args, result)
    return None


def leading_home(app: Sphinx, doctree: nodes.document) -> None:
    """Types in signatures lead to the public names of what they name."""
    for node in doctree.findall(addnodes.pending_xref):
        if node.get("refdomain") == "py" and node["reftype"] == "class":
            full = home(node["reftarget"].rpartition(".")[2], node.get("py:module") or "")
            node["reftarget"], node["refspecific"] = full or node["reftarget"], False


def missing(app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Element) -> nodes.Element | None:
    """What is not in the reference is plain text: Python's and torch's types, attributes that have no text of their own."""
    if node.get("refdomain") != "py":
        return None
    owner = node["reftarget"].rpartition(".")[0]
    known = node["reftype"] == "class" or home(owner.rpartition(".")[2], owner.rpartition(".")[0])
    return content if known else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("doctree-read", leading_home)
    app.connect("missing-reference", missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
