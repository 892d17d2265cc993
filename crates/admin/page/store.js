// The page's data: status, locks by file, clients, events. Views subscribe to topics (`status`, `locks`,
// `clients`, `events`, `link`) and read it on change.

import { Files } from "./files.js";
import { Link, Refused } from "./link.js";
import { Sweep } from "./sweep.js";

const EVENTS_MAX = 10_000;
const OUTAGES_MAX = 100;
const TELL_MS = 80;
const ASK_AGAIN_MS = 500;
const HEARTBEAT_MS = 5_000;
/** With more locks than this, files on screen are read separately, as a sweep takes long. */
const MANY = 5_000;
const LOOK_MS = 1_000;
const LOOK_MAX = 8;

export class Store {
  constructor() {
    this.status = null;
    this.statusAt = 0;
    this.counts = null;
    this.files = new Files();
    this.clients = new Map();
    this.events = [];
    this.eventIds = new Set();
    /** Times when the server was unreachable: `{from, to}` in milliseconds. */
    this.outages = [];
    this.listeners = new Map();
    this.pending = new Set();
    this.link = new Link({
      news: (event) => this.#news(event),
      tally: (tally) => this.#tally(tally),
      resync: () => this.refresh(),
      doubt: () => this.askStatus(),
      change: (outage) => this.#linkChanged(outage),
    });
    this.locksSweep = new Sweep(this.link, "/v1/locks", {
      take: (items, generation) => this.files.take(items, generation),
      done: (generation) => this.files.forgetBefore(generation),
      told: () => this.#tell("locks"),
    });
    this.clientsSweep = new Sweep(this.link, "/v1/clients", {
      take: (items, generation) => this.#takeClients(items, generation),
      done: (generation) => this.#forgetClients(generation),
      told: () => this.#tell("clients"),
    });
    this.askedAt = 0;
    this.askTimer = null;
    /** Set by the lock map. */
    this.visibleFiles = () => [];
    this.lookedAt = 0;
    this.isLooking = false;
  }

  on(topic, listener) {
    if (!this.listeners.has(topic)) this.listeners.set(topic, []);
    this.listeners.get(topic).push(listener);
  }

  start() {
    this.link.open();
    this.refresh();
    setInterval(() => this.#heartbeat(), 1_000);
  }

  refresh() {
    this.askStatus();
    this.locksSweep.want();
    this.clientsSweep.want();
  }

  /** Requests the status, at most twice a second. */
  askStatus() {
    if (this.askTimer !== null) return;
    const wait = Math.max(0, this.askedAt + ASK_AGAIN_MS - Date.now());
    this.askTimer = setTimeout(async () => {
      this.askedAt = Date.now();
      try {
        const status = await this.link.get("/v1/status");
        this.status = status;
        this.statusAt = Date.now();
        this.counts = status.counts;
        this.#tell("status");
      } catch (error) {
        if (error instanceof Refused) console.warn("status:", error.message);
      } finally {
        this.askTimer = null;
      }
    }, wait);
  }

  /** Remaining seconds of grace. */
  graceLeft() {
    const grace = this.status?.grace;
    if (!grace?.active) return 0;
    if (!grace.began) return grace.remaining_seconds;
    return Math.max(0, grace.remaining_seconds - (Date.now() - this.statusAt) / 1000);
  }

  client(id) {
    return this.clients.get(id);
  }

  #heartbeat() {
    const grace = this.status?.grace?.active;
    const quiet = Date.now() - this.askedAt;
    if (quiet >= (grace || !this.link.isUp ? 1_000 : HEARTBEAT_MS)) this.askStatus();
    // Notices are not in the streamed counts.
    if (grace && this.link.isUp) this.clientsSweep.want();
  }

  #news(event) {
    if (this.eventIds.has(event.id)) return;
    event.ms = Date.parse(event.at);
    event.epoch = event.id.split("-")[0];
    this.eventIds.add(event.id);
    this.events.push(event);
    if (this.events.length > EVENTS_MAX + 1_000) {
      for (const old of this.events.splice(0, 1_000)) this.eventIds.delete(old.id);
    }
    this.#tell("events");
    this.askStatus();
    this.clientsSweep.want();
  }

  #tally(tally) {
    if (this.counts) this.counts = { ...this.counts, ...tally };
    this.#tell("status");
    this.locksSweep.want();
    this.clientsSweep.want();
    this.askStatus();
    if (this.locksSweep.total > MANY) this.#look();
  }

  /** Reads the locks of the files on screen, ahead of the sweep. */
  async #look() {
    if (this.isLooking || Date.now() - this.lookedAt < LOOK_MS) return;
    this.isLooking = true;
    try {
      for (const file of this.visibleFiles().slice(0, LOOK_MAX)) {
        // An escaped name is not a valid path.
        if (file.path === null || file.path.includes("\\")) continue;
        const query = new URLSearchParams({ path: `${file.export}/${file.path}`, limit: "1000" });
        const page = await this.link.get(`/v1/locks?${query}`);
        const mine = page.items.filter((item) => item.file.key === file.key);
        if (mine.length === 0 || page.next) continue;
        this.files.takeWhole(file, mine, this.locksSweep.generation);
        this.#tell("locks");
      }
    } catch {
      // The sweep reports errors.
    } finally {
      this.isLooking = false;
      this.lookedAt = Date.now();
    }
  }

  #linkChanged(outage) {
    if (outage) {
      this.outages.push(outage);
      if (this.outages.length > OUTAGES_MAX) this.outages.shift();
      this.refresh();
    }
    this.#tell("link");
    this.#tell("events");
  }

  #takeClients(items, generation) {
    const now = Date.now();
    for (const client of items) {
      client.generation = generation;
      client.seenMs = client.last_seen_seconds === null || client.last_seen_seconds === undefined
        ? null
        : now - client.last_seen_seconds * 1000;
      client.version = now;
      this.clients.set(client.id, client);
    }
  }

  #forgetClients(generation) {
    for (const [id, client] of this.clients) {
      if (client.generation < generation) this.clients.delete(id);
    }
  }

  /** Notifies views after a short delay, so that a burst of events causes one update. */
  #tell(topic) {
    if (this.pending.size === 0) {
      setTimeout(() => {
        const topics = [...this.pending];
        this.pending.clear();
        for (const each of topics) {
          for (const listener of this.listeners.get(each) ?? []) listener();
        }
      }, TELL_MS);
    }
    this.pending.add(topic);
  }
}
