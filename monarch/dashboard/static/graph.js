// Hosts, processes and actors from left to right. Large branches are folded until they are opened.

import {h, s, show} from "./dom.js";
import {number} from "./format.js";
import {ORDER, STATES, glyphColour, known} from "./states.js";

const LINE = 28, WIDTH = 250, APART = 70, HEIGHT = 22;
const UNFOLDED = 60; // nodes that are drawn without being asked
const MOST = 3000;
const MOST_ARCS = 200, CROWDED = 60;

export class Graph {
  constructor(choose) {
    this.choose = choose;
    this.folded = null;
    this.messages = true;
    this.note = h("p", {class: "reading", role: "status"});
    this.holder = h("div", {class: "graph", "data-scroll": "graph"});
    this.element = h("section", {class: "panel"}, h("header", {}, h("div", {class: "row"},
      h("button", {type: "button", onclick: () => this.fold(false)}, "Open all"), h("button", {type: "button", onclick: () => this.fold(true)}, "Fold all"),
      h("label", {class: "check"}, h("input", {type: "checkbox", checked: true, onchange: event => { this.messages = event.target.checked; this.draw(); }}), "Messages")), this.note), this.holder);
  }

  problem(text) { this.note.textContent = text; }

  update(dag) {
    this.dag = dag;
    const children = new Map(), above = new Map();
    for (const edge of dag.edges) if (edge.type === "hierarchy") {
      if (!children.has(edge.source_id)) children.set(edge.source_id, []);
      children.get(edge.source_id).push(edge.target_id);
      above.set(edge.target_id, edge.source_id);
    }
    this.children = children;
    this.above = above;
    this.nodes = new Map(dag.nodes.map(node => [node.id, node]));
    if (this.folded === null && dag.nodes.length) {
      const large = dag.nodes.length > UNFOLDED;
      this.folded = new Set(large ? dag.nodes.filter(node => node.tier === (dag.nodes.filter(each => each.tier !== "actor").length > UNFOLDED ? "host" : "proc")).map(node => node.id) : []);
      for (const node of dag.nodes) if (node.status === "failed") this.reveal(node.id);
    }
    const bad = dag.resolution_error_count;
    this.note.textContent = dag.snapshot_pending ? "The tree has not been looked at yet." : bad ? `${number(bad)} could not be looked at` : "";
    this.draw();
  }

  reveal(id) { for (let at = this.above.get(id); at; at = this.above.get(at)) this.folded.delete(at); }

  fold(all) {
    this.folded = new Set(all ? this.dag.nodes.filter(node => node.tier === "host").map(node => node.id) : []);
    this.draw();
  }

  draw() {
    if (!this.dag) return;
    const roots = this.dag.nodes.filter(node => !this.above.has(node.id));
    if (!roots.length) { show(this.holder, h("p", {class: "empty"}, "Nothing to draw yet.")); return; }
    const places = new Map();
    let line = 0, drawn = 0;
    const visit = (id, depth) => {
      if (drawn >= MOST) return null;
      drawn += 1;
      const below = this.folded?.has(id) ? [] : this.children.get(id) ?? [];
      const inner = below.map(child => visit(child, depth + 1)).filter(each => each !== null);
      const y = inner.length ? (inner[0] + inner.at(-1)) / 2 : (line += 1) * LINE;
      places.set(id, [depth * (WIDTH + APART) + 6, y]);
      return y;
    };
    for (const root of roots) visit(root.id, 0);
    const depth = Math.max(...[...places.values()].map(([x]) => x));
    const width = depth + WIDTH + 70, height = (line + 1) * LINE;
    const svg = s("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "tree", "aria-label": "hosts, processes and actors"});
    for (const [id, [x, y]] of places) for (const child of this.folded?.has(id) ? [] : this.children.get(id) ?? []) {
      const to = places.get(child);
      if (to) svg.append(s("path", {class: "hierarchy", d: `M${x + WIDTH} ${y}C${x + WIDTH + APART / 2} ${y} ${to[0] - APART / 2} ${to[1]} ${to[0]} ${to[1]}`}));
    }
    const arcs = this.messages ? this.arcs(places) : [];
    if (arcs.length > CROWDED) svg.classList.add("crowded");
    svg.append(...arcs);
    for (const [id, [x, y]] of places) svg.append(this.node(this.nodes.get(id), x, y));
    show(this.holder, svg, drawn >= MOST ? h("p", {class: "missing"}, `The first ${number(MOST)} are drawn; fold some to see others.`) : null);
  }

  arcs(places) {
    const seen = new Set(), found = [];
    for (const edge of this.dag.edges) if (edge.type === "message") {
      const [source, target] = [this.visible(edge.source_id, places), this.visible(edge.target_id, places)];
      const key = `${source}>${target}`;
      if (!source || !target || source === target || seen.has(key) || found.length >= MOST_ARCS) continue;
      seen.add(key);
      const [x1, y1] = places.get(source), [x2, y2] = places.get(target);
      const out = Math.max(x1, x2) + WIDTH + 24 + Math.min(36, Math.abs(y1 - y2) / 8);
      found.push(s("path", {class: "message", d: `M${x1 + WIDTH} ${y1}C${out} ${y1} ${out} ${y2} ${x2 + WIDTH} ${y2}`}));
    }
    return found;
  }

  /** The node, or what it is folded into. */
  visible(id, places) {
    while (id && !places.has(id)) id = this.above.get(id);
    return id;
  }

  /** The state of a node into which others are folded: the worst of them. */
  worst(id) {
    let found = known(this.nodes.get(id).status);
    for (const child of this.children.get(id) ?? []) {
      const state = this.worst(child);
      if (ORDER.indexOf(state) < ORDER.indexOf(found)) found = state;
    }
    return found;
  }

  node(node, x, y) {
    const below = this.children.get(node.id)?.length ?? 0;
    const folded = this.folded?.has(node.id);
    const act = event => {
      if (below) { if (this.folded.has(node.id)) this.folded.delete(node.id); else this.folded.add(node.id); this.draw(); }
      if (!below || event.shiftKey) this.choose(node);
    };
    const state = folded && below ? this.worst(node.id) : known(node.status);
    const room = below ? 24 : 30;
    const label = node.label.length > room ? `${node.label.slice(0, room - 1)}…` : node.label;
    return s("g", {class: "node", tabindex: "0", role: "treeitem", "data-key": node.id, "aria-expanded": below ? String(!folded) : null, "aria-label": `${node.subtitle} ${node.label}, ${node.status}${below ? `, ${below} below` : ""}`,
      onclick: act, onkeydown: event => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(event); return; }
        const all = [...this.holder.querySelectorAll(".node")].sort((a, b) => a.__y - b.__y), at = all.indexOf(event.currentTarget);
        const to = {ArrowDown: at + 1, ArrowUp: at - 1}[event.key];
        if (to !== undefined && all[to]) { event.preventDefault(); all[to].focus(); }
      }},
    s("rect", {x, y: y - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 6}),
    s("circle", {cx: x + 12, cy: y, r: 5, style: {fill: `var(--${state})`}}),
    state === "failed" ? s("text", {class: "sub", x: x + 12, y: y + .5, "text-anchor": "middle", style: {fill: glyphColour("failed")}}, STATES.failed) : null,
    s("text", {x: x + 24, y}, label),
    below ? s("text", {class: "sub", x: x + WIDTH - 10, y, "text-anchor": "end"}, `${number(below)} ${folded ? "▸" : "▾"}`) : null,
    s("title", {}, `${node.subtitle} ${node.entity_id}: ${node.status}${node.detail ? `, ${node.detail}` : ""}`));
  }
}
