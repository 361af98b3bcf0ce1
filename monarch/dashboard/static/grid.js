// The ranks of a mesh as cells of a canvas: one draw for thousands, one focus for all of them.

import {h, plain} from "./dom.js";
import {duration, number} from "./format.js";
import {STATES, colour} from "./states.js";

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

/** One cell in that state, to be copied. `long`: its endpoint has been running for long. */
function cellOf(state, long, cell, ratio) {
  const canvas = h("canvas", {width: Math.round(cell * ratio), height: Math.round(cell * ratio)});
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = colour(state);
  context.beginPath();
  context.roundRect(0, 0, cell, cell, cell >= 20 ? 4 : 2);
  context.fill();
  if (cell >= 14 && state !== "idle" && state !== "absent") {
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `600 ${Math.round(cell * .5)}px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = colour(`on-${state}`) || colour("on-state");
    context.fillText(STATES[state], cell / 2, cell / 2 + .5);
  } else if (cell < 14 && state === "failed") {
    context.strokeStyle = "#ffffff"; context.lineWidth = 1.4; context.beginPath();
    context.moveTo(2.5, 2.5); context.lineTo(cell - 2.5, cell - 2.5);
    context.moveTo(cell - 2.5, 2.5); context.lineTo(2.5, cell - 2.5); context.stroke();
  }
  if (long) { context.fillStyle = colour("long"); context.fillRect(3, cell - 5, cell - 6, 3); }
  return canvas;
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
    this.coloured = () => { this.shown = null; this.draw(); };
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

  /** Draws the cells that look otherwise than they did, by copies of one of each look: a step of the focus is two of thousands. */
  draw() {
    if (!this.mesh || !this.box.isConnected) return;
    const began = performance.now();
    const {cells, sizes} = this.mesh;
    this.drawnWidth = this.room();
    const place = this.layout = layout(sizes, cells.length, Math.max(120, this.drawnWidth));
    const ratio = window.devicePixelRatio || 1;
    const form = `${sizes} ${cells.length} ${this.drawnWidth} ${ratio}`;
    const context = this.canvas.getContext("2d");
    if (!this.shown || form !== this.form) {
      this.form = form;
      this.shown = new Array(cells.length).fill("");
      this.copies = new Map();
      this.element.style.width = `${Math.min(this.drawnWidth, place.width)}px`;
      this.canvas.width = Math.round(place.width * ratio);
      this.canvas.height = Math.round(place.height * ratio);
      this.canvas.style.width = `${place.width}px`;
      this.canvas.style.height = `${place.height}px`;
      context.scale(ratio, ratio);
    }
    const focus = this.focused() ? this.focus : -1;
    let count = 0;
    for (let rank = 0; rank < cells.length; rank += 1) {
      const long = place.cell >= 14 && this.running.get(rank)?.age > LONG;
      const look = long ? `${cells[rank]}+` : cells[rank];
      if ((rank === focus ? `${look}o` : look) === this.shown[rank]) continue;
      const [x, y] = place.at(rank);
      if (this.shown[rank]) context.clearRect(x - 2, y - 2, place.cell + 4, place.cell + 4); // with the ring around it
      this.shown[rank] = rank === focus ? `${look}o` : look;
      count += 1;
      let copy = this.copies.get(look);
      if (!copy) this.copies.set(look, copy = cellOf(this.state(rank), long, place.cell, ratio));
      context.drawImage(copy, x, y, place.cell, place.cell);
    }
    if (count && focus >= 0) {
      const [x, y] = place.at(focus);
      context.strokeStyle = colour("focus");
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, place.cell + 2, place.cell + 2);
    }
    this.canvas.dataset.drawMs = (performance.now() - began).toFixed(1);
    this.canvas.dataset.cells = count;
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
