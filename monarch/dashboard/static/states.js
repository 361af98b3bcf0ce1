// The states of actors: colour (in style.css), glyph and the order in which they are listed, the worst first.

export const STATES = {
  failed: "✕", unknown: "?", stopping: "⌄", processing: "▸", initializing: "◔", created: "◌",
  loading: "↓", saving: "↑", idle: "·", client: "★", stopped: "■", absent: " ",
};
export const ORDER = Object.keys(STATES);

export function known(state) {
  return state in STATES ? state : "unknown";
}

/** The colour that style.css gives a role, as a canvas needs it. */
export function colour(role) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${role}`).trim();
}

/** The colour of a glyph on that of a state, which is read on it in both themes. */
export function glyphColour(state) {
  return `var(--on-${state}, var(--on-state))`;
}
