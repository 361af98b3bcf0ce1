// A curve over steps: the mean of all ranks, the band between the least and the largest value, and other runs beside it.

import {h, plain, s} from "./dom.js";
import {number} from "./format.js";
import {step} from "./chart.js";

const LEFT = 58, RIGHT = 10, TOP = 10, BOTTOM = 22;

/** A value in few characters: 0.0312, 1,750, 2.1e-7. */
export function value(given) {
  if (given === null || given === undefined) return "–";
  const size = Math.abs(given);
  if (size && (size < 1e-3 || size >= 1e6)) return given.toExponential(2).replace("e+", "e");
  return size >= 1e4 ? number(given) : String(Number(given.toPrecision(4)));
}

/** Where the numbers beside it stand, from `low` to `high`; `log`: powers of ten. Pure. */
export function ticks(low, high, log) {
  if (log) {
    const found = [];
    for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high) + 1e-9; power += 1) found.push(10 ** power);
    return found.length > 1 ? found.filter((_, index) => index % Math.ceil(found.length / 5) === 0) : [low, high];
  }
  const apart = step(high - low, 4), found = [];
  for (let at = Math.ceil(low / apart - 1e-9) * apart; at <= high + apart * 1e-9; at += apart) found.push(Math.abs(at) < apart * 1e-9 ? 0 : at);
  return found;
}

/** `own`: the curve of this program, null without one; `runs`: [{name, place, curve}] of others. Pure. */
export function range(own, runs, log) {
  const all = [own, ...runs.map(run => run.curve)].filter(Boolean).flatMap(each => [...each.least, ...each.most]).filter(each => each !== null && (!log || each > 0));
  const steps = [own, ...runs.map(run => run.curve)].filter(Boolean).flatMap(each => each.steps.length ? [each.steps[0], each.steps.at(-1)] : []);
  if (!all.length) return null;
  let low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  if (high - low <= 1e-9 * Math.abs(high)) { const half = Math.abs(high) / 2 || 1; if (log) { low /= 2; high *= 2; } else { low -= half; high += half; } }
  return {low, high, first: Math.min(...steps), last: Math.max(...steps)};
}

export function curveChart({own, runs, log, label, width = 420, height = 190}) {
  const found = range(own, runs, log);
  if (!found) return h("p", {class: "empty"}, own?.odd.some(Boolean) ? "No value was a finite number." : log ? "No value is above 0." : "No values yet.");
  const {low, high, first, last} = found;
  const inner = {width: width - LEFT - RIGHT, height: height - TOP - BOTTOM};
  const scaled = log ? given => (Math.log(given) - Math.log(low)) / (Math.log(high) - Math.log(low)) : given => (given - low) / (high - low);
  const y = given => TOP + inner.height * (1 - Math.max(0, Math.min(1, scaled(Math.max(given, log ? low : given)))));
  const x = at => LEFT + inner.width * (last > first ? (at - first) / (last - first) : .5);
  const svg = s("svg", {class: "chart curve", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label});
  for (const at of ticks(low, high, log)) svg.append(s("line", {class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at)}), s("text", {x: LEFT - 8, y: y(at) + 4, "text-anchor": "end"}, value(at)));
  svg.append(s("text", {x: LEFT, y: height - 4}, number(first)), last > first ? s("text", {x: width - RIGHT, y: height - 4, "text-anchor": "end"}, number(last)) : "", s("text", {x: LEFT + inner.width / 2, y: height - 4, "text-anchor": "middle"}, "step"));
  for (const run of runs) if (run.curve) svg.append(s("path", {class: `line run-${run.place}`, d: path(run.curve, "mean", x, y)}));
  if (own) {
    svg.append(s("path", {class: "area", d: band(own, x, y)}), s("path", {class: "line", d: path(own, "mean", x, y)}));
    const known = own.mean.filter(each => each !== null).length;
    if (known === 1) { const at = own.mean.findIndex(each => each !== null); svg.append(s("circle", {class: "dotted", cx: x(own.steps[at]), cy: y(own.mean[at]), r: 2.5})); }
    own.odd.forEach((count, index) => { if (count) svg.append(s("line", {class: "mark", x1: x(own.steps[index]), x2: x(own.steps[index]), y1: TOP, y2: TOP + inner.height})); });
  }
  const cursor = s("line", {class: "cursor", y1: TOP, y2: TOP + inner.height, visibility: "hidden"});
  svg.append(cursor);
  const reading = h("p", {class: "reading"}), rest = own ? words(own, lastKnown(own)) : "";
  reading.textContent = plain(rest);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const wanted = first + (last - first) * ((event.clientX - box.left) / box.width * width - LEFT) / inner.width;
    const base = own ?? runs.find(run => run.curve)?.curve;
    if (!base) return;
    const at = nearest(base.steps, wanted);
    cursor.setAttribute("x1", x(base.steps[at])); cursor.setAttribute("x2", x(base.steps[at])); cursor.setAttribute("visibility", "visible");
    const others = runs.filter(run => run.curve?.steps.length).map(run => `${run.name} ${value(run.curve.mean[nearest(run.curve.steps, wanted)])}`);
    reading.textContent = plain([own ? words(own, at) : `step ${number(base.steps[at])}`, ...others].join("  ·  "));
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); reading.textContent = plain(rest); });
  return h("figure", {}, svg, reading);
}

/** What a point of a curve says. */
export function words(curve, at) {
  if (at < 0) return "";
  const where = curve.width > 1 ? `steps ${number(curve.steps[at])} to ${number(curve.steps[at] + curve.width - 1)}` : `step ${number(curve.steps[at])}`;
  const odd = curve.odd[at] ? `, ${number(curve.odd[at])} NaN or infinite (rank ${curve.odd_rank[at]} first)` : "";
  if (curve.mean[at] === null) return `${where}: no finite number${odd}`;
  const apart = curve.least_rank[at] !== curve.most_rank[at] ? `, from ${value(curve.least[at])} (rank ${curve.least_rank[at]}) to ${value(curve.most[at])} (rank ${curve.most_rank[at]})` : "";
  return `${where}: ${apart ? "mean " : ""}${value(curve.mean[at])}${apart}${odd}`;
}

export function lastKnown(curve) { return curve.mean.findLastIndex(each => each !== null); }

function nearest(steps, wanted) {
  let low = 0, high = steps.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (steps[middle] < wanted) low = middle + 1; else high = middle; }
  return low > 0 && wanted - steps[low - 1] < steps[low] - wanted ? low - 1 : low;
}

function path(curve, column, x, y) {
  let made = "", pen = "M";
  curve[column].forEach((each, index) => {
    if (each === null) { pen = "M"; return; }
    made += `${pen}${x(curve.steps[index]).toFixed(1)} ${y(each).toFixed(1)}`;
    pen = "L";
  });
  return made;
}

function band(curve, x, y) {
  const known = curve.steps.map((at, index) => [at, curve.least[index], curve.most[index]]).filter(([, least]) => least !== null);
  if (known.length < 2) return "";
  return `M${known.map(([at, , most]) => `${x(at).toFixed(1)} ${y(most).toFixed(1)}`).join("L")}L${known.reverse().map(([at, least]) => `${x(at).toFixed(1)} ${y(least).toFixed(1)}`).join("L")}Z`;
}
