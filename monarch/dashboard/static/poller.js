// One poll per path, shared by all who look; paused while the tab is hidden.

import {get} from "./api.js";

const EVERY = 2500;   // ms between the end of one and the next
const LATE = 8000;    // ms without an answer: reconnecting
const SLOWEST = 15000;
const SHARE = 8;      // of the time at most an eighth is spent on asking: large answers are asked for less often

const feeds = new Map();
export const life = {last: 0, since: Date.now(), problem: null};

class Feed {
  constructor(path) {
    this.path = path; this.listeners = new Set(); this.value = undefined; this.timer = null; this.failures = 0; this.control = null;
  }

  async ask() {
    clearTimeout(this.timer);
    this.timer = null;
    if (document.hidden || this.listeners.size === 0 || this.control) return;
    this.control = new AbortController();
    const began = performance.now();
    const limit = setTimeout(() => this.control?.abort(), SLOWEST);
    try {
      this.value = await get(this.path, this.control.signal);
      this.failures = 0;
      life.last = Date.now();
      life.problem = null;
      for (const listener of [...this.listeners]) listener.value(this.value);
    } catch (problem) {
      this.failures += 1;
      if (!problem.status) life.problem = problem.message;
      else life.last = Date.now();
      for (const listener of [...this.listeners]) if (problem.status) listener.problem?.(problem);
    } finally {
      clearTimeout(limit);
      this.control = null;
      if (this.listeners.size) this.timer = setTimeout(() => this.ask(), Math.max(Math.min(EVERY * 2 ** Math.min(this.failures, 2), 8000), SHARE * (performance.now() - began)));
    }
  }
}

/** Calls `value` with each answer of `path`, `problem` with each refusal. Returns how to end it. */
export function watch(path, value, problem) {
  let feed = feeds.get(path);
  if (!feed) feeds.set(path, feed = new Feed(path));
  const listener = {value, problem};
  feed.listeners.add(listener);
  if (feed.value !== undefined) value(feed.value);
  if (!feed.timer && !feed.control) feed.ask();
  return () => {
    feed.listeners.delete(listener);
    if (feed.listeners.size === 0) { clearTimeout(feed.timer); feed.timer = null; feed.control?.abort(); feeds.delete(path); }
  };
}

/** The state of the connection: "live", "reconnecting" or "paused", and the age of the last answer in seconds. */
export function connection() {
  if (document.hidden) return {state: "paused", age: 0};
  const age = (Date.now() - (life.last || life.since)) / 1e3;
  const late = life.problem !== null || age * 1e3 > LATE;
  return {state: late ? "reconnecting" : life.last ? "live" : "connecting", age, seen: life.last > 0};
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const feed of feeds.values()) if (!feed.control) feed.ask();
});
