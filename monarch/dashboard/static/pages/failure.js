// One failure: the report, who owned the actor, what failed with it, its last lines, where its process stands, how to replay it.

import {h, show} from "../dom.js";
import {clock, clockMillis, duration, firstLine, plural} from "../format.js";
import {watch} from "../poller.js";

let current = null;

export function open(root, given) {
  let stop = null, drawn = "";
  const top = h("div"), body = h("div");
  root.append(top, body);

  function read(query) {
    const id = query.get("id") ?? "";
    stop?.();
    stop = watch(`/api/failures/${encodeURIComponent(id)}`, found => draw(found, id), problem => { show(body); show(top, h("h1", {}, "Failure"), h("p", {class: "missing"}, problem.message === "actor not found" ? "No actor has this id: it may be of another run." : problem.message)); });
  }

  function draw(found, id) {
    const {actor} = found;
    show(top, h("div", {class: "head"}, h("h1", {}, found.failed ? `${found.name} failed` : `${found.name} has not failed`), h("div", {class: "row"}, h("a", {href: `/actors?id=${id}`}, "its messages and stacks"), found.failed ? h("a", {href: `/logs?at=${found.failed_us}`}, "all logs around it") : null)));
    if (!found.failed) { show(body, h("section", {class: "panel"}, h("p", {class: "empty"}, `It is ${actor.latest_status ?? "unknown"}.`))); return; }
    show(body,
      h("section", {class: "panel sentence wrong"}, h("span", {class: "glyph bad", "aria-hidden": "true"}, "✕"), h("p", {class: "text"}, firstLine(found.reason) || "No reason was given."), h("span", {class: "soft small"}, `at ${clock(found.failed_us)}, ${duration(found.now_us - found.failed_us)} ago${found.first ? "; the first failure" : ""}`)),
      found.is_propagated && found.root_cause ? h("p", {class: "gap"}, "It failed because of another: ", h("b", {}, found.root_cause)) : null,
      h("section", {class: "panel gap"}, h("header", {}, h("h2", {}, "Report")), h("pre", {class: "reason", tabindex: "0", "aria-label": "Report"}, found.reason || "No reason was given.")),
      h("div", {class: "grid two gap"},
        h("section", {class: "panel"}, h("header", {}, h("h2", {}, "Owners")), h("ol", {class: "owners"}, ...found.owners.map((owner, depth) => h("li", {style: {"padding-left": `${depth * 18}px`}}, depth ? "└ " : "", owner.actor_id && owner.actor_id !== id ? h("a", {href: `/actors?id=${owner.actor_id}`}, owner.name) : h("span", {class: depth === found.owners.length - 1 ? "bad" : ""}, owner.name)))),
          h("dl", {class: "facts", style: {"margin-top": "10px"}}, h("dt", {}, "Mesh"), h("dd", {}, actor.mesh_id ? h("a", {href: `/topology?mesh=${actor.mesh_id}`}, actor.mesh_name ?? actor.mesh_id) : "none", actor.rank === null ? "" : `, rank ${actor.rank}`), h("dt", {}, "Reference"), h("dd", {class: "mono"}, actor.full_name))),
        h("section", {class: "panel"}, h("header", {}, h("h2", {}, "Failed as well"), h("span", {class: "soft small"}, found.others.length ? plural(found.others.length, "actor") : "")), found.others.length ? h("ul", {class: "concerns", "data-scroll": "others"}, ...found.others.map(other => h("li", {}, h("span", {class: "glyph bad", "aria-hidden": "true"}, "✕"), h("span", {class: "text"}, h("a", {href: `/failure?id=${other.actor_id}`}, other.name), h("span", {class: "soft"}, `  ${other.reason}`)), h("span", {class: "soft small"}, clockMillis(other.us))))) : h("p", {class: "empty"}, "No other actor failed."))),
      lines("Last lines of its log", found.logged, ""), lines("Last lines that its process printed", found.printed, found.printed_note),
      h("section", {class: "panel gap"}, h("header", {}, h("h2", {}, "Replay")), h("p", {}, "An actor that was recorded runs again alone, up to the failure and under a debugger: set MONARCH_RECORD to the name of its mesh before the program starts, then"), h("pre", {class: "evidence"}, "monarch replay FILE --until-failure --pdb")));
    if (drawn !== id) for (const each of body.querySelectorAll(".loglines")) each.scrollTop = each.scrollHeight;
    drawn = id;
  }

  function lines(title, some, note) {
    return h("section", {class: "panel gap"}, h("header", {}, h("h2", {}, title)), some.length ? h("div", {class: "loglines short", tabindex: "0", role: "region", "aria-label": title, "data-scroll": title}, ...some.map(each => h("div", {class: `logline ${each.level === "ERROR" || each.level === "FAILED" || each.level === "stderr" ? "bad" : ""}`}, h("span", {class: "faint"}, clockMillis(each.us)), h("span", {}, each.level), h("span", {class: "who"}, `${each.mesh ?? ""} ${each.rank ?? ""}`), h("span", {class: "said"}, each.text)))) : h("p", {class: "empty"}, "None are known."), note ? h("p", {class: "soft small"}, note) : null);
  }

  current = {moved: next => { read(next); return true; }};
  read(given);
  return () => { stop?.(); current = null; };
}

export function moved(given) { return current ? current.moved(given) : false; }
