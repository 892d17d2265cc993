// Formatting: elements, ages, times, byte offsets, and commands to copy.
// Text from peers reaches the document only through `textContent`, here and elsewhere.

/** An element with a class and a text. */
export function el(tag, className = "", text = undefined) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function svg(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Created once, as it is expensive.
const numberFormat = new Intl.NumberFormat("en-US");

export const count = (number) => numberFormat.format(number);

export const plural = (number, one, many = `${one}s`) =>
  `${count(number)} ${number === 1 ? one : many}`;

/** `41s`, `3m12s`, `2h05m`, `3d04h`. */
export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const dayFormat = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** A time of day in the local time zone. */
export const clock = (ms) => (Number.isFinite(ms) ? clockFormat.format(ms) : "?");
export const dayAndClock = (ms) => (Number.isFinite(ms) ? dayFormat.format(ms) : "?");

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** A short byte offset: exact if short enough, else rounded and marked with ≈. */
export function offset(byte) {
  if (byte < 100_000) return String(byte);
  for (const [unit, size] of UNITS) {
    if (byte < size) continue;
    const rest = byte % size;
    const whole = Math.floor(byte / size);
    if (rest === 0 && Number.isSafeInteger(byte)) return `${whole} ${unit}`;
    if (rest > 0 && rest < 10_000) return `${whole} ${unit}+${rest}`;
    return `≈${(byte / size).toFixed(byte / size < 100 ? 1 : 0)} ${unit}`;
  }
  return String(byte);
}

/** A number of bytes: `713 B`, `1.4 GiB`. */
export function amount(bytes) {
  const unit = UNITS.find(([, size]) => bytes >= size);
  return unit ? `${(bytes / unit[1]).toFixed(1)} ${unit[0]}` : `${bytes} B`;
}

const exact = (text) => numberFormat.format(text.length < 16 ? Number(text) : BigInt(text));

/** The byte range of a lock, exact. */
export function range(lock) {
  const start = exact(lock.startText);
  return lock.endText === null ? `${start} to the end` : `${start} – ${exact(lock.endText)}`;
}

export const MODES = { read: "READ", write: "WRITE", "read-write": "READ+WRITE", none: "NONE" };

/** A lock in one sentence, for titles and screen readers. */
export function sentence(lock, now) {
  const held = age((now - lock.sinceMs) / 1000);
  const what = lock.kind === "share" ? `a ${MODES[lock.mode]} share` : MODES[lock.mode];
  const bytes = lock.kind === "share" ? "" : ` on bytes ${range(lock)}`;
  if (lock.kind === "waiter") {
    const behind = lock.blockedBy ? `, blocked by ${lock.blockedBy}` : ", queued";
    return `${lock.id}: ${lock.client.name} waits for ${what}${bytes}${behind}, for ${held}`;
  }
  const state = lock.state === "held" ? "holds" : `holds (${lock.state})`;
  return `${lock.id}: ${lock.client.name} ${state} ${what}${bytes}, for ${held}`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** A command with a copy button. */
export function command(text) {
  const box = el("div", "command");
  const code = el("code", "", text);
  const button = el("button", "copy", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", `Copy: ${text}`);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    if (await copy(text)) {
      button.textContent = "Copied";
      announce(`Copied: ${text}`);
    } else {
      // Without clipboard permission, select the text.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  box.append(code, button);
  return box;
}

/** Announces a text to screen readers; `urgent` interrupts. */
export function announce(text, urgent = false) {
  const region = document.getElementById(urgent ? "say-now" : "say");
  if (region && region.textContent !== text) region.textContent = text;
}
