// Elements. Text is always text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

// What turns the order of the text beside it round, so that a name would read as another.
const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const SHOWN = new Set(["title", "aria-label", "placeholder"]);

/** Text as it is shown: what would turn its order round stands there as its number. */
export function plain(text) {
  return String(text).replace(TURNING, found => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** An element: h("a", {href: "/", class: "x", onclick: f}, "text", child, [more]). Properties that are null or false are left out. */
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** As h, for SVG. */
export function s(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : SHOWN.has(name) ? plain(value) : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : plain(child));
  }
}

/** Replaces what is in `element`, unless it would look the same: then selections, scroll and focus stay. */
export function show(element, ...children) {
  const holder = element.namespaceURI === SVG ? s("g") : h("div");
  append(holder, children);
  if (same(element.childNodes, holder.childNodes)) return;
  const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("data-key") : null;
  const scrolled = [...element.querySelectorAll("[data-scroll]")].map(each => [each.dataset.scroll, each.scrollTop, each.scrollLeft]);
  element.replaceChildren(...holder.childNodes);
  for (const [key, top, left] of scrolled) {
    const found = element.querySelector(`[data-scroll="${CSS.escape(key)}"]`);
    if (found) { found.scrollTop = top; found.scrollLeft = left; }
  }
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({preventScroll: true});
}

// What listeners do must follow from what is seen and from attributes (href, data-...): elements that look equal are kept.
function same(before, after) {
  return before.length === after.length && [...before].every((node, index) => node.isEqualNode(after[index]));
}
