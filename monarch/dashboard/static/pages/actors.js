// Every actor by mesh, and what one of them did: status over time, messages with their history, stacks.

import {h, show} from "../dom.js";
import {get} from "../api.js";
import {clock, clockMillis, duration, firstLine, number, shortFile, shortName} from "../format.js";
import {watch} from "../poller.js";
import {ORDER, known} from "../states.js";
import {stateDot} from "./topology.js";

const MOST_SHOWN = 400; // of one mesh

let current = null;

export function open(root, given, go) {
  const opened = new Set();
  let actors = [], filter = "", system = false, id = given.get("id"), active = null, stop = null;
  const tree = h("div", {class: "tree", role: "tree", "aria-label": "Actors by mesh", "data-scroll": "tree", onkeydown: key});
  const count = h("p", {class: "reading", role: "status"});
  const detail = h("div");
  const side = h("section", {class: "panel side", "aria-label": "Explorer"},
    h("input", {type: "search", placeholder: "Filter by name, state, host", "aria-label": "Filter", oninput: event => { filter = event.target.value.trim().toLowerCase(); draw(); }}),
    h("div", {class: "row", style: {"margin-top": "8px", "justify-content": "space-between"}}, h("label", {class: "check small"}, h("input", {type: "checkbox", onchange: event => { system = event.target.checked; draw(); }}), "The system's"), count), tree);
  root.append(h("h1", {class: "visually-hidden"}, "Actors"), h("div", {class: "split"}, side, detail));

  function rows() {
    const wanted = actors.filter(actor => (system || !actor.is_system || actor.id === id) && (!filter || `${actor.full_name} ${actor.display_name ?? ""} ${actor.latest_status ?? "unknown"}`.toLowerCase().includes(filter)));
    const meshes = new Map();
    for (const actor of wanted) {
      const key = actor.mesh_id ?? "none";
      if (!meshes.has(key)) meshes.set(key, {key, name: actor.mesh_name ?? "no mesh", kind: (actor.mesh_class ?? "").replace(/^Python<(.*)>$/, "$1"), actors: []});
      meshes.get(key).actors.push(actor);
    }
    for (const mesh of meshes.values()) mesh.actors.sort((a, b) => (b.latest_status === "failed") - (a.latest_status === "failed") || a.rank - b.rank);
    return {wanted, meshes: [...meshes.values()].sort((a, b) => b.actors.length - a.actors.length || a.name.localeCompare(b.name))};
  }

  function draw() {
    const {wanted, meshes} = rows();
    count.textContent = `${number(wanted.length)} of ${number(actors.length)}`;
    const items = [];
    for (const mesh of meshes) {
      const isOpen = opened.has(mesh.key) || (filter && mesh.actors.length <= 50) || meshes.length === 1;
      const worst = mesh.actors.map(actor => known(actor.latest_status ?? "unknown")).sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b))[0];
      items.push(item(`mesh-${mesh.key}`, 1, h("span", {class: "twist", "aria-hidden": "true"}, isOpen ? "▾" : "▸"), stateDot(worst), mesh.name, `${number(mesh.actors.length)}`, {expanded: isOpen}));
      if (!isOpen) continue;
      for (const actor of mesh.actors.slice(0, MOST_SHOWN)) items.push(item(actor.id, 2, h("span", {class: "twist"}), stateDot(actor.latest_status), mesh.actors.length > 1 ? `rank ${actor.rank}` : shortName(actor.display_name, actor.full_name).replace(/\{.*\}/, ""), actor.latest_status === "idle" ? "" : actor.latest_status ?? "unknown", {selected: actor.id === id}));
      if (mesh.actors.length > MOST_SHOWN) items.push(h("p", {class: "faint small", style: {padding: "2px 24px"}}, `and ${number(mesh.actors.length - MOST_SHOWN)} more: filter to see them`));
    }
    if (!active || !items.some(each => each.dataset.key === active)) active = id ?? items[0]?.dataset.key;
    for (const each of items) if (each.dataset.key) each.tabIndex = each.dataset.key === active ? 0 : -1;
    show(tree, ...items, items.length ? null : h("p", {class: "empty"}, actors.length ? "No actor matches." : "No actors yet."));
  }

  function item(key, level, twist, dot, label, note, {expanded = null, selected = false}) {
    return h("div", {role: "treeitem", "data-key": key, "aria-level": level, "aria-expanded": expanded === null ? null : String(expanded), "aria-selected": level === 2 ? String(selected) : null, style: {"padding-left": `${level * 10 - 4}px`},
      onclick: () => choose(key)}, twist, dot, h("span", {class: "label", title: label}, label), h("span", {class: "faint small"}, note));
  }

  function choose(key) {
    active = key;
    if (key.startsWith("mesh-")) {
      const mesh = key.slice(5);
      if (opened.has(mesh)) opened.delete(mesh); else opened.add(mesh);
      draw();
    } else go(`/actors?id=${key}`, {focus: false});
  }

  function key(event) {
    const items = [...tree.querySelectorAll("[role=treeitem]")], at = items.indexOf(document.activeElement);
    if (at < 0) return;
    const node = items[at], isOpen = node.getAttribute("aria-expanded");
    let to = null;
    if (event.key === "ArrowDown") to = at + 1;
    else if (event.key === "ArrowUp") to = at - 1;
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = items.length - 1;
    else if (event.key === "Enter" || event.key === " ") choose(node.dataset.key);
    else if (event.key === "ArrowRight" && isOpen === "false") choose(node.dataset.key);
    else if (event.key === "ArrowRight" && isOpen === "true") to = at + 1;
    else if (event.key === "ArrowLeft" && isOpen === "true") choose(node.dataset.key);
    else if (event.key === "ArrowLeft") to = items.findLastIndex((each, index) => index < at && each.getAttribute("aria-level") === "1");
    else return;
    event.preventDefault();
    if (to !== null && items[to]) { active = items[to].dataset.key; for (const each of items) each.tabIndex = each === items[to] ? 0 : -1; items[to].focus(); }
  }

  function select(chosen) {
    id = chosen;
    stop?.();
    stop = null;
    const actor = actors.find(each => each.id === id);
    if (actor?.mesh_id) opened.add(actor.mesh_id);
    draw();
    detail.replaceChildren();
    if (!id) { detail.append(h("section", {class: "panel"}, h("p", {class: "empty"}, "Choose an actor to see its status over time and its messages."))); return; }
    stop = follow(detail, id);
  }

  current = {moved: next => { select(next.get("id")); return true; }};
  let first = true;
  const end = watch("/api/actors", value => {
    actors = value;
    if (first) { first = false; const busy = id ? null : busiest(actors); if (id) select(id); else if (busy) go(`/actors?id=${busy.id}`, {replace: true, focus: false}); else { for (const actor of actors) if (actor.latest_status === "failed") opened.add(actor.mesh_id); draw(); } } else draw();
  });
  select(id);
  return () => { end(); stop?.(); current = null; };
}

/** The one to look at first: it has failed, or its endpoint runs for longest, or it is of the largest mesh. */
function busiest(actors) {
  const own = actors.filter(actor => !actor.is_system && actor.latest_status !== "client");
  const failed = own.filter(actor => actor.latest_status === "failed").sort((a, b) => a.status_timestamp_us - b.status_timestamp_us)[0];
  const running = own.filter(actor => actor.running_us !== null).sort((a, b) => b.running_us - a.running_us)[0];
  return failed ?? running ?? own[0] ?? null;
}

export function moved(given) { return current ? current.moved(given) : false; }

// --- one actor

function follow(root, id) {
  const head = h("section", {class: "panel"}), status = h("section", {class: "panel gap"}), messages = h("section", {class: "panel gap"}), stacks = h("section", {class: "panel gap"});
  root.append(head, status, messages, stacks);
  const histories = new Map();
  let names = new Map(), rows = [];
  stacks.append(h("header", {}, h("h2", {}, "Stacks"), h("button", {type: "button", onclick: () => capture()}, "Capture now")), h("div", {}, h("p", {class: "soft small"}, "Where the threads of its process stand, asked of the process itself.")));
  let reference = "";

  async function capture() {
    const place = stacks.lastChild;
    show(place, h("p", {class: "soft"}, "asking …"));
    try {
      const found = await get(`/api/actors/${id}/stacks`);
      show(place, ...found.threads.map(thread => h("div", {class: "card"}, h("h3", {}, thread.name, thread.idle ? h("span", {class: "soft"}, "  idle") : null),
        h("ol", {class: "mono small"}, ...[...thread.frames].reverse().map(([name, file, line]) => h("li", {}, `${name}  `, h("span", {class: "soft", title: file}, `${shortFile(file)}:${line}`)))))),
      found.threads.length ? null : h("p", {class: "empty"}, "No thread of it runs code of the program now."), found.silent ? h("p", {class: "missing"}, found.silent) : null);
    } catch (problem) { show(place, h("p", {class: "missing"}, problem.message)); }
  }

  async function history(message) {
    if (histories.has(message)) { histories.delete(message); drawMessages(); return; }
    histories.set(message, null);
    drawMessages();
    try { histories.set(message, await get(`/api/message_status_events?message_id=${message}`)); } catch (problem) { histories.set(message, problem.message); }
    drawMessages();
  }

  function drawMessages() {
    const body = [];
    for (const row of [...rows].reverse()) {
      const incoming = row.to_actor_id === id, other = incoming ? row.from_actor_id : row.to_actor_id;
      const isOpen = histories.has(row.id);
      body.push(h("tr", {class: isOpen ? "open" : null}, h("td", {class: "soft"}, clockMillis(row.timestamp_us)), h("td", {}, incoming ? "from" : "to"), h("td", {class: "clip"}, other ? h("a", {href: `/actors?id=${other}`}, names.get(other) ?? other) : ""),
        h("td", {class: "mono"}, row.endpoint ?? "–"), h("td", {class: row.latest_status === "failed" ? "bad" : row.latest_status === "active" ? "warn" : ""}, row.latest_status), h("td", {class: "num"}, duration(row.took_us)),
        h("td", {class: "num"}, h("button", {type: "button", class: "plain", "aria-expanded": String(isOpen), "aria-label": `history of message ${row.id}`, "data-key": `history-${row.id}`, onclick: () => history(row.id)}, isOpen ? "less" : "history"))));
      if (isOpen) {
        const events = histories.get(row.id);
        body.push(h("tr", {}, h("td", {colspan: "7", class: "history"}, events === null ? "asking …" : typeof events === "string" ? events : events.map((event, index) => `${index ? "  →  " : ""}${event.status} ${clockMillis(event.timestamp_us)}`).join("") || "no history was recorded")));
      }
    }
    show(messages, h("header", {}, h("h2", {}, "Messages"), h("span", {class: "soft small"}, rows.length ? `the newest ${number(rows.length)}` : "")),
      rows.length ? h("div", {class: "scroll", "data-scroll": "messages", tabindex: "0", role: "region", "aria-label": "Messages", style: {"max-height": "420px"}}, h("table", {}, h("thead", {}, h("tr", {}, ...["Time", "", "Actor", "Endpoint", "State"].map(text => h("th", {}, text)), h("th", {class: "num"}, "Took"), h("th", {}, h("span", {class: "visually-hidden"}, "History")))), h("tbody", {}, ...body))) : h("p", {class: "empty"}, "No messages to or from it yet."));
  }

  const ends = [
    watch(`/api/actors/${id}`, actor => {
      reference = actor.full_name;
      const at = reference.lastIndexOf("@"), process = reference.slice(reference.indexOf(".") + 1, at), host = reference.slice(at + 1);
      const state = actor.latest_status ?? "unknown";
      show(head, h("ol", {class: "crumbs", "aria-label": "Where it is"}, ...[host, process, reference.split(".")[0]].map(text => h("li", {}, text))),
        h("h2", {class: "title"}, shortName(actor.display_name, actor.full_name)),
        h("dl", {class: "facts", style: {"margin-top": "10px"}}, h("dt", {}, "State"), h("dd", {class: state === "failed" ? "bad" : ""}, stateDot(state), ` ${state} since ${clock(actor.status_timestamp_us)}`),
          h("dt", {}, "Mesh"), h("dd", {}, actor.mesh_id ? h("a", {href: `/topology?mesh=${actor.mesh_id}`}, actor.mesh_name ?? actor.mesh_id) : "none", `, rank ${actor.rank}`), h("dt", {}, "Class"), h("dd", {}, (actor.mesh_class ?? "unknown").replace(/^Python<(.*)>$/, "$1")),
          h("dt", {}, "Made"), h("dd", {}, clock(actor.timestamp_us)), h("dt", {}, "Reference"), h("dd", {class: "mono"}, reference)),
        state === "failed" ? h("p", {style: {"margin-top": "8px"}}, h("a", {href: `/failure?id=${id}`}, "All about this failure")) : null, state === "failed" && actor.status_reason ? h("pre", {class: "reason", tabindex: "0", "aria-label": "Why it failed"}, actor.status_reason) : null);
    }, problem => show(head, h("p", {class: "missing"}, problem.message === "actor not found" ? "No actor has this id: it may be of another run." : problem.message))),
    watch(`/api/actors/${id}/status_events`, events => show(status, h("header", {}, h("h2", {}, "Status over time")), h("ol", {class: "events"}, ...events.map((event, index) => h("li", {}, h("span", {class: "soft"}, clockMillis(event.timestamp_us)), stateDot(event.new_status.toLowerCase()), h("span", {}, event.new_status, h("span", {class: "soft small"}, index ? `   after ${duration(event.timestamp_us - events[index - 1].timestamp_us)}` : "", event.reason ? `   ${firstLine(event.reason)}` : "")))))), () => show(status, h("h2", {}, "Status over time"))),
    watch("/api/actors", actors => { names = new Map(actors.map(actor => [actor.id, shortName(actor.display_name, actor.full_name)])); drawMessages(); }),
    watch(`/api/actors/${id}/messages`, value => { rows = value; drawMessages(); }, () => drawMessages()),
  ];
  return () => { for (const end of ends) end(); };
}
