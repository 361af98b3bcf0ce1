// What the doctor finds: each with its evidence and what to do, and what was found before.

import {h, show} from "../dom.js";
import {clock, duration, number, plural} from "../format.js";
import {watch} from "../poller.js";

const GLYPH = {well: "✓", wrong: "✕", unknown: "…"}, TONE = {well: "good", wrong: "bad", unknown: "soft"};

/** The sentence of the doctor, as it stands on top of a page. */
export function sentence(doctor, more = null) {
  return [h("span", {class: `glyph ${TONE[doctor.state]}`, "aria-hidden": "true"}, GLYPH[doctor.state]), h("p", {class: "text"}, doctor.sentence), more];
}

export function open(root) {
  const top = h("section", {class: "panel sentence", role: "status"}), found = h("div"), notes = h("section", {class: "panel gap", hidden: ""}), past = h("section", {class: "panel gap"});
  root.append(h("div", {class: "head"}, h("h1", {}, "Doctor")), top, found, notes, past);
  return watch("/api/doctor", doctor => {
    top.className = `panel sentence ${doctor.state}`;
    show(top, ...sentence(doctor, h("span", {class: "soft small"}, doctor.at_us ? `${number(doctor.looked_at)} processes looked at ${clock(doctor.at_us)}` : "")));
    show(found, ...doctor.findings.map((each, index) => card(each, index)));
    notes.hidden = !doctor.notes.length;
    show(notes, h("header", {}, h("h2", {}, "Takes long, and may be as it should be")), h("ul", {class: "plainlist"}, ...doctor.notes.map(text => h("li", {}, text))));
    show(past, h("header", {}, h("h2", {}, "History"), h("span", {class: "soft small"}, "looks every ten seconds, while somebody has a page open")), doctor.history.length ? h("div", {class: "scroll"}, h("table", {},
      h("thead", {}, h("tr", {}, ...["Since", "For", "Finding"].map(text => h("th", {}, text)))),
      h("tbody", {}, ...doctor.history.map(each => h("tr", {}, h("td", {class: "soft"}, clock(each.since_us)), h("td", {class: "nowrap"}, each.until_us ? duration(each.until_us - each.since_us) : h("span", {class: "bad"}, "lasts")), h("td", {class: "wrap"}, each.title)))))) : h("p", {class: "empty"}, "Nothing was wrong at any look."));
  }, problem => show(found, h("p", {class: "missing"}, problem.message)));
}

function card(each, index) {
  return h("section", {class: "panel gap finding", id: `finding-${index + 1}`}, h("header", {}, h("h2", {class: "wrap"}, `${index + 1}. ${each.title}`), h("span", {class: "chip"}, each.kind)),
    each.mesh || each.ranks.length ? h("p", {class: "small"}, h("span", {class: "soft"}, "Whose fault it seems: "), each.mesh || "", each.ranks.length ? ` ${each.ranks.length === 1 ? "rank" : "ranks"} ${some(each.ranks)}` : "") : null,
    each.evidence.length ? h("pre", {class: "evidence", tabindex: "0", "aria-label": `Evidence of finding ${index + 1}`}, each.evidence.slice(0, 40).join("\n"), each.evidence.length > 40 ? `\n(and ${plural(each.evidence.length - 40, "line")} more)` : "") : null,
    h("p", {class: "advice"}, h("b", {}, "What to do: "), each.advice));
}

/** 0, 2-5 of [0, 2, 3, 4, 5]; many are cut. */
export function some(ranks) {
  const parts = [];
  for (const rank of ranks) {
    const last = parts.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  const shown = parts.slice(0, 12).map(([first, last]) => first === last ? number(first) : `${number(first)}-${number(last)}`);
  return `${shown.join(", ")}${parts.length > 12 ? " …" : ""}`;
}
