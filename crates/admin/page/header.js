// The page header: server, state, counts, health findings and the grace period.

import { paint } from "./colours.js";
import { announce, age, clock, command, count, el, plural } from "./words.js";

const EXPECTED_MAX = 8;

const STATE_WORDS = {
  serving: "SERVING",
  grace: "GRACE",
  stalled: "STALLED",
  standby: "STANDBY",
  starting: "STARTING",
  lost: "NO ANSWER",
};

export class Header {
  constructor(store) {
    this.store = store;
    this.part = Object.fromEntries(
      ["node", "state", "state-word", "left", "summary", "counts", "meta", "health", "lost", "grace"].map(
        (id) => [id, document.getElementById(id)],
      ),
    );
    this.health = "";
    this.said = "";
    /** Maximum of unreclaimed locks in this grace period; the progress bar starts from it. */
    this.most = 0;
    store.on("status", () => this.draw());
    store.on("link", () => this.drawLink());
    setInterval(() => this.#tick(), 1_000);
  }

  draw() {
    const { status, counts } = this.store;
    if (!status) return;
    const { part } = this;
    part.node.textContent = status.node;
    this.#state(this.store.link.isUp ? status.state : "lost");
    // Do not repeat the state word.
    part.summary.hidden = status.summary.toLowerCase().startsWith(status.state) && status.summary.length < 30;
    part.summary.textContent = status.summary;
    this.#counts(counts);
    this.#meta(status);
    this.#findings(status.health);
    this.#grace(status.grace);
    this.#tick();
    const said = `${STATE_WORDS[status.state] ?? status.state}. ${status.summary}`;
    if (status.state !== this.said) announce(said);
    this.said = status.state;
  }

  #state(state) {
    const word = STATE_WORDS[state] ?? state;
    this.part.state.dataset.state = state;
    this.part["state-word"].textContent = word;
    document.title = `${word} · ${this.store.status?.node ?? "?"} · Lockkeeper`;
  }

  drawLink() {
    const { link } = this.store;
    const { lost } = this.part;
    lost.hidden = link.isUp;
    document.body.classList.toggle("is-lost", !link.isUp);
    if (link.isUp) {
      announce("The server is reachable again.");
      return this.draw();
    }
    this.#state("lost");
    this.#tick();
    const words = `Server not reachable since ${clock(link.lastContact)}. Showing the last known state; retrying.`;
    lost.textContent = words;
    announce(words, true);
  }

  #tick() {
    const left = this.store.graceLeft();
    const grace = this.store.status?.grace;
    const isKnown = grace?.active && this.store.link.isUp;
    const words = grace?.began ? `${Math.ceil(left)} s left` : "waiting for the first client call";
    this.part.left.textContent = isKnown ? words : "";
  }

  #counts(counts) {
    const tiles = [
      ["locks held", counts.locks + counts.shares, ""],
      ["unconfirmed", counts.unconfirmed, "warn"],
      ["waiting", counts.waiting, "wait"],
      ["clients", counts.clients, ""],
      ["notices pending", counts.notices_owed, "warn"],
      ["fenced", counts.fenced, "bad"],
      ["crashed", counts.crashed, "bad"],
      ["suspect", counts.suspect, "warn"],
      ["reboot pending", counts.reboot_pending, "warn"],
    ];
    const always = 4;
    const shown = tiles.filter(([, number], index) => index < always || number > 0);
    this.part.counts.replaceChildren(
      ...shown.map(([name, number, look]) => {
        const tile = el("div", `tile ${number > 0 ? look : ""}`);
        tile.append(el("dt", "", name), el("dd", "", count(number)));
        return tile;
      }),
    );
  }

  #meta(status) {
    const { store } = status;
    const words = [
      `version ${status.version}`,
      `up ${age(status.uptime_seconds)}`,
      `store ${store.kind}, durability ${store.durability}`,
    ];
    if (store.commit_p99_seconds !== null && store.commit_p99_seconds !== undefined) {
      words.push(`commit p99 ${(store.commit_p99_seconds * 1000).toFixed(1)} ms`);
    }
    if (status.nsm_state) words.push(`NSM state ${status.nsm_state}`);
    if (status.epoch) words.push(`epoch ${status.epoch}`);
    this.part.meta.replaceChildren(...words.map((word) => el("span", "", word)));
  }

  #findings(health) {
    const now = JSON.stringify(health);
    if (now === this.health) return;
    this.health = now;
    this.part.health.replaceChildren(
      ...health.map((finding) => {
        const box = el("li", `finding ${finding.severity}`);
        const status = el("p", "finding-status");
        status.append(el("b", "", finding.severity), " ", finding.status);
        box.append(status);
        if (finding.action) box.append(...actions(finding.action));
        const see = el("p", "see", `${finding.code} · ${finding.see}`);
        box.append(see);
        return box;
      }),
    );
    if (health.length > 0) announce(`${health[0].severity}: ${health[0].status}`);
  }

  /** Locks reclaimed before this page was opened. */
  #takenBack() {
    const epoch = String(this.store.status.epoch);
    return this.store.events
      .filter((event) => event.kind === "reclaimed" && event.epoch === epoch)
      .reduce((sum, event) => sum + (event.locks ?? 0), 0);
  }

  /** The grace box: progress, and clients that have not reclaimed. */
  #grace(grace) {
    const { grace: box } = this.part;
    box.hidden = !grace?.active;
    if (box.hidden) {
      this.most = 0;
      return;
    }
    this.most = Math.max(this.most, grace.missing + this.#takenBack());
    const done = this.most > 0 ? 1 - grace.missing / this.most : 1;
    const line = el("div", "grace-line");
    const words = el("p");
    words.append(
      el("b", "", grace.missing === 0 ? "All locks reclaimed" : `${plural(grace.missing, "lock")} not reclaimed yet`),
      grace.exact ? "; grace ends when all are." : "; grace lasts the whole window.",
    );
    if (grace.parked) words.append(` ${plural(grace.parked, "new request")} waiting.`);
    const progress = el("div", "progress");
    progress.setAttribute("role", "progressbar");
    progress.setAttribute("aria-label", "Locks reclaimed");
    progress.setAttribute("aria-valuemin", "0");
    progress.setAttribute("aria-valuemax", "100");
    progress.setAttribute("aria-valuenow", String(Math.round(done * 100)));
    const fill = el("div", "fill");
    fill.style.width = `${done * 100}%`;
    progress.append(fill);
    line.append(words, progress);
    const list = el("ul", "expected");
    for (const each of grace.expected.slice(0, EXPECTED_MAX)) {
      const item = el("li");
      const told = each.answered
        ? "notified"
        : each.notices ? `${plural(each.notices, "notice")}, no answer` : "not notified yet";
      item.append(
        paint(el("span", "chip", each.client.name), each.client.id),
        el("span", "", `${plural(each.unconfirmed, "lock")} not reclaimed`),
        el("span", each.answered ? "" : "warn", told),
      );
      list.append(item);
    }
    const more = grace.expected_total - Math.min(grace.expected.length, EXPECTED_MAX);
    if (more > 0) list.append(el("li", "more", `and ${plural(more, "more client", "more clients")}`));
    box.replaceChildren(line, list);
  }
}

/**
 * The commands in an action, each with a copy button, and the words between them. Names chosen by
 * peers may be in it: a command with shell metacharacters gets no button.
 */
function actions(action) {
  const parts = [];
  const say = (text) => {
    const words = text.replace(/^[\s(]+|[\s(:)]+$/g, "");
    if (words) parts.push(el("span", "or", words));
  };
  let at = 0;
  for (const { 0: found, index } of action.matchAll(/lockkeeper [^()]*?(?=\s{2,}|\)|$)/g)) {
    say(action.slice(at, index));
    const isPlain = /^[\w .:@/=+,-]+$/.test(found);
    parts.push(isPlain ? command(found) : el("code", "or", found));
    at = index + found.length;
  }
  say(action.slice(at));
  return parts;
}
