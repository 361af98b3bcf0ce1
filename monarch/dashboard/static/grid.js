// The ranks of a mesh as cells of a canvas: one draw for thousands, one focus for all of them.

import {h, plain} from "./dom.js";
import {duration, number} from "./format.js";
import {STATES, colour} from "./states.js";

const STRONG = new Set(["failed", "processing", "saving", "client", "stopping"]); // states whose glyph is light
const LONG = 30e6; // us that an endpoint runs before it is marked
const GAP = 2, PANEL = 18, EDGE = 2;

/** Where the cells of a mesh lie: columns of its last dimension, rows of the others, in as many panels side by side as fit. Pure. */
export function layout(sizes, ranks, width) {
  const cell = ranks <= 128 ? 28 : ranks <= 512 ? 20 : ranks <= 2048 ? 14 : 10;
  let columns = sizes.length > 1 ? sizes.at(-1) : Math.min(ranks, Math.max(1, Math.floor((width - 2 * EDGE + GAP) / (cell + GAP))));
  if (sizes.length > 1 && columns * (cell + GAP) > width - 2 * EDGE) columns = Math.max(1, Math.floor((width - 2 * EDGE + GAP) / (cell + GAP)));
  const rows = Math.ceil(ranks / columns);
  const panelWidth = columns * (cell + GAP) - GAP;
  const fit = Math.max(1, Math.floor((width - 2 * EDGE + PANEL) / (panelWidth + PANEL)));
  const wanted = sizes.length > 1 ? Math.max(1, Math.min(fit, Math.ceil(rows / 8))) : 1;
  const perPanel = Math.ceil(rows / wanted);
  const panels = Math.ceil(rows / perPanel);
  return {
    cell, columns, rows, perPanel, panels,
    width: 2 * EDGE + panels * (panelWidth + PANEL) - PANEL,
    height: 2 * EDGE + Math.min(rows, perPanel) * (cell + GAP) - GAP,
    at(rank) {
      const row = Math.floor(rank / columns), panel = Math.floor(row / perPanel);
      return [EDGE + panel * (panelWidth + PANEL) + (rank % columns) * (cell + GAP), EDGE + (row % perPanel) * (cell + GAP)];
    },
    rank(x, y) {
      const panel = Math.floor((x - EDGE) / (panelWidth + PANEL));
      const column = Math.floor((x - EDGE - panel * (panelWidth + PANEL)) / (cell + GAP));
      const line = Math.floor((y - EDGE) / (cell + GAP));
      if (panel < 0 || panel >= panels || column < 0 || column >= columns || line < 0 || line >= perPanel) return -1;
      const rank = (panel * perPanel + line) * columns + column;
      return rank < ranks ? rank : -1;
    },
  };
}

/** The coordinates of a rank: "hosts 2 · gpus 1". */
export function coordinates(labels, sizes, rank) {
  const found = [];
  for (let index = sizes.length - 1; index >= 0; index -= 1) { found.unshift(`${labels[index]} ${rank % sizes[index]}`); rank = Math.floor(rank / sizes[index]); }
  return found.join(" · ");
}

export class Grid {
  /** `choose(rank)`: a cell was clicked, or Enter pressed on it. */
  constructor(name, choose) {
    this.choose = choose;
    this.focus = 0;
    this.over = -1;
    this.canvas = h("canvas", {"aria-hidden": "true"});
    this.says = h("p", {class: "reading", "aria-live": "polite"});
    this.box = h("div", {class: "cells", tabindex: "0", role: "application", "aria-roledescription": "grid of ranks",
      "aria-label": `${name}: arrows move from rank to rank, Enter opens one, F goes to the next that failed`,
      onkeydown: event => this.key(event), onfocus: () => { this.draw(); this.say(this.focus); }, onblur: () => this.draw()}, this.canvas);
    this.element = h("div", {}, this.box, this.says);
    this.canvas.addEventListener("pointermove", event => { this.over = this.hit(event); this.canvas.style.cursor = this.over >= 0 ? "pointer" : "default"; this.say(this.over >= 0 ? this.over : this.focused() ? this.focus : -1); });
    this.canvas.addEventListener("pointerleave", () => { this.over = -1; this.say(this.focused() ? this.focus : -1); });
    this.canvas.addEventListener("click", event => { const rank = this.hit(event); if (rank >= 0) { this.focus = rank; this.draw(); this.choose(rank); } });
    this.resized = new ResizeObserver(() => { if (this.mesh && this.room() !== this.drawnWidth) this.draw(); });
    this.resized.observe(document.body);
    this.coloured = () => this.draw();
    window.addEventListener("colours", this.coloured);
  }

  close() { this.resized.disconnect(); window.removeEventListener("colours", this.coloured); }

  /** How wide it may be: what holds the panels, less what a panel has around it. */
  room() { return (this.element.closest(".meshes")?.clientWidth ?? 600) - 38; }

  focused() { return document.activeElement === this.box; }

  update(mesh, letters) {
    const before = this.mesh;
    this.mesh = mesh;
    this.letters = letters;
    this.running = new Map(mesh.running.map(([rank, age, endpoint]) => [rank, {age, endpoint}]));
    this.focus = Math.min(this.focus, mesh.cells.length - 1);
    if (!before || before.cells !== mesh.cells || before.running.length || mesh.running.length) this.draw();
    if (!this.focused() && this.over < 0) this.say(-1);
  }

  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.layout ? this.layout.rank(event.clientX - box.left, event.clientY - box.top) : -1;
  }

  state(rank) { return this.letters[this.mesh.cells[rank]] ?? "absent"; }

  draw() {
    if (!this.mesh || !this.box.isConnected) return;
    const began = performance.now();
    const {cells, sizes} = this.mesh;
    this.drawnWidth = this.room();
    const place = this.layout = layout(sizes, cells.length, Math.max(120, this.drawnWidth));
    this.element.style.width = `${Math.min(this.drawnWidth, place.width)}px`;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(place.width * ratio);
    this.canvas.height = Math.round(place.height * ratio);
    this.canvas.style.width = `${place.width}px`;
    this.canvas.style.height = `${place.height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const fills = Object.fromEntries([...Object.keys(STATES)].map(state => [state, colour(state)]));
    const text = colour("on-state"), strong = colour("on-strong"), ring = colour("focus"), old = colour("long");
    const glyphs = place.cell >= 14;
    const corner = place.cell >= 20 ? 4 : 2;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `600 ${Math.round(place.cell * .5)}px ${getComputedStyle(document.body).fontFamily}`;
    for (let rank = 0; rank < cells.length; rank += 1) {
      const [x, y] = place.at(rank);
      const state = this.state(rank);
      context.fillStyle = fills[state];
      context.beginPath();
      context.roundRect(x, y, place.cell, place.cell, corner);
      context.fill();
      if (glyphs && state !== "idle" && state !== "absent") {
        context.fillStyle = STRONG.has(state) ? strong : text;
        context.fillText(STATES[state], x + place.cell / 2, y + place.cell / 2 + .5);
      } else if (!glyphs && state === "failed") {
        context.strokeStyle = "#ffffff"; context.lineWidth = 1.4; context.beginPath();
        context.moveTo(x + 2.5, y + 2.5); context.lineTo(x + place.cell - 2.5, y + place.cell - 2.5);
        context.moveTo(x + place.cell - 2.5, y + 2.5); context.lineTo(x + 2.5, y + place.cell - 2.5); context.stroke();
      }
      const job = this.running.get(rank);
      if (job && job.age > LONG && place.cell >= 14) { context.fillStyle = old; context.fillRect(x + 3, y + place.cell - 5, place.cell - 6, 3); }
    }
    if (this.focused()) {
      const [x, y] = place.at(this.focus);
      context.strokeStyle = ring;
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, place.cell + 2, place.cell + 2);
    }
    this.canvas.dataset.drawMs = (performance.now() - began).toFixed(1);
  }

  say(rank) {
    if (!this.mesh) return;
    const text = rank < 0 ? "" : plain(this.words(rank));
    if (this.says.textContent !== text) this.says.textContent = text;
  }

  words(rank) {
    const {labels, sizes} = this.mesh;
    const job = this.running.get(rank);
    const doing = job ? `${job.endpoint ?? "a message"}() for ${duration(job.age)}` : this.state(rank) === "absent" ? "nothing known yet" : this.state(rank);
    return `rank ${number(rank)}  ·  ${coordinates(labels, sizes, rank)}  ·  ${this.state(rank) === "failed" ? "failed" : doing}`;
  }

  key(event) {
    const place = this.layout, last = this.mesh.cells.length - 1;
    const moves = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: place.columns, ArrowUp: -place.columns, PageDown: 8 * place.columns, PageUp: -8 * place.columns};
    let to = null;
    if (event.key in moves) to = this.focus + moves[event.key];
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = last;
    else if (event.key === "f" || event.key === "F") to = this.next("failed");
    else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.choose(this.focus); return; }
    if (to === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.focus = to < 0 || to > last ? (Math.abs(to - this.focus) > 1 ? this.focus : Math.max(0, Math.min(last, to))) : to;
    this.draw();
    this.say(this.focus);
    const [, y] = place.at(this.focus);
    if (y < this.box.scrollTop || y + place.cell > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = y - this.box.clientHeight / 2;
  }

  next(state) {
    const ranks = this.mesh.cells.length;
    for (let step = 1; step <= ranks; step += 1) { const rank = (this.focus + step) % ranks; if (this.state(rank) === state) return rank; }
    return null;
  }
}
