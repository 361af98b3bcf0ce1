// How the program is: figures, what needs attention, activity, endpoints, meshes.

import {h, show} from "../dom.js";
import {clock, duration, number, plural, short} from "../format.js";
import {histogram, spark} from "../chart.js";
import {watch} from "../poller.js";
import {ORDER, STATES, glyphColour, known} from "../states.js";
import {sentence} from "./doctor.js";

const KEPT = 60; // points of a small line
const LAST = 300; // seconds

export function open(root) {
  const rates = {calls: [], messages: []};
  let seconds = null;
  const doctor = h("section", {class: "panel sentence", role: "status", "aria-label": "Doctor"});
  const figures = h("dl", {class: "figures", "aria-label": "Figures"});
  const concerns = h("section", {class: "panel", "aria-label": "Needs attention"});
  const activity = h("section", {class: "panel gap", "aria-label": "Activity"});
  const chart = h("div");
  const traffic = h("section", {class: "panel"});
  const slowest = h("section", {class: "panel"});
  const states = h("section", {class: "panel"});
  const meshes = h("section", {class: "panel"});
  const services = h("section", {class: "panel gap", "aria-label": "Services", hidden: ""});
  let activityEnd = null, shown = null, onset = null;

  const choice = h("div", {class: "choice", role: "group", "aria-label": "Which time"},
    ...[["All time", null], ["Last 5 min", LAST]].map(([text, value]) => h("button", {type: "button", "aria-pressed": String(value === null), onclick: event => {
      seconds = value;
      for (const each of choice.children) each.setAttribute("aria-pressed", String(each === event.currentTarget));
      follow();
    }}, text)));
  activity.append(h("header", {}, h("h2", {}, "Messages over time"), choice), chart);
  root.append(h("h1", {class: "visually-hidden"}, "Overview"), doctor, h("div", {class: "gap"}, figures), h("div", {class: "gap"}, concerns), services, activity,
    h("div", {class: "grid two gap"}, slowest, traffic), h("div", {class: "grid two gap"}, meshes, states));

  function follow() {
    activityEnd?.();
    shown = null;
    activityEnd = watch(`/api/message-activity?${seconds ? `seconds=${seconds}` : "to_now=true"}`, value => { shown = value; draw(); });
  }
  function draw() {
    if (!shown) return;
    if (!shown.total && !seconds) return show(chart, h("p", {class: "empty"}, "No messages yet."));
    const each = (shown.end_us - shown.start_us) / shown.buckets.length;
    show(chart, histogram({
      values: shown.buckets, from: shown.start_us, to: Math.max(shown.end_us, shown.start_us + 1), width: Math.max(320, chart.clientWidth || 900),
      format: short, label: `${number(shown.total)} messages from ${clock(shown.start_us)} to ${clock(shown.end_us)}`, onset, onsetText: "first failure",
    }), h("p", {class: "reading"}, `${number(shown.total)} messages; a bar is ${duration(each)}`));
  }
  const resize = () => draw();
  window.addEventListener("resize", resize);

  const ends = [
    watch("/api/summary", summary => {
      if (onset !== summary.timeline.failure_onset_us) { onset = summary.timeline.failure_onset_us; draw(); }
      for (const [name, value] of [["calls", summary.rates.calls_per_s], ["messages", summary.rates.messages_per_s]]) {
        rates[name].push(value);
        if (rates[name].length > KEPT) rates[name].shift();
      }
      doctor.className = `panel sentence ${summary.doctor.state}`;
      show(doctor, ...sentence(summary.doctor, h("a", {href: "/doctor"}, summary.doctor.state === "wrong" ? "evidence" : "doctor")));
      show(figures, ...figuresOf(summary, rates));
      show(concerns, ...concernsOf(summary));
      show(states, ...statesOf(summary));
      show(traffic, ...trafficOf(summary));
    }),
    watch("/api/endpoints", rows => show(slowest, ...slowestOf(rows))),
    watch("/api/services", rows => { services.hidden = !rows.length; show(services, ...servicesOf(rows)); }),
    watch("/api/topology", topology => show(meshes, ...meshesOf(topology))),
  ];
  follow();
  return () => { for (const end of ends) end(); activityEnd?.(); window.removeEventListener("resize", resize); };
}

function figure(name, about, value, unit, under, tone = "") {
  return h("div", {class: "figure", title: about}, h("dt", {}, name), h("dd", {class: tone}, value, unit ? h("small", {}, unit) : null), under instanceof Node ? under : h("dd", {class: "under"}, under ?? ""));
}

function figuresOf(summary, rates) {
  const {actor_counts: actors, message_counts: messages, errors, timeline} = summary;
  const failed = actors.by_status.failed ?? 0, running = messages.by_status.active ?? 0, waiting = messages.by_status.queued ?? 0;
  return [
    figure("Calls", "Calls of meshes (call, broadcast, ...) in the last ten seconds: one to 64 ranks is one call", short(summary.rates.calls_per_s), "a second", spark(rates.calls)),
    figure("Messages", "What calls have sent in the last ten seconds: a call to 64 ranks is 64 messages", short(summary.rates.messages_per_s), "a second", spark(rates.messages)),
    figure("Actors", "Actors of the program, those that have ended included", number(actors.total), "", failed ? `${number(failed)} failed` : `in ${plural(summary.hierarchy_counts.actor_meshes, "mesh").replace(/meshs$/, "meshes")}`, failed ? "bad" : ""),
    figure("Endpoints at work", "Messages whose endpoint has begun and not ended", number(running), "", waiting ? `${plural(waiting, "message")} behind them` : "none waits behind them"),
    figure("Messages ended", "Messages whose endpoint has ended, of all that were received", short(messages.by_status.complete ?? 0), messages.total ? `of ${short(messages.total)}` : "", errors.failed_messages ? `${number(errors.failed_messages)} failed` : "none failed"),
    figure("Recorded", "The time from the first to the last thing that was recorded", timeline.start_us ? duration(timeline.end_us - timeline.start_us) : "–", "", timeline.start_us ? summary.rows_lost ? `${short(summary.rows_lost)} rows lost` : `since ${clock(timeline.start_us)}` : "nothing yet"),
  ];
}

function concernsOf(summary) {
  const head = h("header", {}, h("h2", {}, summary.concerns.length ? "Needs attention" : "Health"),
    h("span", {class: "soft small"}, summary.health_reasons.join(", ")));
  if (summary.concerns.length === 0) return [head, h("p", {class: summary.health_status === "healthy" ? "good" : "soft"}, summary.health_status === "healthy" ? "✓ Nothing needs attention." : summary.health_status === "unknown" ? "Nothing is known to be wrong." : "Nothing has been seen yet.")];
  const glyph = {error: "✕", warning: "!", note: "i"};
  const tone = {error: "bad", warning: "warn", note: "soft"};
  return [head, h("ul", {class: "concerns"}, ...summary.concerns.map(each => h("li", {},
    h("span", {class: `glyph ${tone[each.level]}`, "aria-label": each.level}, glyph[each.level]), h("span", {class: "text"}, each.text),
    each.actor_id ? h("a", {href: `/${each.level === "error" ? "failure" : "actors"}?id=${each.actor_id}`}, "look") : null)))];
}

function statesOf(summary) {
  const counts = Object.entries(summary.actor_counts.by_status).map(([state, count]) => [known(state), count]).sort((a, b) => ORDER.indexOf(a[0]) - ORDER.indexOf(b[0]));
  const total = summary.actor_counts.total;
  return [h("header", {}, h("h2", {}, "Actors by state"), h("span", {class: "soft small"}, summary.system_actors ? `and ${plural(summary.system_actors, "actor")} of the system` : "")),
    total ? h("div", {class: "share", role: "img", "aria-label": counts.map(([state, count]) => `${count} ${state}`).join(", ")}, ...counts.map(([state, count]) => h("span", {style: {background: `var(--${state})`, flex: `${count} 0 0`}, title: `${count} ${state}`}))) : h("p", {class: "empty"}, "No actors yet."),
    h("ul", {class: "legend"}, ...counts.map(([state, count]) => h("li", {}, h("span", {class: "swatch", style: {background: `var(--${state})`, color: glyphColour(state)}, "aria-hidden": "true"}, STATES[state]), h("b", {}, number(count)), state)))];
}

function trafficOf(summary) {
  const rows = Object.entries(summary.message_counts.by_endpoint).sort((a, b) => b[1] - a[1]);
  const most = rows[0]?.[1] ?? 1;
  return [h("header", {}, h("h2", {}, "Traffic by endpoint"), h("span", {class: "soft small"}, rows.length > 8 ? `8 of ${rows.length}` : "")),
    rows.length ? h("div", {class: "bars"}, ...rows.slice(0, 8).flatMap(([name, count]) => [h("span", {class: "name mono", title: name}, name), h("span", {class: "bar", "aria-hidden": "true"}, h("span", {style: {width: `${Math.max(1, 100 * count / most)}%`}})), h("span", {class: "num"}, short(count))])) : h("p", {class: "empty"}, "No messages yet.")];
}

function slowestOf(rows) {
  return [h("header", {}, h("h2", {}, "Slowest endpoints"), h("span", {class: "soft small"}, "from begun to ended")),
    rows.length ? h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Endpoint"), ...["Calls", "Median", "p99", "Longest"].map(text => h("th", {class: "num"}, text)))),
      h("tbody", {}, ...rows.slice(0, 8).map(row => h("tr", {}, h("td", {class: "mono clip"}, row.endpoint), h("td", {class: "num"}, short(row.calls)), ...["median_us", "p99_us", "max_us"].map(key => h("td", {class: "num"}, duration(row[key])))))))) : h("p", {class: "empty"}, "No endpoint has ended yet.")];
}

function servicesOf(rows) {
  const cell = value => value === null ? "–" : number(value);
  const columns = ["Outstanding", "Answered", "Mean", "p99", "Batch", "Version"];
  const ofService = service => {
    const errors = Object.entries(service.not_answered).map(([error, count]) => `${short(count)} ${error}`).join(", ");
    return h("tbody", {"aria-label": service.name}, h("tr", {}, h("th", {colspan: String(columns.length + 1), scope: "rowgroup", class: "group"}, h("span", {class: "name"}, service.name), errors ? h("span", {class: "soft"}, `not answered: ${errors}`) : null)),
      ...service.replicas.map(each => h("tr", {}, h("td", {}, String(each.replica)), h("td", {class: "num"}, cell(each.outstanding)), h("td", {class: "num"}, short(each.answered)),
        ...["mean_us", "p99_us"].map(key => h("td", {class: "num"}, each[key] === null ? "–" : duration(each[key]))), h("td", {class: "num"}, each.batch === null ? "–" : each.batch.toFixed(1)), h("td", {class: "num"}, cell(each.version)))));
  };
  return [h("header", {}, h("h2", {}, "Services"), h("span", {class: "soft small"}, "from arrival to answer")),
    h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Replica"), ...columns.map(text => h("th", {class: "num"}, text)))), ...rows.map(ofService)))];
}

function meshesOf(topology) {
  const meshes = topology.meshes.filter(mesh => mesh.class !== "Proc");
  return [h("header", {}, h("h2", {}, "Meshes"), h("a", {href: "/topology", class: "small"}, "all ranks")),
    meshes.length ? h("ul", {class: "concerns"}, ...meshes.slice(0, 8).map(mesh => {
      const counts = Object.entries(mesh.counts).sort((a, b) => ORDER.indexOf(a[0]) - ORDER.indexOf(b[0]));
      return h("li", {}, h("span", {class: "state-dot", style: {background: `var(--${counts[0][0]})`}, "aria-hidden": "true"}), h("span", {class: "text"}, h("a", {href: `/topology?mesh=${mesh.id}`}, mesh.name), h("span", {class: "soft"}, `  ${mesh.class.replace(/^Python<(.*)>$/, "$1")}`)),
        h("span", {class: "soft small"}, counts.map(([state, count]) => `${number(count)} ${state}`).join(" · ")));
    })) : h("p", {class: "empty"}, "No meshes yet.")];
}
