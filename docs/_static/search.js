// The search of the site: sections of window.SECTIONS, ranked by the words that they have (Okapi BM25, k1 = 1.2, b = 0.75). A section
// need not have all words: it counts the more, the more of them it has. No server is asked: it works from files.
"use strict";

(() => {
  const SHOWN = 30;
  const EXCERPT = 240; // characters
  const NOISE = new Set(
    "a an and are as at be but by can do does for from get has have how i if in is it its me my no not of on or so than that the then there this to was what when where which who why with you your after before".split(" "),
  );
  // What people call it, and what the pages do. Each word finds the others of its line.
  const ALIKE = [
    "hang stuck deadlock freeze block",
    "kill die death dead crash",
    "install setup",
    "gpu cuda device",
    "checkpoint save resume",
    "slow fast speed performance",
    "log print output",
    "machine host node",
    "rank worker",
  ];

  const stem = (word) => {
    if (word.length < 4 || /[_\d.]/.test(word)) return word;
    const short = word
      .replace(/(ss|us|is)$/, "$1+")
      .replace(/ies$/, "y")
      .replace(/(ing|edly|ed|es|s|ly)$/, "")
      .replace(/\+$/, "");
    const root = short.length < 3 ? word : short;
    return root.replace(/([^aeiouls])\1$/, "$1").replace(/e$/, "");
  };
  const words = (text) => (text.toLowerCase().match(/[a-z0-9_]+/g) ?? []).filter((word) => word.length > 1 || /\d/.test(word));
  const stems = (text) => words(text).flatMap((word) => [word, ...(word.includes("_") ? word.split("_").filter(Boolean) : [])]).map(stem);

  const alike = new Map();
  for (const line of ALIKE) {
    const group = line.split(" ").map(stem);
    for (const word of group) alike.set(word, group.filter((other) => other !== word));
  }

  const sections = [];
  for (const [page, weight, inside] of window.SECTIONS ?? []) {
    const title = inside[0][1];
    for (const [anchor, heading, text] of inside) {
      const counts = new Map();
      let length = 0;
      for (const word of stems(text)) {
        counts.set(word, (counts.get(word) ?? 0) + 1);
        length += 1;
      }
      const named = new Map(stems(title).map((word) => [word, 0.7]));
      for (const word of stems(heading)) named.set(word, 1.4);
      for (const word of named.keys()) if (!counts.has(word)) counts.set(word, 0);
      sections.push({ page, weight, title, anchor, heading, text, counts, named, length });
    }
  }
  const average = sections.reduce((sum, one) => sum + one.length, 0) / (sections.length || 1);
  const holders = new Map();
  for (const one of sections) for (const word of one.counts.keys()) holders.set(word, (holders.get(word) ?? 0) + 1);
  const rarity = (word) => Math.log(1 + (sections.length - (holders.get(word) ?? 0) + 0.5) / ((holders.get(word) ?? 0) + 0.5));
  const known = [...holders.keys()];

  /** What a word of the text counts, and more where the section or its page is named so. */
  const strength = (one, word) => {
    const count = one.counts.get(word);
    if (count === undefined) return 0;
    const inText = (count * 2.2) / (count + 1.2 * (0.25 + (0.75 * one.length) / average));
    return rarity(word) * (inText + (one.named.get(word) ?? 0));
  };

  /** What a word of the query may stand for: itself, what begins with it, what is meant by it too. */
  const meant = (word) => {
    const found = new Map([[word, 1]]);
    if (word.length > 2) for (const other of known) if (other !== word && other.startsWith(word)) found.set(other, 0.6);
    for (const other of alike.get(word) ?? []) found.set(other, Math.max(0.5, found.get(other) ?? 0));
    return [...found];
  };

  const find = (query) => {
    const said = words(query);
    const telling = said.filter((word) => !NOISE.has(word));
    const asked = [...new Set((telling.length ? telling : said).map(stem))].map(meant);
    const phrase = query.trim().toLowerCase().replace(/\s+/g, " ");
    const ranked = [];
    for (const one of sections) {
      let sum = 0;
      let has = 0;
      let all = 0;
      for (const words of asked) {
        const best = Math.max(...words.map(([word, part]) => part * strength(one, word)));
        const telling = Math.max(...words.map(([word]) => rarity(word)));
        sum += best;
        all += telling;
        has += best > 0 ? telling : 0;
      }
      if (!has) continue;
      if (one.heading.toLowerCase().endsWith(phrase)) sum *= 3;
      else if (said.length > 1 && one.text.toLowerCase().includes(phrase)) sum *= 2;
      ranked.push({ ...one, score: sum * one.weight * (has / all) ** 2 });
    }
    ranked.sort((a, b) => b.score - a.score);
    const pages = new Map(); // two sections of a page at most
    const kept = ranked.filter((one) => {
      const before = pages.get(one.page) ?? 0;
      pages.set(one.page, before + 1);
      return before < 2;
    });
    return { results: kept.slice(0, SHOWN), asked: asked.map((words) => words.map(([word]) => word)) };
  };

  /** The part of a text that has most of the words, with these marked. */
  const excerpt = (text, asked) => {
    const wanted = new Set(asked.flat());
    const places = [...text.matchAll(/[A-Za-z0-9_]+/g)].filter((match) => stems(match[0]).some((word) => wanted.has(word)));
    let from = 0;
    let most = 0;
    for (const { index } of places) {
      const kinds = new Set(places.filter((other) => other.index >= index && other.index < index + EXCERPT).map((other) => stem(other[0].toLowerCase())));
      if (kinds.size > most) [from, most] = [Math.max(0, index - 40), kinds.size];
    }
    if (from) from = text.indexOf(" ", from) + 1;
    const to = Math.min(text.length, from + EXCERPT);
    const shown = document.createElement("p");
    let at = from;
    for (const match of places.filter((match) => match.index >= from && match.index + match[0].length <= to)) {
      const mark = document.createElement("mark");
      mark.textContent = match[0];
      shown.append(text.slice(at, match.index), mark);
      at = match.index + match[0].length;
    }
    shown.prepend(from ? "... " : "");
    shown.append(text.slice(at, to), to < text.length ? " ..." : "");
    return shown;
  };

  const root = document.documentElement.dataset.content_root ?? "./";
  const box = document.querySelector(".search-form input");
  const list = document.getElementById("search-results");
  const summary = document.getElementById("search-summary");

  const show = (query) => {
    list.replaceChildren();
    if (!query.trim()) {
      summary.textContent = "";
      return;
    }
    const { results, asked } = find(query);
    summary.textContent = results.length
      ? `${results.length === SHOWN ? "The first " : ""}${results.length} section${results.length === 1 ? "" : "s"}`
      : "Nothing has any of these words. An error's page is found by the words of its text that do not change.";
    for (const one of results) {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${root}${one.page}.html${one.anchor ? `#${one.anchor}` : ""}`;
      link.textContent = one.heading === one.title ? one.title : `${one.title} > ${one.heading}`;
      item.append(link, excerpt(one.text, asked));
      list.append(item);
    }
  };

  const query = new URLSearchParams(location.search).get("q") ?? "";
  box.value = query;
  show(query);
  let later = 0;
  box.addEventListener("input", () => {
    clearTimeout(later);
    later = setTimeout(() => {
      history.replaceState(null, "", box.value.trim() ? `?q=${encodeURIComponent(box.value)}` : location.pathname);
      show(box.value);
    }, 120);
  });
  box.form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(box.value);
  });
})();
