// The lock map: a row per file with its bar; expanding a row lists its locks.

import { barHeight, drawBar, drawOne, hiddenIn, layoutOf, placed } from "./bar.js";
import { paint } from "./colours.js";
import { Filter } from "./filter.js";
import { List, NARROW_PX } from "./list.js";
import { MODES, age, count, el, plural, range, sentence } from "./words.js";

const LOCK_ROW_PX = 34;
const ROW_PADDING_PX = 20;
const ROW_PX_MIN = 62;
const NAME_PX = 270;
const NAME_LINE_PX = 26;

const isFile = (item) => item.held !== undefined;

export class LockMap {
  constructor(store, details) {
    this.store = store;
    this.details = details;
    this.filter = new Filter();
    this.opened = new Set();
    this.timer = null;
    this.costMs = 0;
    /** With a single export, relative paths suffice. */
    this.hasExports = false;
    this.scroller = document.getElementById("map");
    this.note = document.getElementById("map-note");
    this.empty = document.getElementById("map-empty");
    this.list = new List(this.scroller, {
      key: (item) => (isFile(item) ? `f${item.key}` : `l${item.id}`),
      version: (item) => this.#version(item),
      height: (item) => this.#height(item),
      row: (item) => (isFile(item) ? this.#fileRow(item) : this.#lockRow(item)),
      placed,
      onKey: (event, item, row) => this.#key(event, item, row),
    });
    this.scroller.addEventListener("click", (event) => this.#click(event));
    store.on("locks", () => this.soon());
    store.visibleFiles = () => this.list.visible().filter(isFile);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.list.rows.forEach((row) => placed(row.element));
    });
  }

  setFilter(filter) {
    this.filter = filter;
    const sweep = this.store.locksSweep;
    if (sweep.isTruncated) sweep.sift(filter.query());
    this.refresh();
  }

  /** Schedules a refresh, less often the longer it takes. */
  soon() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.refresh();
    }, Math.min(2_000, this.costMs * 15));
  }

  refresh() {
    if (this.scroller.offsetParent === null) return;
    const begun = performance.now();
    this.hasExports = this.store.files.exports.size > 1;
    const files = this.store.files.list(this.filter);
    let items = files;
    if (this.opened.size > 0) {
      items = [];
      for (const file of files) {
        items.push(file);
        if (!this.opened.has(file.key)) continue;
        const layout = layoutOf(file);
        for (const lock of layout.waiters) items.push(lock);
        for (const lock of layout.held) items.push(lock);
      }
    }
    this.list.set(items);
    this.#say(files.length);
    this.costMs = performance.now() - begun;
  }

  /** Moves to a lock and opens its details. */
  show(lockId) {
    const lock = this.store.files.locks.get(lockId);
    if (lock) this.details.lock(lock);
  }

  get #isNarrow() {
    return this.list.width < NARROW_PX;
  }

  get #barWidth() {
    const inside = this.list.width - 32;
    return Math.max(120, this.#isNarrow ? inside : inside - NAME_PX - 16);
  }

  #say(shown) {
    const { locksSweep: sweep, files } = this.store;
    const known = files.locks.size;
    const words = [`${plural(shown, "file")}`];
    if (!this.filter.isEmpty) words[0] += ` match${shown === 1 ? "es" : ""}`;
    if (!sweep.isComplete && sweep.total > 1000) {
      words.push(`loaded ${count(known)} of ${count(sweep.total)} locks`);
    } else if (sweep.isTruncated && sweep.total > known) {
      words.push(`first ${count(known)} of ${count(sweep.total)} locks; filter by client:, path: or state:`);
    }
    this.note.textContent = words.join(" · ");
    this.empty.hidden = shown > 0;
    if (shown > 0) return;
    if (sweep.problem) this.empty.textContent = sweep.problem;
    else if (!this.filter.isEmpty) this.empty.textContent = "No matches.";
    else this.empty.textContent = sweep.isComplete ? "No locks." : "Loading locks …";
  }

  #version(item) {
    if (!isFile(item)) return `${item.state}/${item.blockedBy}/${item.file.version}`;
    const open = this.opened.has(item.key);
    return `${item.version}/${open}/${this.list.width}/${this.filter.text}`;
  }

  #height(item) {
    if (!isFile(item)) return LOCK_ROW_PX;
    const bar = barHeight(item) + ROW_PADDING_PX;
    return this.#isNarrow ? bar + NAME_LINE_PX : Math.max(ROW_PX_MIN, bar);
  }

  #fileRow(file) {
    const open = this.opened.has(file.key);
    const row = el("div", "file-row");
    row.style.height = `${this.#height(file)}px`;
    row.setAttribute("role", "row");
    row.setAttribute("aria-level", "1");
    row.setAttribute("aria-expanded", String(open));
    row.append(this.#name(file, open));
    const cell = el("div", "bar-cell");
    cell.setAttribute("role", "gridcell");
    const dim = (lock) => !this.filter.isEmpty && !this.filter.lock(lock);
    cell.append(drawBar(file, this.#barWidth, dim, Date.now()));
    row.append(cell);
    return row;
  }

  #name(file, open) {
    const cell = el("div", "name-cell");
    cell.setAttribute("role", "rowheader");
    const shown = this.hasExports ? file.shown : file.path ?? file.shown;
    // Only a path has a last name.
    const cut = file.path === null ? 0 : shown.lastIndexOf("/") + 1;
    const name = el("div", "file-name");
    name.title = file.shown;
    const toggle = el("span", open ? "twist open" : "twist");
    toggle.setAttribute("aria-hidden", "true");
    const path = el("bdi", "path");
    if (cut > 0) path.append(el("span", cut < 6 ? "dir short" : "dir", shown.slice(0, cut)));
    path.append(el("span", "base", shown.slice(cut)));
    name.append(toggle, path);
    const facts = el("div", "file-facts");
    facts.append(el("span", "", plural(file.held.length, "lock")));
    const unconfirmed = file.held.filter((lock) => lock.state !== "held").length;
    if (unconfirmed) facts.append(el("span", "warn", `${count(unconfirmed)} unconfirmed`));
    if (file.waiters.length) facts.append(el("span", "wait", `${count(file.waiters.length)} waiting`));
    const hidden = hiddenIn(file);
    if (hidden.waiters + hidden.held > 0) {
      facts.append(el("span", "", `${count(hidden.waiters + hidden.held)} not drawn`));
    }
    cell.append(name, facts);
    return cell;
  }

  #lockRow(lock) {
    const row = el("div", "lock-row");
    row.setAttribute("role", "row");
    row.setAttribute("aria-level", "2");
    row.setAttribute("aria-label", sentence(lock, Date.now()));
    row.dataset.lock = lock.id;
    const text = el("div", "lock-text");
    text.setAttribute("role", "gridcell");
    const who = paint(el("span", "chip", lock.client.name), lock.client.id);
    const wait = lock.kind === "waiter";
    const state = wait ? (lock.blockedBy ? `waits for ${lock.blockedBy}` : "queued") : lock.state;
    text.append(
      el("code", "lock-id", lock.id),
      who,
      el("span", "lock-mode", `${MODES[lock.mode]}${wait ? "*" : ""}`),
      el("span", "lock-range", lock.kind === "share" ? "share" : range(lock)),
      el("span", `lock-state ${lock.state}`, state),
      el("span", "lock-age", age((Date.now() - lock.sinceMs) / 1000)),
    );
    const cell = el("div", "bar-cell");
    cell.setAttribute("role", "gridcell");
    cell.append(drawOne(lock));
    row.append(text, cell);
    return row;
  }

  #click(event) {
    const row = event.target.closest("[data-key]");
    if (!row) return;
    const part = event.target.closest("[data-part]");
    if (part) return this.show(part.dataset.part);
    if (row.dataset.lock) return this.show(row.dataset.lock);
    const file = this.store.files.byKey.get(row.dataset.key.slice(1));
    if (!file) return;
    if (event.target.lockAt) {
      const box = event.target.getBoundingClientRect();
      const lock = event.target.lockAt((event.clientX - box.left) / box.width);
      if (lock) this.details.lock(lock);
    } else if (event.target.closest(".name-cell")) {
      this.#toggle(file);
    }
  }

  #toggle(file) {
    if (!this.opened.delete(file.key)) this.opened.add(file.key);
    this.refresh();
  }

  /** Left and right move over the spans of a row; Enter opens one. */
  #key(event, item, row) {
    const { target, key } = event;
    if (key === "Enter" || key === " ") {
      if (target.dataset.part) this.show(target.dataset.part);
      else if (isFile(item)) this.#toggle(item);
      else this.details.lock(item);
      return true;
    }
    if (!isFile(item) || (key !== "ArrowRight" && key !== "ArrowLeft")) return false;
    const spans = [...row.querySelectorAll(".span")].sort((a, b) => a.offsetLeft - b.offsetLeft);
    const at = spans.indexOf(target);
    if (key === "ArrowRight" && spans.length === 0 && !this.opened.has(item.key)) this.#toggle(item);
    const to = key === "ArrowRight" ? at + 1 : at - 1;
    if (to >= 0) spans[Math.min(to, spans.length - 1)]?.focus({ preventScroll: true });
    else row.focus({ preventScroll: true });
    return true;
  }
}
