// Where every thread stands, folded over ranks: wide is where many are, marked is where few are that the others are not.

import {h, plain, show} from "../dom.js";
import {get} from "../api.js";
import {clock, number, plural, shortFile} from "../format.js";

const LINE = 23, EVERY = 2500, NARROWEST = 0.25; // percent

export function open(root) {
  let taken = null, idle = false, path = [], timer = null, closed = false, follow = false;
  const again = h("button", {type: "button", class: "primary", onclick: () => ask()}, "Take again");
  const live = h("input", {type: "checkbox", onchange: event => { follow = event.target.checked; if (follow) ask(); else clearTimeout(timer); }});
  const says = h("span", {class: "soft small", role: "status"});
  const chart = h("div", {class: "icicle"}), where = h("p", {class: "reading mono", role: "status"}), findings = h("div"), silent = h("div");
  root.append(h("div", {class: "head"}, h("h1", {}, "Stacks"), says, h("label", {class: "check"}, h("input", {type: "checkbox", onchange: event => { idle = event.target.checked; path = []; draw(); }}), "Idle threads"), h("label", {class: "check"}, live, "Keep taking"), again),
    findings, h("section", {class: "panel"}, chart, where), silent);

  async function ask() {
    clearTimeout(timer);
    again.disabled = true;
    try {
      taken = await get("/api/stacks");
      says.textContent = `${plural(taken.threads, "thread")}, taken at ${clock(taken.now_us)}`;
      if (!closed) draw();
    } catch (problem) {
      says.textContent = "";
      if (!closed && !taken) show(chart, h("p", {class: "empty missing"}, problem.message));
      else says.textContent = plain(problem.message);
    }
    again.disabled = false;
    if (follow && !closed) timer = setTimeout(() => document.hidden ? (timer = setTimeout(ask, EVERY)) : ask(), EVERY);
  }

  function draw() {
    if (!taken) return;
    const whole = idle ? taken.all : taken.busy;
    let node = whole;
    for (const step of path) node = node.children.find(child => key(child) === step) ?? node;
    const buttons = [];
    let deepest = 0;
    const place = (each, left, width, depth) => {
      if (width < NARROWEST) return;
      deepest = Math.max(deepest, depth);
      buttons.push(bar(each, left, width, depth, whole));
      let at = left;
      for (const [child, own] of widths(each, width)) { place(child, at, own, depth + 1); at += own; }
    };
    if (node.count) place(node, 0, 100, 0);
    chart.style.height = `${(deepest + 1) * LINE}px`;
    show(chart, ...buttons, whole.count ? null : h("p", {class: "empty"}, taken.threads ? "Every thread is idle." : "No thread runs code of the program."));
    const few = stragglers(whole);
    show(findings, few.length ? h("section", {class: "panel", style: {"margin-bottom": "16px"}}, h("h2", {class: "warn"}, "Not where the others are"), h("ul", {class: "concerns gap"}, ...few.slice(0, 6).map(each => h("li", {}, h("span", {class: "glyph warn", "aria-hidden": "true"}, "!"), h("span", {class: "text"}, h("b", {}, each.ranks.join(", ")), " at ", h("span", {class: "mono"}, `${each.leaf.name} ${shortFile(each.leaf.file)}:${each.leaf.line}`)), h("span", {class: "soft small"}, `the others: ${each.others}`))))) : null);
    const names = Object.entries(taken.silent);
    show(silent, names.length ? h("section", {class: "panel gap"}, h("h2", {}, `${plural(names.length, "process")}`.replace("processs", "processes"), " did not say"), h("ul", {class: "small"}, ...names.slice(0, 50).map(([name, why]) => h("li", {}, h("span", {class: "mono"}, name), ": ", why)))) : null);
    if (taken.all.cut) says.textContent += ", the deepest are left out";
  }

  function bar(each, left, width, depth, whole) {
    const label = depth === 0 && !each.file ? (path.length ? each.name : "all") : each.file ? `${each.name}` : each.name;
    const chosen = trail(whole, each);
    return h("button", {type: "button", class: each.straggler ? "straggler" : each.file ? "" : "group", "data-key": chosen.join("/"), style: {left: `${left}%`, width: `${width}%`, top: `${depth * LINE}px`, ...(each.file && !each.straggler ? {"--bar": tint(each.file)} : {})},
      "aria-label": `${each.name}, ${plural(each.count, "thread")}`, title: words(each), onclick: () => { path = path.join("/") === chosen.join("/") ? chosen.slice(0, -1) : chosen; draw(); }, onfocus: () => { where.textContent = plain(words(each)); }, onpointerenter: () => { where.textContent = plain(words(each)); }}, label, each.file && width > 14 ? h("span", {class: "faint"}, `  ${each.file.split("/").pop()}:${each.line}`) : null, each.count > 1 && width > 8 ? `  ×${number(each.count)}` : "");
  }
  chart.addEventListener("keydown", event => {
    const steps = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1};
    if (event.key === "Escape" && path.length) { path = path.slice(0, -1); draw(); return; }
    if (!(event.key in steps)) return;
    const all = [...chart.querySelectorAll("button")], to = all[all.indexOf(document.activeElement) + steps[event.key]];
    if (to) { event.preventDefault(); to.focus(); }
  });
  ask();
  return () => { closed = true; clearTimeout(timer); };
}

/** Children as wide as they have threads; those that few take are wide enough to be read. */
function widths(node, width) {
  const least = Math.min(width / 6, 13);
  const weights = node.children.map(child => [child, Math.max(width * child.count / node.count, child.straggler ? least : 0)]);
  const sum = weights.reduce((total, [, own]) => total + own, 0);
  const shrink = sum > width ? width / sum : 1;
  return weights.map(([child, own]) => [child, own * shrink]);
}

const key = node => `${node.name}|${node.file}|${node.line}`;

function words(node) {
  return `${node.name}${node.file ? `  ${node.file}:${node.line}` : ""}  ·  ${plural(node.count, "thread")}: ${node.ranks.join(", ")}`;
}

/** The way from the root to a node. */
function trail(root, wanted) {
  const find = (node, way) => {
    if (node === wanted) return way;
    for (const child of node.children) { const found = find(child, [...way, key(child)]); if (found) return found; }
    return null;
  };
  return find(root, []) ?? [];
}

/** The topmost branches that few take, each with its innermost frame and where most others are. */
function stragglers(root) {
  const found = [];
  const visit = (node, above) => {
    if (node.straggler) {
      const most = above.children.find(child => !child.straggler);
      found.push({ranks: node.ranks, leaf: innermost(node), others: most ? `${innermost(most).name} ${shortFile(innermost(most).file)}:${innermost(most).line}` : "elsewhere"});
      return;
    }
    for (const child of node.children) visit(child, node);
  };
  visit(root, root);
  return found;
}

function innermost(node) {
  while (node.children.length) node = node.children.reduce((a, b) => b.count > a.count ? b : a);
  return node;
}

/** A quiet tint for each file. */
function tint(file) {
  let sum = 0;
  for (const letter of file) sum = (sum * 31 + letter.charCodeAt(0)) % 360;
  return `color-mix(in oklab, var(--sunk) 82%, oklch(.65 .09 ${200 + sum % 90}))`;
}
