// Locks by file. Files are sorted by name; those with waiters or unconfirmed locks are listed first.

import { hueOf } from "./colours.js";

export class Files {
  constructor() {
    this.byKey = new Map();
    this.locks = new Map();
    this.clients = new Map();
    this.exports = new Set();
    /** All files by name. */
    this.sorted = [];
    this.fresh = [];
    this.hasGone = false;
  }

  take(items, generation) {
    const now = Date.now();
    for (const item of items) {
      const file = this.#fileOf(item.file);
      const known = this.locks.get(item.id);
      if (known && known.file === file && same(known, item)) {
        known.generation = generation;
        continue;
      }
      const lock = this.#lockOf(item, file, generation, now);
      if (known && known.file === file && known.kind === lock.kind) {
        Object.assign(known, lock);
        touch(file);
        continue;
      }
      if (known) this.#drop(known);
      this.locks.set(lock.id, lock);
      (lock.kind === "waiter" ? file.waiters : file.held).push(lock);
      touch(file);
    }
  }

  /** Replaces all locks of one file. */
  takeWhole(file, items, generation) {
    this.take(items, generation);
    const seen = new Set(items.map((item) => item.id));
    for (const lock of [...file.held, ...file.waiters]) {
      if (seen.has(lock.id)) continue;
      this.locks.delete(lock.id);
      this.#drop(lock);
    }
  }

  forgetBefore(generation) {
    for (const lock of this.locks.values()) {
      if (lock.generation < generation) {
        this.locks.delete(lock.id);
        this.#drop(lock);
      }
    }
  }

  /** Matching files: those with waiters first, then those with locks that are not plainly held. */
  list(filter) {
    this.#settle();
    const waiting = [];
    const unsettled = [];
    const quiet = [];
    for (const file of this.sorted) {
      if (!filter.isEmpty && !matches(file, filter)) continue;
      if (file.waiters.length > 0) waiting.push(file);
      else if (file.held.some((lock) => lock.state !== "held")) unsettled.push(file);
      else quiet.push(file);
    }
    return waiting.concat(unsettled, quiet);
  }

  #settle() {
    if (this.hasGone) {
      this.sorted = this.sorted.filter((file) => !file.isGone);
      this.fresh = this.fresh.filter((file) => !file.isGone);
      this.hasGone = false;
    }
    if (this.fresh.length === 0) return;
    // Merged, as sorting 100,000 names for every page would be slow.
    this.fresh.sort((a, b) => (a.shown < b.shown ? -1 : 1));
    const merged = [];
    let at = 0;
    for (const file of this.sorted) {
      while (at < this.fresh.length && this.fresh[at].shown < file.shown) {
        merged.push(this.fresh[at]);
        at += 1;
      }
      merged.push(file);
    }
    while (at < this.fresh.length) {
      merged.push(this.fresh[at]);
      at += 1;
    }
    this.sorted = merged;
    this.fresh = [];
  }

  #fileOf(said) {
    let file = this.byKey.get(said.key);
    if (file && file.shown === said.shown) return file;
    if (file) {
      // Renamed: its position changes too.
      file.isGone = true;
      this.hasGone = true;
      const { held, waiters } = file;
      file = { ...newFile(said), held, waiters };
      for (const lock of [...held, ...waiters]) lock.file = file;
    } else {
      file = newFile(said);
    }
    if (said.export && this.exports.size < 2) this.exports.add(said.export);
    this.byKey.set(said.key, file);
    this.fresh.push(file);
    return file;
  }

  #lockOf(item, file, generation, now) {
    const startText = String(item.start);
    const hasEnd = item.end !== null && item.end !== undefined;
    return {
      id: item.id,
      kind: item.kind,
      state: item.state,
      client: this.#clientOf(item.client),
      owner: item.owner,
      tag: item.owner_tag ?? "",
      mode: item.mode,
      start: Number(item.start),
      /** The byte after the last. */
      end: hasEnd ? Number(item.end) + 1 : Infinity,
      startText,
      endText: hasEnd ? String(item.end) : null,
      sinceMs: now - item.age_seconds * 1000,
      blockedBy: item.blocked_by ?? null,
      passedOver: item.passed_over === true,
      denies: item.denies ?? null,
      file,
      generation,
    };
  }

  /** One shared object per client. */
  #clientOf(said) {
    const known = this.clients.get(said.id);
    if (known && known.name === said.name && known.address === said.address) return known;
    if (this.clients.size > 20_000) this.clients.clear();
    // Assigns the colour in order of appearance.
    hueOf(said.id);
    this.clients.set(said.id, said);
    return said;
  }

  #drop(lock) {
    const { file } = lock;
    const list = lock.kind === "waiter" ? file.waiters : file.held;
    const place = list.indexOf(lock);
    if (place >= 0) list.splice(place, 1);
    touch(file);
    if (file.held.length + file.waiters.length === 0) {
      file.isGone = true;
      this.hasGone = true;
      if (this.byKey.get(file.key) === file) this.byKey.delete(file.key);
    }
  }
}

let versions = 0;

function newFile(said) {
  versions += 1;
  return {
    key: said.key,
    shown: said.shown,
    lower: `${said.export ?? ""} ${said.shown}`.toLowerCase(),
    export: said.export ?? "",
    path: said.path ?? null,
    held: [],
    waiters: [],
    version: versions,
    layout: null,
    isGone: false,
  };
}

function touch(file) {
  versions += 1;
  file.version = versions;
  file.layout = null;
}

function same(known, item) {
  return (
    known.state === item.state &&
    known.mode === item.mode &&
    known.startText === String(item.start) &&
    known.endText === (item.end === null || item.end === undefined ? null : String(item.end)) &&
    known.blockedBy === (item.blocked_by ?? null) &&
    known.passedOver === (item.passed_over === true) &&
    known.kind === item.kind &&
    known.client.id === item.client.id &&
    known.client.name === item.client.name
  );
}

function matches(file, filter) {
  return file.held.some((lock) => filter.lock(lock)) || file.waiters.some((lock) => filter.lock(lock));
}
