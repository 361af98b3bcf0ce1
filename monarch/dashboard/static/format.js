// Numbers and times as people read them.

export function number(value, digits = 0) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US", {maximumFractionDigits: digits});
}

/** 1234567 as 1.23 M. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (Math.abs(value) >= size) return `${(value / (unit === "k" ? 1e3 : size)).toPrecision(3)} ${unit}`;
  }
  return number(value, Math.abs(value) < 10 ? 1 : 0);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (Math.abs(value) >= 1024 && power < units.length - 1) { value /= 1024; power += 1; }
  return `${power === 0 || value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${units[power]}`;
}

/** Microseconds as 3.2 ms, 45 s, 12 min. */
export function duration(us) {
  if (us === null || us === undefined) return "–";
  if (us < 1e3) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1e3).toPrecision(us < 1e5 ? 2 : 3)} ms`;
  if (us < 1e7) return `${(us / 1e6).toFixed(2)} s`;
  if (us < 12e7) return `${Math.round(us / 1e6)} s`;
  if (us < 72e8) return `${Math.round(us / 6e7)} min`;
  return us < 1728e8 ? `${(us / 36e8).toFixed(1)} h` : `${Math.round(us / 864e8)} days`;
}

/** Clock time of microseconds since the epoch. */
export function clock(us, seconds = true) {
  if (!us) return "–";
  return new Date(us / 1e3).toLocaleTimeString("en-GB", seconds ? {} : {hour: "2-digit", minute: "2-digit"});
}

export function clockMillis(us) {
  return us ? `${clock(us)}.${String(Math.floor(us / 1e3) % 1000).padStart(3, "0")}` : "–";
}

export function plural(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** `Trainer trainers{'gpus': 1/2}` of `<root>.<train.Trainer trainers{'gpus': 1/2}>`. */
export function shortName(displayName, fullName) {
  if (!displayName) return (fullName ?? "").split(".")[0].replace(/<([^>]*)>/, "");
  const at = displayName.lastIndexOf(".<");
  if (at < 0) return displayName.replace(/[<>]/g, "");
  const inner = displayName.slice(at + 2).replace(/>$/, "");
  const [head, ...rest] = inner.split(" ");
  return [head.split(".").pop(), ...rest].join(" ");
}

/** What a failure says in one line: the last of a traceback. */
export function firstLine(text) {
  const lines = (text ?? "").trim().split("\n").filter(line => line.trim());
  if (lines.length === 0) return "";
  return (lines[0].startsWith("Traceback") ? lines[lines.length - 1] : lines[0]).trim();
}

/** A file by its last folder and its name. */
export function shortFile(path) {
  return path.split("/").slice(-2).join("/");
}
