// Recordings of what every rank did, as files for ui.perfetto.dev.

import {h, show} from "../dom.js";
import {post} from "../api.js";
import {bytes, clock} from "../format.js";
import {watch} from "../poller.js";

export function open(root) {
  const seconds = h("input", {type: "number", min: "1", max: "120", step: "1", value: "10", "aria-label": "Seconds"});
  const record = h("button", {type: "button", class: "primary", onclick: start}, "Record");
  const says = h("p", {class: "reading", role: "status"}), list = h("section", {class: "panel gap"});
  root.append(h("div", {class: "head"}, h("h1", {}, "Traces")), h("section", {class: "panel"}, h("div", {class: "row"}, h("span", {}, "Record the next"), seconds, h("span", {}, "seconds of all ranks"), record), says,
    h("p", {class: "soft small"}, "The file opens in ui.perfetto.dev: calls and endpoints of every actor on one timeline, with arrows from caller to callee.")), list);

  async function start() {
    record.disabled = true;
    try { await post("/api/profile", {seconds: Number(seconds.value)}); says.textContent = ""; } catch (problem) { says.textContent = problem.message; }
    record.disabled = false;
  }
  return watch("/api/profiles", profiles => {
    const running = profiles.some(each => each.state === "recording");
    record.disabled = running;
    show(list, h("header", {}, h("h2", {}, "Recorded")), profiles.length ? h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Begun"), h("th", {class: "num"}, "Seconds"), h("th", {class: "num"}, "Size"), h("th", {}, ""))),
      h("tbody", {}, ...profiles.map(each => h("tr", {}, h("td", {}, clock(each.begun_us)), h("td", {class: "num"}, String(each.seconds)), h("td", {class: "num"}, each.size === null ? "–" : bytes(each.size)),
        h("td", {class: "num"}, each.state === "recording" ? h("span", {class: "soft"}, "recording …") : each.state === "failed" ? h("span", {class: "bad"}, each.problem) : h("a", {href: `/api/profiles/${each.id}`, download: `${each.id}.pftrace`}, "download"))))))) : h("p", {class: "empty"}, "None yet. They are kept as long as the program runs."));
  }, problem => show(list, h("p", {class: "missing"}, problem.message)));
}
