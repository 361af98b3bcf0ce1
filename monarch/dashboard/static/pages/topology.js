// Every rank of every mesh as a cell, or the tree of hosts, processes and actors as a graph.

import {h, show} from "../dom.js";
import {get} from "../api.js";
import {clock, duration, number, shortName} from "../format.js";
import {closeDrawer, openDrawer} from "../drawer.js";
import {Graph} from "../graph.js";
import {Grid, coordinates} from "../grid.js";
import {watch} from "../poller.js";
import {ORDER, STATES, glyphColour, known} from "../states.js";

export function open(root, given, go) {
  let view = given.get("view") === "graph" ? "graph" : "ranks";
  let system = given.get("system") === "1";
  let end = null;
  const grids = new Map();
  const choice = h("div", {class: "choice", role: "group", "aria-label": "View"}, ...[["Ranks", "ranks"], ["Graph", "graph"]].map(([text, value]) =>
    h("button", {type: "button", "data-view": value, onclick: () => { view = value; place(); follow(); }}, text)));
  const check = h("input", {type: "checkbox", checked: system, onchange: event => { system = event.target.checked; place(); follow(); }});
  const body = h("div");
  root.append(h("div", {class: "head"}, h("h1", {}, "Topology"), h("label", {class: "check"}, check, "Show the system's"), choice), legend(), body);

  function place() {
    go(`/topology?${new URLSearchParams({...(view === "graph" ? {view} : {}), ...(system ? {system: "1"} : {})})}`.replace(/\?$/, ""), {replace: true, focus: false});
  }
  function clear() {
    end?.();
    for (const {grid} of grids.values()) grid.close();
    grids.clear();
    body.replaceChildren();
  }
  function follow() {
    clear();
    for (const button of choice.children) button.setAttribute("aria-pressed", String(button.dataset.view === view));
    end = view === "graph" ? followGraph() : watch(`/api/topology${system ? "?show_system=true" : ""}`, draw);
  }
  function followGraph() {
    const graph = new Graph(node => nodeDrawer(node));
    body.append(graph.element);
    return watch(`/api/dag?hide_system=${!system}`, value => graph.update(value), problem => graph.problem(problem.message));
  }

  function draw(topology) {
    if (topology.meshes.length === 0) return show(body, h("p", {class: "panel empty"}, "No meshes yet: they are shown here as soon as the program spawns some."));
    if (grids.size === 0) body.replaceChildren(h("div", {class: "meshes"}));
    const holder = body.firstChild;
    for (const mesh of topology.meshes) {
      let entry = grids.get(mesh.id);
      if (!entry) {
        const grid = new Grid(mesh.name, rank => rankDrawer(mesh, rank));
        const head = h("header");
        const panel = h("section", {class: "panel mesh", id: `mesh-${mesh.id}`}, head, grid.element);
        grids.set(mesh.id, entry = {grid, head, panel});
        holder.append(panel);
        if (given.get("mesh") === mesh.id) queueMicrotask(() => { panel.scrollIntoView({block: "center"}); grid.box.focus(); });
      }
      show(entry.head, ...headOf(mesh));
      entry.grid.update(mesh, topology.letters);
    }
    for (const [id, entry] of grids) if (!topology.meshes.some(mesh => mesh.id === id)) { entry.grid.close(); entry.panel.remove(); grids.delete(id); }
  }
  follow();
  return clear;
}

function headOf(mesh) {
  const kind = mesh.class === "Proc" ? "processes" : mesh.class.replace(/^Python<(.*)>$/, "$1");
  const shape = mesh.sizes.map((size, index) => `${mesh.labels[index]} ${number(size)}`).join(" × ");
  const counts = Object.entries(mesh.counts).sort((a, b) => ORDER.indexOf(a[0]) - ORDER.indexOf(b[0]));
  return [h("h2", {}, mesh.name, h("span", {class: "soft"}, `   ${kind} · ${shape}`)),
    h("span", {class: "counts soft small"}, ...counts.map(([state, count]) => h("span", {class: state === "failed" ? "bad" : ""}, `${number(count)} ${state}`)))];
}

function legend() {
  const order = ["idle", "processing", "created", "initializing", "stopping", "stopped", "failed", "unknown"];
  return h("ul", {class: "legend", style: {"margin-bottom": "14px"}, "aria-label": "Colours"}, ...order.map(state => h("li", {}, h("span", {class: "swatch", style: {background: `var(--${state})`, color: glyphColour(state)}, "aria-hidden": "true"}, STATES[state]), state)), h("li", {}, h("span", {class: "swatch long", "aria-hidden": "true"}), "running for over 30 s"));
}

async function rankDrawer(mesh, rank) {
  const title = `${mesh.name} ${number(rank)}`;
  openDrawer(title, h("p", {class: "soft"}, "asking …"));
  try {
    const found = await get(`/api/meshes/${mesh.id}/ranks/${rank}`);
    openDrawer(title, [h("p", {class: "soft"}, coordinates(mesh.labels, mesh.sizes, rank)), ...found.actors.map(actorCard),
      found.actors.length ? null : h("p", {class: "empty"}, "Nothing is known of this rank yet: it has no actors, or their rows have not arrived.")].filter(Boolean));
  } catch (problem) {
    openDrawer(title, h("p", {class: "missing"}, problem.message));
  }
}

export function stateDot(state) {
  return h("span", {class: "state-dot", style: {background: `var(--${known(state ?? "unknown")})`}, "aria-hidden": "true"});
}

function actorCard(actor) {
  const state = actor.latest_status ?? "unknown";
  return h("section", {class: "card"},
    h("h3", {}, stateDot(state), " ", h("a", {href: `/actors?id=${actor.id}`}, shortName(actor.display_name, actor.full_name))),
    h("dl", {class: "facts"},
      h("dt", {}, "State"), h("dd", {class: state === "failed" ? "bad" : ""}, `${state} since ${clock(actor.status_timestamp_us)}`),
      actor.running ? [h("dt", {}, "Runs"), h("dd", {class: actor.running.us > 30e6 ? "warn" : ""}, `${actor.running.endpoint ?? "a message"}() for ${duration(actor.running.us)}`)] : null,
      h("dt", {}, "Name"), h("dd", {class: "mono"}, actor.full_name)),
    state === "failed" && actor.status_reason ? h("pre", {class: "reason", tabindex: "0"}, actor.status_reason) : null,
    h("p", {class: "small"}, h("a", {href: `/actors?id=${actor.id}`}, "messages and history"), "  ·  ", h("a", {href: "/stacks"}, "stacks")));
}

function nodeDrawer(node) {
  openDrawer(node.label, [h("dl", {class: "facts"}, h("dt", {}, "Kind"), h("dd", {}, node.subtitle), h("dt", {}, "State"), h("dd", {class: node.status === "failed" ? "bad" : ""}, node.detail ? `${node.status}: ${node.detail}` : node.status),
    node.mesh_name ? [h("dt", {}, "Mesh"), h("dd", {}, node.mesh_name)] : null, h("dt", {}, "Reference"), h("dd", {class: "mono"}, node.entity_id)),
  node.telemetry_actor_id ? h("p", {class: "card"}, h("a", {href: `/actors?id=${node.telemetry_actor_id}`}, "messages and history")) : null].filter(Boolean));
}
