// NFS calls per export and per client, also of clients that never lock. Read while the view is on screen; rates
// are those between two readings.

import { paint } from "./colours.js";
import { Filter } from "./filter.js";
import { age, amount, count, el, plural } from "./words.js";

const EVERY_MS = 2_000;
const CLIENTS_MAX = 200;
/** Readings that are closer together than this give no rate. */
const RATE_MS_MIN = 500;

const STATES = {
  served: "served",
  unanswered: "does not answer",
  opening: "not served yet",
  failed: "not served",
};

export class Traffic {
  constructor(store) {
    this.store = store;
    this.filter = new Filter();
    this.panel = document.getElementById("panel-traffic");
    this.note = document.getElementById("traffic-note");
    this.exportRows = document.getElementById("traffic-exports");
    this.clientRows = document.getElementById("traffic-clients");
    this.empty = document.getElementById("traffic-empty");
    this.exports = [];
    this.clients = [];
    this.total = null;
    this.rates = new Rates();
    this.isReading = false;
    setInterval(() => this.refresh(), EVERY_MS);
  }

  setFilter(filter) {
    this.filter = filter;
    this.#show();
  }

  async refresh() {
    if (this.panel.offsetParent === null || document.hidden || this.isReading) return;
    this.isReading = true;
    try {
      const [exports, list] = await Promise.all([
        this.store.link.get("/v1/exports"),
        this.store.link.get(`/v1/io/clients?limit=${CLIENTS_MAX}`),
      ]);
      this.exports = exports;
      this.clients = list.clients;
      this.total = list.total;
      this.rates.read([
        ...exports.map((it) => [`export ${it.path}`, it.io?.operations ?? 0]),
        ...list.clients.map((it) => [it.address, it.io.operations]),
      ]);
      this.#show();
    } catch (error) {
      if (this.total === null) this.empty.textContent = `Not readable: ${error.message}`;
    } finally {
      this.isReading = false;
    }
  }

  #show() {
    if (this.total === null) return;
    const rows = this.exports.map((it) => this.#exportRow(it));
    this.exportRows.replaceChildren(...rows);
    const shown = this.clients.filter((it) => this.filter.address(it));
    this.clientRows.replaceChildren(...shown.map((it) => this.#clientRow(it)));
    const all = plural(this.total, "client address", "client addresses");
    this.note.textContent =
      shown.length < this.total
        ? `${count(shown.length)} of ${all}, the most calls first`
        : `${all}, the most calls first; since the server started`;
    this.empty.hidden = shown.length > 0;
    if (!this.empty.hidden) {
      this.empty.textContent = this.filter.isEmpty ? "No NFS calls yet." : "No matches.";
    }
  }

  #exportRow(it) {
    const name = el("code", "", it.path);
    const state = el("span", it.state === "served" ? "badge active" : "badge crashed", STATES[it.state] ?? it.state);
    return row([name, state], it.io, this.rates.of(`export ${it.path}`), "");
  }

  #clientRow(it) {
    const seen = it.last_seen_seconds < 3 ? "now" : `${age(it.last_seen_seconds)} ago`;
    const who = [el("code", "", it.address)];
    for (const { id, name } of it.clients) who.push(paint(el("span", "chip", name), id));
    return row(who, it.io, this.rates.of(it.address), seen);
  }
}

function row(who, io, rate, seen) {
  const line = el("tr");
  const name = el("th", "t-who");
  name.scope = "row";
  const box = el("div");
  box.append(...who);
  name.append(box);
  line.append(name);
  const cell = (text, className = "") => line.append(el("td", className, text));
  cell(rate === null ? "–" : count(Math.round(rate)));
  cell(io ? count(io.operations) : "–");
  cell(io ? amount(io.bytes_read) : "–");
  cell(io ? amount(io.bytes_written) : "–");
  cell(io ? count(io.errors) : "–", io?.errors ? "warn" : "");
  cell(seen, "t-seen");
  return line;
}

/** Calls per second between the last two readings. */
class Rates {
  constructor() {
    this.last = new Map();
    this.lastMs = 0;
    this.rates = new Map();
  }

  read(counts) {
    const now = performance.now();
    const seconds = (now - this.lastMs) / 1000;
    if (this.lastMs !== 0 && seconds * 1000 < RATE_MS_MIN) return;
    this.rates = new Map();
    for (const [key, operations] of counts) {
      const before = this.last.get(key);
      // After a restart of the server counts begin again.
      const more = Math.max(0, operations - (before ?? 0));
      if (this.lastMs !== 0) this.rates.set(key, more / seconds);
    }
    this.last = new Map(counts);
    this.lastMs = now;
  }

  of(key) {
    return this.rates.get(key) ?? null;
  }
}
