// What the program logs of itself: a chart for each name, folded over ranks, and runs that were kept beside it.

import {h, show} from "../dom.js";
import {curveChart, lastKnown, value} from "../curve.js";
import {clock, number, plural} from "../format.js";
import {watch} from "../poller.js";

const MOST_RUNS = 6;
const EXAMPLE = "import monarch.metrics\n\nmonarch.metrics.log(step=step, loss=loss)";

let current = null;

export function open(root, given, go) {
  let match = "", mesh = "", runs = [], log = false, answer = null, stop = null, typing = null;
  const filter = h("input", {type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", oninput: () => { clearTimeout(typing); typing = setTimeout(() => move({match: filter.value.trim()}), 250); }});
  const meshes = h("select", {"aria-label": "Mesh", onchange: () => move({mesh: meshes.value})});
  const scale = h("div", {class: "choice", role: "group", "aria-label": "Scale"}, ...[["Linear", false], ["Log", true]].map(([text, wanted]) => h("button", {type: "button", "data-log": String(wanted), onclick: () => move({log: wanted})}, text)));
  const beside = h("section", {class: "panel gap", hidden: "", "aria-label": "Runs"}), says = h("p", {class: "missing", hidden: ""}), charts = h("div", {class: "curves gap"}), note = h("p", {class: "soft small gap"});
  root.append(h("div", {class: "head"}, h("h1", {}, "Metrics"), h("div", {class: "row"}, h("div", {class: "filter"}, filter), meshes, scale)), says, charts, note, beside);

  function address(changed = {}) {
    const now = {match, mesh, runs, log, ...changed}, query = new URLSearchParams();
    if (now.match) query.set("match", now.match);
    if (now.mesh) query.set("mesh", now.mesh);
    if (now.runs.length) query.set("runs", now.runs.join(","));
    if (now.log) query.set("scale", "log");
    return `/metrics${query.size ? `?${query}` : ""}`;
  }
  function move(changed) { go(address(changed), {replace: true, focus: false}); }

  function read(given) {
    match = given.get("match") ?? ""; mesh = given.get("mesh") ?? ""; log = given.get("scale") === "log";
    runs = (given.get("runs") ?? "").split(",").filter(Boolean).slice(0, MOST_RUNS);
    if (document.activeElement !== filter) filter.value = match;
    for (const each of scale.children) each.setAttribute("aria-pressed", String(each.dataset.log === String(log)));
    const query = new URLSearchParams({match, runs: runs.join(",")});
    if (mesh) query.set("mesh", mesh);
    stop?.();
    stop = watch(`/api/metrics?${query}`, found => { const first = answer === null; answer = found; says.hidden = true; draw(first); }, problem => { says.hidden = false; show(says, problem.message); });
    draw(true);
  }

  function draw(forced = false) {
    if (!answer) return;
    const names = [...new Set(answer.names.map(([name]) => name))];
    show(meshes, h("option", {value: ""}, "All meshes"), ...names.map(name => h("option", {value: name, selected: name === mesh}, name)));
    meshes.value = mesh;
    meshes.hidden = names.length < 2 && !mesh;
    const places = new Map(answer.compared.map((run, place) => [run.name, place]));
    const keys = new Map();
    for (const curve of answer.curves) keys.set(`${curve.mesh}\n${curve.name}`, {mesh: curve.mesh, name: curve.name, own: curve, runs: []});
    for (const run of answer.compared) for (const curve of run.curves) {
      const key = `${curve.mesh}\n${curve.name}`;
      if (!keys.has(key)) keys.set(key, {mesh: curve.mesh, name: curve.name, own: null, runs: []});
      keys.get(key).runs.push({name: run.name, place: places.get(run.name), curve});
    }
    const fit = charts.clientWidth > 1000 ? 3 : charts.clientWidth > 680 ? 2 : 1, columns = Math.max(1, Math.min(fit, keys.size));
    const width = (charts.clientWidth - 16 * (columns - 1)) / columns, height = columns === 1 && width > 500 ? 320 : 190;
    charts.style.setProperty("--columns", columns);
    if (charts.querySelector("svg:hover") && !forced) return; // somebody reads it
    if (keys.size) charts.replaceChildren(...[...keys.values()].map(each => card(each, Math.max(240, width - 38), height, names.length > 1)));
    else show(charts, h("section", {class: "panel wide"}, h("p", {class: "empty"}, answer.names.length ? "No curve matches." : "The program has logged nothing of itself yet. It does so anywhere, from any rank, by"), answer.names.length ? null : h("pre", {class: "mono"}, EXAMPLE)));
    show(note, keys.size < answer.names.length && !match && !mesh ? `The first ${number(answer.curves.length)} of ${plural(answer.names.length, "curve")}: the filter shows others. ` : "", answer.left_out ? `${number(answer.left_out)} values are of further curves, which are too many.` : "");
    drawRuns(places);
  }

  function drawRuns(places) {
    beside.hidden = !answer.runs.length;
    show(beside, h("header", {}, h("h2", {}, "Runs that were kept"), h("span", {class: "soft small"}, runs.length ? `${plural(runs.length, "run")} compared` : "choose some to compare")), h("ul", {class: "runs"}, ...answer.runs.slice(0, 50).map(run => h("li", {}, h("label", {class: "check"},
      h("input", {type: "checkbox", "data-key": `run-${run.name}`, checked: runs.includes(run.name), disabled: !runs.includes(run.name) && runs.length >= MOST_RUNS, onchange: event => move({runs: event.target.checked ? [...runs, run.name] : runs.filter(each => each !== run.name)})}),
      places.has(run.name) ? h("span", {class: `key run-${places.get(run.name)}`, "aria-hidden": "true"}) : null, h("span", {class: "mono"}, run.name)), h("span", {class: "soft small"}, `${new Date(run.updated_us / 1e3).toLocaleDateString("en-GB")} ${clock(run.updated_us, false)}`)))));
  }

  const resize = () => draw(true);
  window.addEventListener("resize", resize);
  current = {moved: next => { read(next); return true; }};
  read(given);
  return () => { stop?.(); clearTimeout(typing); window.removeEventListener("resize", resize); current = null; };

  function card({mesh: of, name, own, runs: others}, width, height, several) {
    const at = own ? lastKnown(own) : -1;
    return h("section", {class: "panel", "aria-label": name}, h("header", {}, h("h2", {class: "mono"}, name, several ? h("span", {class: "soft"}, `  ${of}`) : null), h("b", {class: "now"}, at >= 0 ? value(own.mean[at]) : "")),
      curveChart({own, runs: others, log, width, height, label: `${name} of ${of} over steps`}), own ? differing(own, of) : null,
      others.length ? h("ul", {class: "legend"}, ...others.map(run => h("li", {}, h("span", {class: `key run-${run.place}`, "aria-hidden": "true"}), run.name, h("b", {}, value(run.curve.mean[lastKnown(run.curve)] ?? null))))) : null);
  }
}

/** The rank that is far from all others at most of the points. */
function differing(curve, mesh) {
  const counts = new Map();
  for (const rank of curve.differs) if (rank >= 0) counts.set(rank, (counts.get(rank) ?? 0) + 1);
  const worst = [...counts].sort((a, b) => b[1] - a[1])[0];
  const odd = curve.odd.findIndex(Boolean);
  if (!worst && odd < 0) return null;
  return h("p", {class: "warn small"}, worst ? `Rank ${worst[0]} differs from all others of ${mesh} at ${number(worst[1])} of ${plural(curve.steps.length, "point")}.` : "", odd >= 0 ? ` NaN or infinite first at step ${number(curve.steps[odd])}, rank ${curve.odd_rank[odd]}.` : "");
}

export function moved(given) { return current ? current.moved(given) : false; }
