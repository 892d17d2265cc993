// Reads a long list page by page, repeatedly while it changes.
//
// A short list is read at most twice a second. A long one is read with pauses, to limit the load on
// server and browser. Entries not seen in a complete sweep are removed.

import { Refused } from "./link.js";

const PAGE = 1_000;
const KEPT_MAX = 100_000;
const AGAIN_MS = 500;
const SHORT = 5_000;
const PAUSE_MS = 30;
/** Pause after a long sweep, relative to its duration. */
const REST = 2;

export class Sweep {
  constructor(link, path, with_) {
    this.link = link;
    this.path = path;
    this.with = with_;
    this.generation = 0;
    this.total = 0;
    this.read = 0;
    /** Filter applied by the server. */
    this.query = new URLSearchParams();
    this.isTruncated = false;
    this.isComplete = false;
    this.problem = "";
    this.wanted = false;
    this.running = false;
    this.notBefore = 0;
  }

  want() {
    this.wanted = true;
    if (this.running) return;
    this.running = true;
    setTimeout(() => this.#run(), Math.max(0, this.notBefore - Date.now()));
  }

  /** Sets the filter applied by the server. */
  sift(query) {
    if (String(query) === String(this.query)) return;
    this.query = query;
    this.notBefore = 0;
    this.want();
  }

  async #run() {
    const begun = Date.now();
    try {
      this.wanted = false;
      await this.#sweep();
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof Refused ? error.message : "";
      // A server that refuses, such as a standby, has no list.
      if (error instanceof Refused) {
        this.generation += 1;
        this.total = 0;
        this.with.done(this.generation);
      }
      if (this.link.isUp) this.wanted = true;
    } finally {
      const took = Date.now() - begun;
      const rest = this.total > SHORT ? took * REST : 0;
      this.notBefore = Date.now() + Math.max(AGAIN_MS, rest, this.problem ? 5_000 : 0);
      this.running = false;
      this.with.told();
      if (this.wanted) this.want();
    }
  }

  async #sweep() {
    this.generation += 1;
    const generation = this.generation;
    const query = String(this.query);
    let after = null;
    let read = 0;
    do {
      const parameters = new URLSearchParams(query);
      parameters.set("limit", String(PAGE));
      if (after !== null) parameters.set("after", after);
      const page = await this.link.get(`${this.path}?${parameters}`);
      this.with.take(page.items, generation);
      read += page.items.length;
      this.total = page.total;
      this.read = Math.max(this.read, read);
      after = page.next ?? null;
      if (String(this.query) !== query) {
        this.wanted = true;
        return;
      }
      this.with.told();
      if (after !== null && this.total > SHORT) await pause(PAUSE_MS);
    } while (after !== null && read < KEPT_MAX);
    this.read = read;
    this.isTruncated = after !== null || query !== "";
    this.isComplete = true;
    this.with.done(generation);
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
