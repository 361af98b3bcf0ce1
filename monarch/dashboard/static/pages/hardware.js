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

export function open(root) {
  let seconds = 600, host = "", end = null, last = null;
  const time = h("div", {class: "choice", role: "group", "aria-label": "How far back"}, ...[["2 min", 120], ["10 min", 600], ["1 h", 3600]].map(([text, value]) => h("button", {type: "button", "aria-pressed": String(value === seconds), onclick: event => {
    seconds = value;
    for (const each of time.children) each.setAttribute("aria-pressed", String(each === event.currentTarget));
    follow();
  }}, text)));
  const which = h("select", {"aria-label": "Host", onchange: event => { host = event.target.value; draw(); }}, h("option", {value: ""}, "All hosts"));
  const body = h("div");
  root.append(h("div", {class: "head"}, h("h1", {}, "Hardware"), which, time), body);

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
    show(body, h("div", {class: "grid two"}, ...charts), h("section", {class: "panel gap"}, h("header", {}, h("h2", {}, "Hosts now")), table(pick("hosts"), last.gpus)));
  }
  const resize = () => draw();
  window.addEventListener("resize", resize);
  follow();
  return () => { end?.(); window.removeEventListener("resize", resize); };
}

function meter(value, most, text) {
  return h("td", {class: "num"}, text, h("span", {class: "bar", style: {width: "90px", "margin-left": "auto", "margin-top": "3px"}, "aria-hidden": "true"}, h("span", {style: {width: `${Math.min(100, 100 * (value ?? 0) / (most || 1))}%`}})));
}

function table(hosts, gpus) {
  const now = (each, field) => each.series[field].findLast(value => value !== null) ?? null;
  return h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Host"), ...["Processor", "Load", "Memory", "In", "Out", "Disk free", "GPU load"].map(text => h("th", {class: "num"}, text)))),
    h("tbody", {}, ...hosts.map(each => {
      const own = gpus.filter(gpu => gpu.hostname === each.hostname).map(gpu => now(gpu, "utilization_percent")).filter(value => value !== null);
      const cpu = now(each, "cpu_percent"), used = now(each, "memory_used_bytes");
      return h("tr", {}, h("td", {}, each.hostname, h("div", {class: "faint small"}, `${plural(each.cpu_count, "core")}`)), meter(cpu, 100, percent(cpu)), h("td", {class: "num"}, number(now(each, "load_avg_1m"), 1)),
        meter(used, each.memory_total_bytes, `${bytes(used)} of ${bytes(each.memory_total_bytes)}`), h("td", {class: "num"}, rate(now(each, "net_rx_per_s"))), h("td", {class: "num"}, rate(now(each, "net_tx_per_s"))), h("td", {class: "num"}, bytes(each.disk_root_free_bytes)),
        own.length ? meter(own.reduce((a, b) => a + b, 0) / own.length, 100, `${percent(own.reduce((a, b) => a + b, 0) / own.length)} of ${own.length}`) : h("td", {class: "num faint"}, "none"));
    }))));
}
