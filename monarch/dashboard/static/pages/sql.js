// Questions of one's own: SQL over the tables, reading only.

import {h, show} from "../dom.js";
import {Failure, get, post} from "../api.js";
import {number} from "../format.js";

const SHOWN = 1000, KEPT = 50, HISTORY = "monarch.sql", TEXT = "monarch.sql.text";
const EXAMPLES = [
  ["Actors by latest status", "SELECT new_status, count(*) AS actors\nFROM (SELECT * FROM actor_status_events\n      QUALIFY row_number() OVER (PARTITION BY actor_id ORDER BY timestamp_us DESC) = 1)\nGROUP BY new_status ORDER BY actors DESC"],
  ["Slowest messages", "SELECT m.endpoint, a.display_name, (max(e.timestamp_us) - min(e.timestamp_us)) / 1e3 AS ms\nFROM messages m\nJOIN message_status_events e ON e.message_id = m.id AND e.status IN ('active', 'complete')\nJOIN actors a ON a.id = m.to_actor_id\nGROUP BY ALL, m.id ORDER BY ms DESC LIMIT 20"],
  ["Begun and not ended", "SELECT a.display_name, m.endpoint, to_timestamp(min(e.timestamp_us) / 1e6) AS since\nFROM messages m JOIN message_status_events e ON e.message_id = m.id JOIN actors a ON a.id = m.to_actor_id\nGROUP BY a.display_name, m.endpoint, m.id\nHAVING bool_or(e.status = 'active') AND NOT bool_or(e.status IN ('complete', 'failed'))\nORDER BY since LIMIT 100"],
  ["Who sends to whom", "SELECT f.display_name AS sender, t.display_name AS receiver, m.endpoint, count(*) AS messages\nFROM messages m LEFT JOIN actors f ON f.id = m.from_actor_id LEFT JOIN actors t ON t.id = m.to_actor_id\nGROUP BY ALL ORDER BY messages DESC LIMIT 50"],
  ["Failures", "SELECT to_timestamp(e.timestamp_us / 1e6) AS at, a.display_name, e.reason\nFROM actor_status_events e JOIN actors a ON a.id = e.actor_id\nWHERE e.new_status = 'Failed' ORDER BY at"],
  ["Hosts under load", "SELECT hostname, round(avg(cpu_percent), 1) AS cpu, round(max(memory_used_bytes) / 1e9, 1) AS memory_gb\nFROM host_metrics GROUP BY hostname ORDER BY cpu DESC"],
];

export function open(root) {
  let control = null, result = null;
  const stored = read(TEXT, "");
  const editor = h("textarea", {spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-label": "SQL", placeholder: "SELECT …", value: stored || EXAMPLES[0][1], onkeydown: event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
    if (event.key === "Escape" && control) { event.preventDefault(); cancel(); }
  }});
  const go = h("button", {type: "button", class: "primary", onclick: run}, "Run"), stop = h("button", {type: "button", disabled: true, onclick: cancel}, "Cancel"), csv = h("button", {type: "button", disabled: true, onclick: download}, "CSV");
  const limit = h("select", {"aria-label": "Time limit"}, ...[5, 30, 120, 300].map(seconds => h("option", {value: String(seconds), selected: seconds === 30}, `at most ${seconds} s`)));
  const says = h("span", {class: "soft small", role: "status"});
  const output = h("div", {class: "gap"});
  const schema = h("section", {class: "panel schema gap"}, h("h2", {}, "Tables"), h("p", {class: "empty"}, "asking …"));
  const history = h("section", {class: "panel gap links"});
  const examples = h("section", {class: "panel links"}, h("h2", {}, "Examples"), ...EXAMPLES.map(([name, text]) => h("button", {type: "button", onclick: () => { editor.value = text; run(); }}, name)));
  root.append(h("div", {class: "head"}, h("h1", {}, "SQL")), h("div", {class: "split sql"}, h("div", {}, examples, schema, history),
    h("div", {}, h("section", {class: "panel"}, editor, h("div", {class: "row", style: {"margin-top": "10px"}}, go, stop, limit, csv, says), h("p", {class: "faint small", style: {"margin-top": "8px"}}, "Ctrl+Enter runs, Escape cancels. Queries read; what would write is refused.")), output)));

  get("/api/tables").then(tables => show(schema, h("h2", {}, "Tables"), h("div", {class: "list", tabindex: "0", role: "region", "aria-label": "Tables"}, ...tables.map(table => h("details", {}, h("summary", {class: "mono"}, table.name), h("ul", {}, ...table.columns.map(column => h("li", {}, h("span", {class: "mono"}, column.name), h("span", {class: "faint"}, `${column.type.toLowerCase()}${column.nullable ? "?" : ""}`))), h("li", {}, h("button", {type: "button", class: "plain", onclick: () => { editor.value = `SELECT * FROM ${table.name} LIMIT 100`; run(); }}, "first 100 rows"))))))), problem => show(schema, h("h2", {}, "Tables"), h("p", {class: "missing"}, problem.message)));

  async function run() {
    const text = editor.value.trim();
    if (!text) { says.textContent = "Write a query first."; editor.focus(); return; }
    control?.abort();
    const mine = control = new AbortController();
    stop.disabled = false;
    csv.disabled = true;
    write(TEXT, text);
    remember(text);
    const began = performance.now();
    const clock = setInterval(() => { says.textContent = `running, ${((performance.now() - began) / 1e3).toFixed(1)} s`; }, 100);
    try {
      result = await post("/api/sql", {sql: text, timeout: Number(limit.value)}, mine.signal);
      says.textContent = `${number(result.rows.length)} row${result.rows.length === 1 ? "" : "s"}${result.truncated ? `, the first of more` : ""} in ${number(result.elapsed_ms, 1)} ms${result.note ? `: ${result.note}` : ""}`;
      csv.disabled = result.rows.length === 0;
      show(output, result.missing_hosts.length ? h("p", {class: "missing"}, `Rows of these hosts are missing: ${result.missing_hosts.join(", ")}`) : null, table(result));
    } catch (problem) {
      if (control !== mine) return;
      result = null;
      says.textContent = problem.name === "AbortError" ? "cancelled" : problem instanceof Failure && problem.status === 408 ? "over its time limit" : "";
      show(output, problem.name === "AbortError" ? null : h("p", {class: "error", role: "alert"}, problem.message));
    } finally {
      clearInterval(clock);
      if (control === mine) { control = null; stop.disabled = true; }
    }
  }
  function cancel() { control?.abort(); editor.focus(); }
  function remember(text) {
    const kept = [text, ...read(HISTORY, []).filter(each => each !== text)].slice(0, KEPT);
    write(HISTORY, kept);
    drawHistory(kept);
  }
  function drawHistory(kept) {
    show(history, h("h2", {}, "History"), ...kept.slice(0, 12).map(text => h("button", {type: "button", class: "mono", title: text, onclick: () => { editor.value = text; editor.focus(); }}, text.replace(/\s+/g, " "))), kept.length ? null : h("p", {class: "empty"}, "What you run is kept here, in this browser."));
  }
  function download() {
    const link = h("a", {href: URL.createObjectURL(new Blob([toCsv(result)], {type: "text/csv"})), download: "query.csv"});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  drawHistory(read(HISTORY, []));
  return () => control?.abort();
}

function table(result) {
  if (!result.rows.length) return h("section", {class: "panel"}, h("p", {class: "empty"}, "No rows."));
  const shown = result.rows.slice(0, SHOWN);
  const numeric = result.columns.map((_, index) => shown.every(row => row[index] === null || typeof row[index] === "number"));
  return h("section", {class: "panel"}, h("div", {class: "result", tabindex: "0", role: "region", "aria-label": "Result"}, h("table", {}, h("thead", {}, h("tr", {}, ...result.columns.map((name, index) => h("th", {class: numeric[index] ? "num" : ""}, name)))),
    h("tbody", {}, ...shown.map(row => h("tr", {}, ...row.map((value, index) => h("td", {class: numeric[index] ? "num" : "", title: typeof value === "string" && value.length > 40 ? value : null}, value === null ? h("span", {class: "null"}, "null") : typeof value === "object" ? JSON.stringify(value) : String(value)))))))),
  result.rows.length > SHOWN ? h("p", {class: "soft small", style: {"margin-top": "8px"}}, `The first ${number(SHOWN)} are shown; the CSV has ${number(result.rows.length)}.`) : null);
}

/** As spreadsheets read it; a text that they would take for a formula stays a text. */
export function toCsv({columns, rows}) {
  const cell = value => {
    if (value === null) return "";
    let text = typeof value === "object" ? JSON.stringify(value) : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll("\"", "\"\"")}"` : text;
  };
  return [columns, ...rows].map(row => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function read(key, otherwise) {
  try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; }
}
function write(key, value) {
  try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* not kept then */ }
}
