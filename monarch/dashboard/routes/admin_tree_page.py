"""The tree as text, for /v1/tree: a line a process and actor, each with the URL of its node. Pure."""

from __future__ import annotations

from monarch.admin.payloads import NodePayload
from monarch.admin.program_tree import ProgramTree
from monarch.admin.references import ROOT, encoded


def page(tree: ProgramTree, base: str) -> str:
    """`base`: the URL of the server."""
    blocks = []
    for host in tree.nodes[ROOT].children:
        node = tree.nodes[host]
        shown = node.properties.Host
        lines = [_line(shown.addr if shown is not None else host, host, base)]
        lines += _below(tree, node, "", base)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _below(tree: ProgramTree, node: NodePayload, indent: str, base: str) -> list[str]:
    """Processes below a host, actors below a process, nothing below actors."""
    lines = []
    for position, child in enumerate(node.children):
        below = tree.nodes[child]
        last = position == len(node.children) - 1
        lines.append(indent + ("└── " if last else "├── ") + _line(_label(below), child, base))
        if below.properties.Proc is not None:
            lines += _below(tree, below, indent + ("    " if last else "│   "), base)
    return lines


def _line(label: str, reference: str, base: str) -> str:
    return f"{label}  ->  {base}/v1/{encoded(reference)}"


def _label(node: NodePayload) -> str:
    properties = node.properties
    if properties.Proc is not None:
        return properties.Proc.proc_name
    if properties.Actor is not None:
        uid = node.identity.partition(">.")[0] + ">" if ">." in node.identity else node.identity.partition(".")[0]
        return f"{properties.Actor.name}[{uid}]"
    name = node.identity.rpartition("@")[0]
    return f"{name}  [error] {properties.Error.code}" if properties.Error is not None else name
