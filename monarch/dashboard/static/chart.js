// Lines and bars over time, as SVG.

import {h, plain, s} from "./dom.js";
import {clock} from "./format.js";

const LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 20;

/** A step of 1, 2 or 5 times a power of ten (of 1024 for bytes) that cuts `most` into at most `parts`. */
export function step(most, parts, base = 10) {
  if (!(most > 0)) return 1;
  if (base === 1024) {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log(most) / Math.log(1024)));
    return step(most / unit, parts) * unit;
  }
  const rough = most / parts, power = 10 ** Math.floor(Math.log10(rough));
  for (const times of [1, 2, 5, 10]) if (times * power >= rough) return times * power;
  return 10 * power;
}

function frame(width, height, most, from, to, format, base) {
  const inner = {width: width - LEFT - RIGHT, height: height - TOP - BOTTOM};
  const apart = step(most, 4, base);
  const top = Math.max(apart, Math.ceil(most / apart) * apart);
  const y = value => TOP + inner.height * (1 - value / top);
  const x = time => LEFT + inner.width * (to > from ? (time - from) / (to - from) : 0);
  const lines = [];
  for (let value = 0; value <= top * 1.001; value += apart) {
    lines.push(s("line", {class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value)}),
      s("text", {x: LEFT - 8, y: y(value) + 4, "text-anchor": "end"}, format(value)));
  }
  const marks = Math.max(2, Math.min(6, Math.floor(inner.width / 110)));
  for (let index = 0; index <= marks; index += 1) {
    const time = from + (to - from) * index / marks;
    lines.push(s("text", {x: x(time), y: height - 4, "text-anchor": index === 0 ? "start" : index === marks ? "end" : "middle"}, clock(time, to - from < 3.6e9)));
  }
  return {x, y, lines, inner};
}

/** Bars of equal parts of the time. `onset`: where something began, marked. */
export function histogram({values, from, to, width = 640, height = 190, format, label, onset = null, onsetText = ""}) {
  const {x, y, lines, inner} = frame(width, height, Math.max(1, ...values), from, to, format);
  const each = inner.width / values.length;
  const svg = s("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label});
  svg.append(...lines);
  values.forEach((value, index) => {
    if (value) svg.append(s("rect", {class: "bucket", x: LEFT + index * each + .5, width: Math.max(1, each - 1.5), y: y(value), height: Math.max(1, TOP + inner.height - y(value)), rx: 1.5}));
  });
  if (onset !== null && onset >= from) {
    onset = Math.min(onset, to);
    const right = x(onset) > width * .6;
    svg.append(s("line", {class: "mark", x1: x(onset), x2: x(onset), y1: TOP, y2: TOP + inner.height}),
      s("text", {class: "marktext", x: x(onset) + (right ? -6 : 6), y: TOP + 10, "text-anchor": right ? "end" : "start"}, onsetText));
  }
  return svg;
}

/** A line for each of `series` ({name, times, values}); the one that is pointed at is read out below. */
export function lines({series, from, to, width = 520, height = 170, format, label, most = null, base = 10, chosen = null}) {
  const all = series.flatMap(each => each.values.filter(value => value !== null));
  const {x, y, lines: axes, inner} = frame(width, height, most ?? Math.max(1e-9, ...all.length ? [all.reduce((a, b) => Math.max(a, b))] : [1]), from, to, format, base);
  const svg = s("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label});
  svg.append(...axes);
  const many = series.length > 1;
  const order = chosen === null ? series : [...series.filter(each => each.name !== chosen), ...series.filter(each => each.name === chosen)];
  for (const each of order) {
    const path = points(each, x, y);
    if (!path) continue;
    if (!many) svg.append(s("path", {class: "area", d: area(each, x, y, TOP + inner.height)}));
    svg.append(s("path", {class: many && chosen !== null && each.name !== chosen ? "other" : "line", d: path, opacity: many && chosen === null ? Math.max(.25, 1 / Math.sqrt(series.length)) : 1}));
  }
  const cursor = s("line", {class: "cursor", y1: TOP, y2: TOP + inner.height, visibility: "hidden"});
  svg.append(cursor);
  const reading = h("p", {class: "reading"});
  const rest = plain(summary(series, format));
  reading.textContent = rest;
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const time = from + (to - from) * ((event.clientX - box.left) / box.width * width - LEFT) / inner.width;
    const vertical = (event.clientY - box.top) / box.height * height;
    const near = series.map(each => ({each, index: nearest(each.times, time)})).filter(({each, index}) => index >= 0 && each.values[index] !== null)
      .sort((a, b) => Math.abs(y(a.each.values[a.index]) - vertical) - Math.abs(y(b.each.values[b.index]) - vertical))[0];
    if (!near) return;
    const at = near.each.times[near.index];
    cursor.setAttribute("x1", x(at)); cursor.setAttribute("x2", x(at)); cursor.setAttribute("visibility", "visible");
    reading.textContent = plain(`${near.each.name} ${clock(at)}: ${format(near.each.values[near.index])}`);
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); reading.textContent = rest; });
  return h("figure", {}, svg, reading);
}

function summary(series, format) {
  const last = series.map(each => ({name: each.name, value: each.values.findLast(value => value !== null)})).filter(each => each.value !== undefined);
  if (last.length === 0) return "nothing was measured";
  if (last.length === 1) return `now ${format(last[0].value)}`;
  last.sort((a, b) => a.value - b.value);
  return `now from ${format(last[0].value)} (${last[0].name}) to ${format(last.at(-1).value)} (${last.at(-1).name})`;
}

function nearest(times, time) {
  let low = 0, high = times.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (times[middle] < time) low = middle + 1; else high = middle; }
  return low > 0 && time - times[low - 1] < times[low] - time ? low - 1 : low;
}

function points({times, values}, x, y) {
  let path = "", pen = "M";
  values.forEach((value, index) => {
    if (value === null) { pen = "M"; return; }
    path += `${pen}${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

function area({times, values}, x, y, floor) {
  const known = values.map((value, index) => [times[index], value]).filter(([, value]) => value !== null);
  if (known.length < 2) return "";
  return `M${x(known[0][0]).toFixed(1)} ${floor}` + known.map(([time, value]) => `L${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("") + `L${x(known.at(-1)[0]).toFixed(1)} ${floor}Z`;
}

/** A small line without axes. */
export function spark(values) {
  const svg = s("svg", {class: "spark chart", viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true"});
  const most = Math.max(1e-9, ...values);
  if (values.length > 1) svg.append(s("path", {class: "line", "vector-effect": "non-scaling-stroke", d: values.map((value, index) => `${index ? "L" : "M"}${(100 * index / (values.length - 1)).toFixed(1)} ${(20 - 18 * value / most).toFixed(1)}`).join("")}));
  return svg;
}
