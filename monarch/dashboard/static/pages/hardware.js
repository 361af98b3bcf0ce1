// Machines and GPUs over time.

import {h, show} from "../dom.js";
import {bytes, number, plural} from "../format.js";
import {lines} from "../chart.js";
import {watch} from "../poller.js";

const percent = value => `${number(value, value < 10 ? 1 : 0)} %`;
const rate = value => `${bytes(value)}/s`;
const CHARTS = [
  ["Processor", "hosts", "cpu_percent", percent, {most: 100}], ["Memory", "hosts", "memory_used_bytes", bytes, {base: 1024}],
  ["Network in", "hosts", "net_rx_per_s", rate, {base: 1024}], ["Network out", "hosts", "net_tx_per_s", rate, {base: 1024}],
  ["Disk read", "hosts", "disk_read_per_s", rate, {base: 1024}], ["Disk written", "hosts", "disk_write_per_s", rate, {base: 1024}],
  ["GPU load", "gpus", "utilization_percent", percent, {most: 100}], ["GPU memory", "gpus", "memory_used_bytes", bytes, {base: 1024}],
  ["GPU power", "gpus", "power_watts", value => `${number(value)} W`, {}], ["GPU temperature", "gpus", "temperature_c", value => `${number(value)} °C`, {}],
];

const TIMES = [["2 min", 120], ["10 min", 600], ["1 h", 3600]];
let current = null;

export function open(root, given, go) {
  let seconds = 0, host = "", by = "", up = false, end = null, last = null;
  const time = h("div", {class: "choice", role: "group", "aria-label": "How far back"}, ...TIMES.map(([text, value]) => h("button", {type: "button", onclick: () => move({seconds: value})}, text)));
  const which = h("select", {"aria-label": "Host", onchange: event => move({host: event.target.value})}, h("option", {value: ""}, "All hosts"));
  const body = h("div");
  root.append(h("div", {class: "head"}, h("h1", {}, "Hardware"), which, time), body);

  const order = () => by || (last?.gpus.length ? "gpu" : "cpu");

  /** Shows what an address says: what is sent is what the sender sees. */
  function read(next) {
    const before = seconds;
    seconds = TIMES.find(([, value]) => value === Number(next.get("seconds")))?.[1] ?? 600;
    host = next.get("host") ?? "";
    by = next.get("sort") in SORTS ? next.get("sort") : "";
    up = next.get("order") === "up";
    TIMES.forEach(([, value], index) => time.children[index].setAttribute("aria-pressed", String(value === seconds)));
    if (before !== seconds) follow();
    else draw();
  }
  function move(changed) {
    const next = {seconds, host, by, up, ...changed};
    const query = new URLSearchParams({...(next.by ? {sort: next.by} : {}), ...(next.up ? {order: "up"} : {}), ...(next.host ? {host: next.host} : {}), ...(next.seconds === 600 ? {} : {seconds: next.seconds})});
    go(`/hardware${query.size ? `?${query}` : ""}`, {replace: true, focus: false});
  }
  function follow() { end?.(); end = watch(`/api/hardware?seconds=${seconds}`, value => { last = value; draw(); }, problem => show(body, h("p", {class: "panel missing"}, problem.message))); }

  function draw() {
    if (!last) return;
    const names = last.hosts.map(each => each.hostname);
    if ([...which.options].slice(1).map(each => each.value).join() !== names.join()) show(which, h("option", {value: ""}, "All hosts"), ...names.map(name => h("option", {value: name, selected: name === host}, name)));
    if (!names.length) return show(body, h("section", {class: "panel"}, h("p", {class: "empty"}, "Nothing was measured in this time. Hosts are measured once a second while telemetry runs; host_metrics_interval_secs=0 turns it off.")));
    const pick = kind => last[kind].filter(each => !host || each.hostname === host);
    const width = body.clientWidth > 900 ? Math.floor((body.clientWidth - 90) / 2) : Math.max(300, body.clientWidth - 40);
    const charts = CHARTS.filter(([, kind, field]) => pick(kind).some(each => each.series[field]?.some(value => value !== null))).map(([title, kind, field, format, options]) => {
      const series = pick(kind).map(each => ({name: kind === "hosts" ? each.hostname : `${each.hostname} GPU ${each.gpu_index}`, times: each.times_us, values: each.series[field]}));
      return h("section", {class: "panel"}, h("header", {}, h("h2", {}, title), h("span", {class: "soft small"}, series.length > 1 ? plural(series.length, kind === "hosts" ? "host" : "GPU") : series[0].name)), lines({series, from: last.since_us < series[0].times[0] - 5e6 ? Math.max(last.since_us, Math.min(...series.map(each => each.times[0]))) : last.since_us, to: last.now_us, width, format, label: `${title}: ${series.length} lines`, ...options}));
    });
    show(body, h("section", {class: "panel"}, h("header", {}, h("h2", {}, "Hosts now"), h("span", {class: "soft small"}, `by ${SORTS[order()].toLowerCase().replace("gpu", "GPU")}`)), table(pick("hosts"), pick("gpus"), order(), up, name => move({by: name, up: name === order() && !up}))), h("div", {class: "grid two gap"}, ...charts));
  }
  const resize = () => draw();
  window.addEventListener("resize", resize);
  current = {moved: next => { read(next); return true; }};
  read(given);
  return () => { end?.(); window.removeEventListener("resize", resize); current = null; };
}

export function moved(given) { return current ? current.moved(given) : false; }

function meter(value, most, text) {
  return h("td", {class: "num"}, text, h("span", {class: "bar", style: {width: "90px", "margin-left": "auto", "margin-top": "3px"}, "aria-hidden": "true"}, h("span", {style: {width: `${Math.min(100, 100 * (value ?? 0) / (most || 1))}%`}})));
}

const latest = (each, field) => each.series[field].findLast(value => value !== null) ?? null;

/** The mean of what is known; null for nothing. */
function mean(values) {
  const known = values.filter(value => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

/** What a host uses now, for its row and its place: shares in percent, null where it has none. */
function usage(host, gpus) {
  const own = gpus.filter(gpu => gpu.hostname === host.hostname);
  const used = latest(host, "memory_used_bytes");
  return {
    host: host.hostname, cpu: latest(host, "cpu_percent"), load: latest(host, "load_avg_1m"), gpus: own.length,
    memory: used === null ? null : 100 * used / (host.memory_total_bytes || 1), used,
    gpu: mean(own.map(gpu => latest(gpu, "utilization_percent"))),
    gpumemory: mean(own.map(gpu => latest(gpu, "memory_used_bytes") === null ? null : 100 * latest(gpu, "memory_used_bytes") / (gpu.memory_total_bytes || 1))),
  };
}

/** The columns by which hosts are sorted: as the address names them, their heads. */
const SORTS = {host: "Host", cpu: "Processor", load: "Load", memory: "Memory", gpu: "GPU load", gpumemory: "GPU memory"};

/** The busiest first, by names from a to z; `up` is the other way round. What a host does not have comes last. */
function sorted(rows, by, up) {
  const place = (a, b) => by === "host" ? a.host.localeCompare(b.host, undefined, {numeric: true})
    : a[by] === null || b[by] === null ? (a[by] === null) - (b[by] === null) : (up ? a[by] - b[by] : b[by] - a[by]);
  const found = [...rows].sort((a, b) => place(a, b) || a.host.localeCompare(b.host, undefined, {numeric: true}));
  return by === "host" && up ? found.reverse() : found;
}

function table(hosts, gpus, by, up, choose) {
  const some = gpus.length > 0;
  const known = new Map(hosts.map(each => [each.hostname, each]));
  const head = name => h("th", {class: name === "host" ? null : "num", "aria-sort": name !== by ? null : (name === "host") === up ? "descending" : name === "host" || up ? "ascending" : "descending"},
    h("button", {type: "button", class: "sort", "data-sort": name, "data-key": `sort-${name}`, onclick: () => choose(name)}, SORTS[name], h("span", {"aria-hidden": "true"}, name !== by ? "" : up ? " ↑" : " ↓")));
  return h("div", {class: "scroll hosts", "data-scroll": "hosts"}, h("table", {}, h("thead", {}, h("tr", {}, ...["host", "cpu", "load", "memory", ...(some ? ["gpu", "gpumemory"] : [])].map(head), ...["In", "Out", "Disk free"].map(text => h("th", {class: "num"}, text)))),
    h("tbody", {}, ...sorted(hosts.map(each => usage(each, gpus)), by, up).map(row => {
      const each = known.get(row.host);
      const share = (value, text) => value === null ? h("td", {class: "num faint"}, "none") : meter(value, 100, text);
      return h("tr", {"data-host": row.host}, h("td", {}, row.host, h("div", {class: "faint small"}, `${plural(each.cpu_count, "core")}${row.gpus ? `, ${plural(row.gpus, "GPU")}` : ""}`)), meter(row.cpu, 100, percent(row.cpu)), h("td", {class: "num"}, number(row.load, 1)),
        meter(row.memory, 100, `${bytes(row.used)} of ${bytes(each.memory_total_bytes)}`), ...(some ? [share(row.gpu, percent(row.gpu)), share(row.gpumemory, percent(row.gpumemory))] : []),
        h("td", {class: "num"}, rate(latest(each, "net_rx_per_s"))), h("td", {class: "num"}, rate(latest(each, "net_tx_per_s"))), h("td", {class: "num"}, bytes(each.disk_root_free_bytes)));
    }))));
}
