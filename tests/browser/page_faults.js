// What keeps people from reading or using the page that is open: a sentence for each, none for a good page. One call looks at
// all of it, in the colours and the width that the page has now. `width`: what it may not be wider than, in pixels.
(width) => {
  const found = new Set();
  const fault = (what, element) => found.add(`${what}: ${said(element)}`);
  const styles = new Map();
  const styleOf = element => styles.get(element) ?? styles.set(element, getComputedStyle(element)).get(element);
  const said = element => {
    const from = element.getAttribute("class") ?? "", text = (element.textContent ?? "").trim().replace(/\s+/g, " ").slice(0, 40);
    return `<${element.localName}${element.id ? ` id=${element.id}` : ""}${from ? ` class="${from}"` : ""}>${text}`;
  };
  const up = function* (element) { for (let at = element; at; at = at.parentElement) yield at; };

  // --- what is seen

  const shown = new Map();
  function seen(element) {
    if (!element) return true;
    if (!shown.has(element)) shown.set(element, seenItself(element) && seen(element.parentElement));
    return shown.get(element);
  }
  function seenItself(element) {
    const style = styleOf(element);
    if (style.display === "none" || style.opacity === "0" || style.clipPath === "inset(50%)" || style.clip === "rect(0px, 0px, 0px, 0px)") return false;
    if (style.display === "contents") return true;
    if (!element.checkVisibility({visibilityProperty: true}) && element.checkVisibility()) return [...element.children].some(each => styleOf(each).visibility === "visible");
    const box = element.getBoundingClientRect();
    return element.checkVisibility() && box.right > 0 && (box.bottom > -scrollY || style.position !== "absolute");
  }
  const onScreen = element => seen(element) && styleOf(element).visibility === "visible" && element.getBoundingClientRect().width > 1;

  // --- contrast

  const brush = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true}), colours = new Map();
  /** A colour of any notation as red, green, blue (of 255) and how much of it there is (of 1). */
  function colour(text) {
    if (!colours.has(text)) {
      brush.clearRect(0, 0, 1, 1);
      brush.fillStyle = text;
      brush.fillRect(0, 0, 1, 1);
      const [red, green, blue, there] = brush.getImageData(0, 0, 1, 1).data;
      colours.set(text, [red, green, blue, there / 255]);
    }
    return colours.get(text);
  }
  const over = (top, ground) => [0, 1, 2].map(each => top[each] * top[3] + ground[each] * (1 - top[3]));
  function luminance(rgb) {
    const [red, green, blue] = rgb.map(each => each / 255).map(each => each <= .04045 ? each / 12.92 : ((each + .055) / 1.055) ** 2.4);
    return .2126 * red + .7152 * green + .0722 * blue;
  }
  function ratio(one, other) {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + .05) / (dark + .05);
  }
  const grounds = new Map();
  /** The colour behind what is in `element`: all layers below each other. In a drawing, the shape below that it lies on. */
  function ground(element) {
    if (!element) return matchMedia("(prefers-color-scheme: dark)").matches && styleOf(document.documentElement).colorScheme.includes("dark") ? [18, 18, 18] : [255, 255, 255];
    if (!grounds.has(element)) {
      const own = colour(element.ownerSVGElement ? "rgba(0, 0, 0, 0)" : styleOf(element).backgroundColor);
      grounds.set(element, own[3] === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement)));
    }
    return grounds.get(element);
  }
  function groundOfDrawn(text) {
    const box = text.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    let below = ground(text.ownerSVGElement);
    for (const shape of text.ownerSVGElement.querySelectorAll("rect, circle, ellipse, polygon, path")) {
      if (!(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) break;
      const style = styleOf(shape), at = shape.getBoundingClientRect();
      if (shape.closest("defs, marker, clipPath") || style.fill === "none" || style.fill.startsWith("url") || x < at.left || x > at.right || y < at.top || y > at.bottom) continue;
      const [red, green, blue, there] = colour(style.fill);
      below = over([red, green, blue, there * Number(style.fillOpacity) * faded(shape)], below);
    }
    return below;
  }
  const faded = element => [...up(element)].reduce((all, each) => all * Number(styleOf(each).opacity), 1);
  function readable(element, style, of) {
    const drawn = element.ownerSVGElement !== null && element.ownerSVGElement !== undefined;
    const [red, green, blue, there] = colour(drawn ? style.fill : style.color);
    const ink = [red, green, blue, there * faded(element)];
    if (!there) return;
    const behind = drawn ? groundOfDrawn(element) : ground(element);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    const has = ratio(over(ink, behind), behind), wanted = large ? 3 : 4.5;
    if (has < wanted) fault(`${of} has a contrast of ${has.toFixed(2)}, below ${wanted}`, element);
  }
  const read = new Set();
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const element = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || read.has(element) || ["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "OPTION"].includes(element.tagName)) continue;
    if (["title", "desc"].includes(element.localName) && element.ownerSVGElement) continue;
    read.add(element);
    if (!element.closest(":disabled, [aria-disabled=true]") && onScreen(element)) readable(element, styleOf(element), "text");
  }
  const fields = [...document.querySelectorAll("input:not([type=hidden]), select, textarea")];
  for (const field of fields.filter(onScreen)) {
    if (field.disabled || ["checkbox", "radio", "range"].includes(field.type)) continue;
    readable(field, styleOf(field), "a field's text");
    if (field.placeholder) readable(field, getComputedStyle(field, "::placeholder"), "a field's placeholder");
  }

  // --- the keyboard

  const OWN = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex], [onclick], label[for], [role=button], [role=link], [role=tab], [role=treeitem]";
  const MANY = "[role=tree], [role=grid], [role=listbox], [role=tablist], [role=menu], [role=radiogroup], [role=toolbar]"; // arrows move in them
  const reached = element => element.tabIndex >= 0 && !element.disabled && element.checkVisibility({visibilityProperty: true});
  const listening = window.clickedElements ?? new Set();
  const clickable = new Set([...document.querySelectorAll(OWN)].filter(each => !each.matches("[tabindex='-1']:not([role], button, a, input)")));
  for (const element of document.body.querySelectorAll("*")) {
    if (listening.has(element) || (styleOf(element).cursor === "pointer" && styleOf(element.parentElement).cursor !== "pointer")) clickable.add(element);
  }
  const clicked = [...clickable].filter(each => onScreen(each) && !each.disabled);
  for (const element of clicked) {
    const group = element.closest(MANY);
    const label = element.closest("label");
    const by = [...up(element)].some(each => reached(each)) || [...element.querySelectorAll("*")].some(reached)
      || (group && [...group.querySelectorAll("[tabindex='0']")].some(reached)) || (label?.control && reached(label.control))
      || (element.localName === "label" && !element.control);
    if (!by) fault("the keyboard does not reach what can be clicked", element);
  }
  const looks = element => [element, ...element.children].map(getComputedStyle).map(style => [style.boxShadow, style.backgroundColor, style.borderColor, style.textDecoration, style.color, style.stroke, style.strokeWidth].join("|")).join();
  const kinds = new Set();
  const before = document.activeElement, scrolled = [scrollX, scrollY];
  const controlled = element => element.localName === "label" && element.control && !onScreen(element.control) ? element.control : element;
  for (const element of clicked.filter(each => reached(controlled(each)))) {
    const kind = [...up(element)].slice(0, 4).map(each => `${each.localName}.${each.getAttribute("class") ?? ""}`).join("<") + (element.type ?? "");
    if (kinds.has(kind)) continue;
    kinds.add(kind);
    document.activeElement.blur();
    const away = looks(element);
    controlled(element).focus({preventScroll: true, focusVisible: true});
    const style = getComputedStyle(element), line = colour(style.outlineColor);
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 && line[3] > 0;
    if (document.activeElement !== controlled(element)) fault("cannot have the focus", element);
    else if (!outlined && looks(element) === away) fault("its focus cannot be seen", element);
    else if (outlined && style.outlineStyle !== "auto") {
      const behind = ground(parseFloat(style.outlineOffset) < 0 ? element : element.parentElement), has = ratio(over(line, behind), behind);
      if (has < 3) fault(`the outline of its focus has a contrast of ${has.toFixed(2)}, below 3`, element);
    }
  }
  for (const element of [...document.querySelectorAll(OWN)].filter(each => reached(each))) {
    const box = element.getBoundingClientRect();
    if (box.right > 0 && box.left < innerWidth) continue;
    if ([...up(element)].some(each => ["auto", "scroll"].includes(styleOf(each).overflowX) && each !== document.body)) continue;
    element.focus({preventScroll: true, focusVisible: true});
    const then = element.getBoundingClientRect();
    if (then.right <= 0 || then.left >= innerWidth) fault("takes the focus where nobody sees it", element);
  }
  document.activeElement?.blur();
  before?.focus?.({preventScroll: true});
  scrollTo(...scrolled);

  // --- what is read out

  const called = element => Boolean(element.getAttribute("aria-label")?.trim() || element.getAttribute("title")?.trim()
    || (element.getAttribute("aria-labelledby") ?? "").split(/\s+/).some(id => id && document.getElementById(id)?.textContent.trim()));
  const silent = element => Boolean(element.closest("[aria-hidden=true]"));
  for (const image of [...document.images].filter(each => onScreen(each) && !silent(each))) {
    if (!image.hasAttribute("alt") || /\.(png|jpe?g|gif|svg|webp)$/.test(image.alt)) fault("an image without a text for those who do not see it", image);
  }
  for (const drawing of [...document.querySelectorAll("svg, canvas")].filter(each => onScreen(each) && !silent(each))) {
    if (!drawing.getAttribute("role") || !(called(drawing) || drawing.querySelector(":scope > title"))) fault("a drawing with neither role and label nor aria-hidden", drawing);
  }
  for (const field of fields.filter(each => onScreen(each) && !silent(each))) {
    if (!["submit", "button"].includes(field.type) && !called(field) && ![...field.labels].some(each => each.textContent.trim())) fault("a field without a label", field);
  }
  for (const element of [...document.querySelectorAll("a[href], button, summary")].filter(each => onScreen(each) && !silent(each))) {
    const text = [...element.querySelectorAll("img[alt]")].some(each => each.alt.trim()) || element.textContent.trim();
    if (!text && !called(element) && !element.querySelector("svg > title, [aria-label]")) fault("nothing says what it does", element);
  }
  let level = 0, first = 0;
  for (const heading of [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(each => each.checkVisibility({visibilityProperty: true}) && !silent(each))) {
    const its = Number(heading.localName[1]);
    first += its === 1 ? 1 : 0;
    if (its > level + 1) fault(`a heading h${its} follows ${level ? `h${level}` : "none"}`, heading);
    level = its;
  }
  if (first !== 1) found.add(`the page has ${first} headings h1`);
  if (!document.title.trim()) found.add("the document has no title");
  if (!document.documentElement.lang) found.add("the document says no language");
  if (document.documentElement.scrollWidth > width) found.add(`the page is ${document.documentElement.scrollWidth} pixels wide, and the window ${width}`);
  return [...found];
}
