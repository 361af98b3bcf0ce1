// The frame around the pages: where we are, how the program is, whether it is live, and the colours.

import {h, plain, show} from "./dom.js";
import {duration, firstLine} from "./format.js";
import {closeDrawer} from "./drawer.js";
import {connection, watch} from "./poller.js";
import * as overview from "./pages/overview.js";
import * as logs from "./pages/logs.js";
import * as failure from "./pages/failure.js";
import * as doctor from "./pages/doctor.js";
import * as topology from "./pages/topology.js";
import * as metrics from "./pages/metrics.js";
import * as actors from "./pages/actors.js";
import * as sql from "./pages/sql.js";
import * as hardware from "./pages/hardware.js";
import * as stacks from "./pages/stacks.js";
import * as traces from "./pages/traces.js";

const PAGES = {overview, metrics, logs, doctor, topology, actors, stacks, hardware, sql, traces, failure};
const TITLES = {overview: "Overview", metrics: "Metrics", logs: "Logs", doctor: "Doctor", topology: "Topology", actors: "Actors", stacks: "Stacks", hardware: "Hardware", sql: "SQL", traces: "Traces", failure: "Failure"};
const $ = id => document.getElementById(id);

let leave = null;
let here = null;

/** Goes to a page: path with query, as "/actors?id=7". */
export function go(place, {replace = false, focus = true} = {}) {
  if (place !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"](null, "", place);
  arrive(focus);
}

function arrive(focus) {
  const name = location.pathname.slice(1) || "overview";
  const page = PAGES[name] ?? overview;
  const given = new URLSearchParams(location.search);
  if (here === page && page.moved?.(given)) return;
  leave?.();
  closeDrawer();
  here = page;
  for (const tab of $("tabs").children) {
    if (tab.dataset.page === (name in PAGES ? name : "overview")) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.querySelector("#tabs [aria-current]")?.scrollIntoView({block: "nearest", inline: "nearest"});
  const root = $("page");
  root.replaceChildren();
  window.scrollTo(0, 0);
  leave = page.open(root, given, go) ?? null;
  title();
  if (focus) root.focus({preventScroll: true});
}

let program = "Monarch";
function title() {
  const name = location.pathname.slice(1) || "overview";
  document.title = plain(`${TITLES[name] ?? "Overview"} · ${program}`);
}

show($("tabs"), ...Object.entries(TITLES).filter(([name]) => name !== "failure").map(([name, text]) => h("a", {href: name === "overview" ? "/" : `/${name}`, "data-page": name}, text)));

document.addEventListener("click", event => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || link.hasAttribute("download") || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.getAttribute("href").startsWith("/api/")) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
window.addEventListener("popstate", () => arrive(true));

// --- the header

watch("/api/summary", summary => {
  const about = summary.program;
  program = about?.name ?? "saved program";
  $("program").textContent = plain(program);
  $("program").title = plain(about?.command ? `${about.command}${about.pid ? ` (pid ${about.pid})` : ""}` : "");
  const health = $("health");
  health.className = `chip ${summary.health_status}`;
  const failed = summary.actor_counts.by_status.failed ?? 0;
  health.textContent = failed ? `${failed} failed` : summary.health_status;
  health.href = failed || summary.doctor.state !== "wrong" ? "/" : "/doctor";
  health.title = [...summary.health_reasons, ...summary.concerns.map(each => firstLine(each.text))].map(plain).join("\n");
  title();
}, problem => notice(problem.message));

function notice(text) {
  $("notice").textContent = plain(text ?? "");
  $("notice").hidden = !text;
}

setInterval(() => {
  const {state, age, seen} = connection();
  const live = $("live");
  live.className = `live ${state === "live" ? "on" : state === "reconnecting" ? "off" : ""}`;
  $("live-text").textContent = state === "live" ? `live · ${Math.round(age)} s ago` : state;
  if (state === "reconnecting" && age > 8) {
    notice(seen ? `No answer for ${duration(age * 1e6)}: the program or its dashboard has ended, or cannot be reached. What is shown is what was last known.` : "The server does not answer.");
  } else if (state === "live") notice(null);
}, 1000);

// --- colours

const THEMES = {"": ["◐", "as the system has them"], light: ["☀", "light"], dark: ["☾", "dark"]};
function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  try { if (chosen) localStorage.setItem("monarch.theme", chosen); else localStorage.removeItem("monarch.theme"); } catch { /* not kept then */ }
  const [glyph, words] = THEMES[chosen];
  $("theme").textContent = glyph;
  $("theme").setAttribute("aria-label", `Colours: ${words}`);
  $("theme").title = `Colours: ${words}`;
  window.dispatchEvent(new Event("colours"));
}
$("theme").addEventListener("click", () => {
  const order = Object.keys(THEMES);
  theme(order[(order.indexOf(document.documentElement.dataset.theme ?? "") + 1) % order.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("colours")));
theme(document.documentElement.dataset.theme ?? "");

arrive(false);
