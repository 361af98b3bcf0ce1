// The panel at the right with what was chosen. Escape closes it and gives the focus back.

import {h} from "./dom.js";

const drawer = document.getElementById("drawer");
let opener = null;
let onClose = null;

/** Opens it with a title and content, or changes what is in it. */
export function openDrawer(title, content, {closed = null, focus = true} = {}) {
  if (drawer.hidden) opener = document.activeElement;
  onClose = closed;
  const keep = drawer.contains(document.activeElement);
  drawer.replaceChildren(
    h("header", {}, h("h2", {id: "drawer-title", tabindex: "-1"}, title), h("button", {type: "button", class: "icon", "aria-label": "Close", onclick: closeDrawer}, "✕")),
    ...[content].flat(),
  );
  const was = drawer.hidden;
  drawer.hidden = false;
  if (focus && (was || keep)) drawer.querySelector("#drawer-title").focus({preventScroll: true});
}

export function closeDrawer() {
  if (drawer.hidden) return;
  const inside = drawer.contains(document.activeElement) || document.activeElement === document.body;
  drawer.hidden = true;
  drawer.replaceChildren();
  onClose?.();
  onClose = null;
  if (inside && opener?.isConnected) opener.focus({preventScroll: true});
}

document.addEventListener("keydown", event => {
  if (event.key === "Escape" && !drawer.hidden) { event.preventDefault(); closeDrawer(); }
});
