// The lines of all ranks: what was logged, with its level, or what was printed; following, or around a failure.

import {h, show} from "../dom.js";
import {clockMillis, number, plural} from "../format.js";
import {watch} from "../poller.js";

const LEVELS = ["", "INFO", "WARNING", "ERROR"];
const TONE = {FAILED: "bad", CRITICAL: "bad", ERROR: "bad", stderr: "warn", WARNING: "warn"};

let current = null;

export function open(root, given, go) {
  let wanted = {}, answer = null, stop = null, typing = null, jumped = false;
  const later = change => () => { clearTimeout(typing); typing = setTimeout(() => move(change()), 300); };
  const text = h("input", {type: "search", placeholder: "Text", "aria-label": "Text", oninput: later(() => ({text: text.value.trim()}))});
  const rank = h("input", {type: "search", placeholder: "Ranks: 3 or 0,2-4", "aria-label": "Ranks", oninput: later(() => ({rank: rank.value.trim()}))});
  const mesh = h("select", {"aria-label": "Mesh", onchange: () => move({mesh: mesh.value})});
  const level = h("select", {"aria-label": "Level", onchange: () => move({level: level.value})}, ...LEVELS.map(name => h("option", {value: name}, name ? `${name} and above` : "All levels")));
  const source = h("div", {class: "choice", role: "group", "aria-label": "Which lines"}, ...[["Logged", ""], ["Printed", "printed"]].map(([name, value]) => h("button", {type: "button", "data-source": value, onclick: () => move({source: value, at: "", before: "", mesh: ""})}, name)));
  const follow = h("button", {type: "button", onclick: () => { jumped = false; move({at: "", before: ""}); }}, "Follow"), older = h("button", {type: "button", onclick: () => answer?.lines.length && move({at: "", before: String(answer.lines[0].us)})}, "Older lines");
  const failure = h("a", {class: "button", href: "/logs", hidden: ""}, "Go to the failure");
  const says = h("p", {class: "soft small", role: "status"}), box = h("div", {class: "loglines", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Lines"});
  root.append(h("div", {class: "head"}, h("h1", {}, "Logs"), h("div", {class: "row"}, source)),
    h("section", {class: "panel"}, h("div", {class: "row logfilter"}, text, rank, mesh, level, older, follow, failure), says, box));

  function move(changed) {
    const next = {...wanted, ...changed}, query = new URLSearchParams();
    for (const [name, value] of Object.entries(next)) if (value) query.set(name, value);
    go(`/logs${query.size ? `?${query}` : ""}`, {replace: true, focus: false});
  }

  function read(query) {
    const before = JSON.stringify(wanted);
    wanted = Object.fromEntries(["source", "text", "rank", "mesh", "level", "at", "before"].map(name => [name, query.get(name) ?? ""]));
    if (JSON.stringify(wanted) !== before) { jumped = false; answer = null; }
    for (const [element, name] of [[text, "text"], [rank, "rank"], [level, "level"]]) if (document.activeElement !== element) element.value = wanted[name];
    for (const each of source.children) each.setAttribute("aria-pressed", String(each.dataset.source === wanted.source));
    level.hidden = wanted.source === "printed";
    const asked = new URLSearchParams();
    for (const name of ["text", "rank", "mesh", "level", "at", "before"]) if (wanted[name]) asked.set(name, wanted[name]);
    stop?.();
    stop = watch(`/api/${wanted.source === "printed" ? "output" : "logs"}?${asked}`, found => { answer = found; draw(); }, problem => { answer = null; show(box); show(says, h("span", {class: "missing"}, problem.message)); });
  }

  function draw() {
    const names = [...new Set([...answer.meshes, ...(wanted.mesh ? [wanted.mesh] : [])])];
    show(mesh, h("option", {value: ""}, "All meshes"), ...names.map(name => h("option", {value: name}, name)));
    mesh.value = wanted.mesh;
    source.hidden = !answer.printed && wanted.source !== "printed";
    older.disabled = !answer.older || wanted.source === "printed";
    follow.setAttribute("aria-pressed", String(!wanted.at && !wanted.before));
    failure.hidden = !answer.failures.length;
    if (answer.failures.length) failure.setAttribute("href", `/logs?at=${answer.failures[0].us}`);
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    show(box, ...answer.lines.map(line), answer.lines.length ? null : h("p", {class: "empty"}, wanted.text || wanted.rank || wanted.mesh || wanted.level ? "No line matches." : wanted.source ? "Nothing was printed yet." : "Nothing was logged yet: lines of Python's logging from INFO on are kept."));
    show(says, answer.lines.length ? `${plural(answer.lines.length, "line")}${answer.older ? ", and older ones" : ""}${wanted.at || wanted.before ? "" : ", following"}` : "", answer.whole === false ? ". What goes to stdout goes straight to the program's terminal and is not here; enable_file_capture keeps it." : "");
    if (wanted.at) { if (!jumped) { box.querySelector("[data-at]")?.scrollIntoView({block: "center"}); jumped = true; } }
    else if (atEnd || !jumped) { box.scrollTop = box.scrollHeight; jumped = true; }
  }

  function line(each) {
    const who = each.mesh === null ? "" : `${each.mesh} ${number(each.rank)}`;
    return h("div", {class: `logline ${TONE[each.level] ?? ""}`, "data-at": String(each.us) === wanted.at ? "" : null}, h("span", {class: "faint"}, clockMillis(each.us)), h("span", {class: "level"}, each.level),
      h("span", {class: "who", title: who}, each.level === "FAILED" && each.actor_id ? h("a", {href: `/failure?id=${each.actor_id}`}, who || "actor") : each.actor_id ? h("a", {href: `/actors?id=${each.actor_id}`}, who || "actor") : who), h("span", {class: "said", title: [each.logger, each.where].filter(Boolean).join("  ") || null}, each.text));
  }

  current = {moved: next => { read(next); return true; }};
  read(given);
  return () => { stop?.(); clearTimeout(typing); current = null; };
}

export function moved(given) { return current ? current.moved(given) : false; }
