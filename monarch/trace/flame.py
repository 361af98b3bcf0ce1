"""Stacks of many processes as one picture: a flame graph whose boxes say in how many processes they were seen.

Pure: counts in, text out. The picture is one SVG file that needs nothing else: titles appear under the pointer, and a script
of a few lines in it zooms, which viewers that run no scripts leave out. The same stacks as speedscope's JSON, and as folded
lines that other tools read.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from zlib import crc32

from monarch._linux import private_files

_WIDTH = 1200.0
_ROW = 18
_LEAST = 0.3  # pixels: narrower boxes are not drawn
_CHARACTER = 6.6  # pixels of one, about
_MOST_BOXES = 20_000  # the widest are drawn; the note below the picture says how many are not


class FlameNode:
    """A frame under its callers: how often seen, by which processes."""

    __slots__ = ("caller", "children", "count", "name", "own", "seen_by")

    def __init__(self, name: str, caller: FlameNode | None = None) -> None:
        self.name = name
        self.caller = caller
        self.count = 0
        self.own = 0  # as the innermost frame
        self.seen_by: set[str] = set()
        self.children: dict[str, FlameNode] = {}

    def add(self, frames: list[str], count: int, process: str) -> None:
        node = self
        node.count += count
        node.seen_by.add(process)
        for name in frames:
            below = node.children.get(name)
            if below is None:
                below = node.children[name] = FlameNode(name, node)
            node = below
            node.count += count
            node.seen_by.add(process)
        node.own += count

    def depth(self) -> int:
        deepest, level = 0, [self]
        while level:
            deepest += 1
            level = [child for node in level for child in node.children.values()]
        return deepest


class Flame:
    """Stacks of one or more processes, folded: `processes` is name -> stack ("outer;inner") -> times seen.

    `silent`: processes that gave none, and why.
    """

    def __init__(
        self,
        processes: Mapping[str, Mapping[str, int]],
        *,
        silent: Mapping[str, str] | None = None,
        title: str = "",
        notes: str = "",
    ) -> None:
        self.processes = {name: dict(stacks) for name, stacks in processes.items()}
        self.silent = dict(silent or {})
        self.title = title or "Where Python code was"
        self.notes = notes

    def __repr__(self) -> str:
        return f"<Flame of {len(self.processes)} process(es), {self.total} stacks seen>"

    @property
    def total(self) -> int:
        """Returns how many stacks were seen, in all processes."""
        return sum(sum(stacks.values()) for stacks in self.processes.values())

    def tree(self) -> FlameNode:
        """The stacks of all processes as one tree, what the picture is made of."""
        root = FlameNode("all")
        for process, stacks in self.processes.items():
            for stack, count in stacks.items():
                root.add(stack.split(";"), count, process)
        return root

    def folded(self) -> str:
        """One line a stack, summed over processes: "outer;inner 12". What flame graph tools read."""
        sums: dict[str, int] = {}
        for stacks in self.processes.values():
            for stack, count in stacks.items():
                sums[stack] = sums.get(stack, 0) + count
        return "".join(f"{stack} {count}\n" for stack, count in sorted(sums.items()))

    def speedscope(self) -> str:
        """JSON for speedscope.app: one profile a process."""
        names: dict[str, int] = {}
        profiles = []
        for process, stacks in self.processes.items():
            samples = [[names.setdefault(name, len(names)) for name in stack.split(";")] for stack in stacks]
            weights = list(stacks.values())
            profiles.append(
                {
                    "type": "sampled",
                    "name": process,
                    "unit": "none",
                    "startValue": 0,
                    "endValue": sum(weights),
                    "samples": samples,
                    "weights": weights,
                }
            )
        return json.dumps(
            {
                "$schema": "https://www.speedscope.app/file-format-schema.json",
                "name": self.title,
                "shared": {"frames": [{"name": name} for name in names]},
                "profiles": profiles,
            }
        )

    def hottest(self, count: int = 10) -> list[tuple[str, float, list[str]]]:
        """(frame, share of all stacks in which it was the innermost, the processes) of the frames that took most."""
        own: dict[str, int] = {}
        seen_by: dict[str, set[str]] = {}
        for process, stacks in self.processes.items():
            for stack, times in stacks.items():
                leaf = stack.rpartition(";")[2]
                own[leaf] = own.get(leaf, 0) + times
                seen_by.setdefault(leaf, set()).add(process)
        total = self.total or 1
        first = sorted(own, key=lambda name: (-own[name], name))[:count]
        return [(name, own[name] / total, sorted(seen_by[name])) for name in first]

    def svg(self) -> str:
        """The picture, roots at the top: a box is as wide as the share of stacks it was part of."""
        return _svg(self)

    def write(self, path: str | Path) -> Path:
        """Writes what the name asks for: `.svg`, `.json` (speedscope), else folded lines. Returns the path."""
        path = Path(path)
        text = {".svg": self.svg, ".json": self.speedscope}.get(path.suffix, self.folded)()
        private_files.write_output(path, text.encode(errors="backslashreplace"))
        return path


def boxes(root: FlameNode, width: float, least: float = _LEAST) -> Iterator[tuple[FlameNode, int, float, float]]:
    """(node, depth, left, width), outer before inner; those narrower than `least`, and what is in them, are left out."""
    if not root.count:
        return
    scale = width / root.count
    waiting = [(root, 0, 0.0)]
    while waiting:
        node, depth, left = waiting.pop()
        yield node, depth, left, node.count * scale
        at = left
        for child in sorted(node.children.values(), key=lambda child: child.name):
            wide = child.count * scale
            if wide >= least:
                waiting.append((child, depth + 1, at))
            at += wide


def _svg(flame: Flame) -> str:
    root = flame.tree()
    drawn = list(boxes(root, _WIDTH))
    hidden = 0
    if len(drawn) > _MOST_BOXES:
        drawn.sort(key=lambda box: -box[3])
        hidden = len(drawn) - _MOST_BOXES
        del drawn[_MOST_BOXES:]
    deepest = max((depth for _, depth, _, _ in drawn), default=0)
    notes = [flame.notes] if flame.notes else []
    if hidden:
        notes.append(f"{hidden} narrow boxes are not drawn")
    if not root.count:
        notes.append("no Python code was running: every actor waited for a message")
    notes += [f"no answer from {process}: {why}" for process, why in list(flame.silent.items())[:5]]
    if len(flame.silent) > 5:
        notes.append(f"no answer from {len(flame.silent) - 5} more processes")
    top = 44
    height = top + (deepest + 1) * _ROW + 12 + 16 * len(notes)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:g}" height="{height}" '
        f'viewBox="0 0 {_WIDTH:g} {height}" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="100%" height="100%"/><text x="8" y="20" font-size="14" class="head">'
        f"{_markup(flame.title)}</text>",
        '<text id="hint" x="8" y="36" class="hint">click a box to zoom, the top one to go back</text>',
        f'<text id="found" x="{_WIDTH - 8:g}" y="36" text-anchor="end" class="hint"></text>',
        '<g id="boxes">',
    ]
    count = len(flame.processes)
    for node, depth, left, wide in drawn:
        share = node.count / root.count
        where = f", in {len(node.seen_by)} of {count} processes" if count > 1 else ""
        if 0 < len(node.seen_by) <= 3 < count:
            where += f" ({', '.join(sorted(node.seen_by))})"
        own = f", {node.own} of them here" if node.own and node.children else ""
        title = f"{node.name}: {node.count} stacks ({share:.1%}){own}{where}"
        label = node.name
        if node.caller is not None and len(node.seen_by) < len(node.caller.seen_by):  # here some went another way
            which = f": {next(iter(node.seen_by))}" if len(node.seen_by) == 1 else ""
            label = f"{len(node.seen_by)} of {len(node.caller.seen_by)}{which} | {label}"
        whole, room = label, int((wide - 6) / _CHARACTER)
        if len(label) > room:
            label = label[: max(0, room - 1)] + "…" if room > 2 else ""
        y = top + depth * _ROW
        out.append(
            f'<g data-x="{left:.2f}" data-w="{wide:.2f}" data-d="{depth}"><title>{_markup(title)}</title>'
            f'<rect x="{left:.2f}" y="{y}" width="{max(wide - 0.5, 0.2):.2f}" height="{_ROW - 1}" rx="1.5" '
            f'fill="{_colour(node.name)}"/><text x="{left + 3:.2f}" y="{y + 12}" data-n="{_markup(whole)}">'
            f"{_markup(label)}</text></g>"
        )
    out.append("</g>")
    y = top + (deepest + 1) * _ROW + 12
    for note in notes:
        out.append(f'<text x="8" y="{y}" class="hint">{_markup(note)}</text>')
        y += 16
    out.append(f"<script><![CDATA[{_SCRIPT}]]></script></svg>\n")
    return "\n".join(out)


def _markup(text: str) -> str:
    """Returns text as XML has it: it cannot hold every character, and one that it cannot hold would spoil the whole file."""
    return html.escape(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text))


_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _colour(name: str) -> str:
    """Warm and the same each time; grey for what is ours, or only waits."""
    if "(monarch/" in name or name.startswith("("):
        return "#c9cdd3"
    mixed = crc32((name.rpartition(":")[0] or name).encode(errors="replace"))
    return f"hsl({8 + mixed % 44},{62 + mixed // 44 % 18}%,{62 + mixed // 1000 % 12}%)"


_STYLE = """
.page{fill:#fff}.head{fill:#1c2128}.hint{fill:#57606a}g>text{fill:#1c2128;pointer-events:none}
#boxes g{cursor:pointer}#boxes g:hover rect{stroke:#1c2128;stroke-width:1}
@media (prefers-color-scheme:dark){.page{fill:#16191d}.head{fill:#e6edf3}.hint{fill:#9aa4af}}
"""

# Zoom: boxes are laid out anew from the numbers that each carries.
_SCRIPT = """
(function(){
var W=1200,C=6.6,boxes=[].slice.call(document.querySelectorAll('#boxes>g'));
function show(x,w,d){boxes.forEach(function(g){
  var gx=+g.getAttribute('data-x'),gw=+g.getAttribute('data-w'),gd=+g.getAttribute('data-d');
  var r=g.querySelector('rect'),t=g.querySelector('text'),name=t.getAttribute('data-n');
  var above=gd<d&&gx<=x+0.01&&gx+gw>=x+w-0.01,inside=gd>=d&&gx>=x-0.01&&gx+gw<=x+w+0.01;
  if(!above&&!inside){g.style.display='none';return}
  g.style.display='';
  var nx=above?0:(gx-x)/w*W,nw=above?W:gw/w*W,room=Math.floor((nw-6)/C);
  r.setAttribute('x',nx);r.setAttribute('width',Math.max(nw-0.5,0.2));r.style.opacity=above?0.75:1;
  t.setAttribute('x',nx+3);t.textContent=name.length<=room?name:room>2?name.slice(0,room-1)+'\\u2026':'';
});}
boxes.forEach(function(g){g.addEventListener('click',function(){
  show(+g.getAttribute('data-x'),+g.getAttribute('data-w'),+g.getAttribute('data-d'));});});
})();
"""
