// Questions to the server. Errors carry the server's own words.

export class Failure extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

export async function get(path, signal) {
  return answer(await reach(path, {signal}));
}

export async function post(path, content, signal) {
  return answer(await reach(path, {method: "POST", body: JSON.stringify(content), headers: {"content-type": "application/json"}, signal}));
}

async function reach(path, options) {
  try {
    return await fetch(path, {credentials: "same-origin", cache: "no-store", ...options});
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Failure(0, "the server does not answer");
  }
}

async function answer(response) {
  let content = null;
  try { content = await response.json(); } catch { /* not ours */ }
  if (response.ok && content !== null) return content;
  throw new Failure(response.status, content?.error ?? `the server answered ${response.status}`);
}
