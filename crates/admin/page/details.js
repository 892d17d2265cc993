// The details panel of one lock or client: holder, age, liveness, and the commands to free it.

import { noticeWords, seenWords, stateBadge } from "./clients.js";
import { paint } from "./colours.js";
import { MODES, age, command, count, dayAndClock, el, range } from "./words.js";

/** A client seen within this time is presumed alive. */
const ALIVE_MS = 90_000;
const LISTED_MAX = 50;

const STATES = {
  held: "held",
  unconfirmed: "unconfirmed: recovered after a restart, not yet reclaimed",
  releasable: "releasable: not reclaimed in time; released if requested while its client does not answer",
  suspect: "suspect: its client may have rebooted since",
  remembered: "remembered: from an inexact store; conflicts with nothing",
  waiting: "waiting",
};

export class Details {
  constructor(store) {
    this.store = store;
    this.panel = document.getElementById("details");
    this.title = document.getElementById("details-title");
    this.body = document.getElementById("details-body");
    this.shown = null;
    this.cameFrom = null;
    this.answer = null;
    document.getElementById("details-close").addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.shown) this.close();
    });
    store.on("locks", () => this.#again());
    store.on("clients", () => this.#again());
    setInterval(() => this.#tick(), 1_000);
  }

  lock(lock) {
    this.#open({ kind: "lock", id: lock.id, last: lock, at: lock.client.id });
  }

  client(id) {
    this.#open({ kind: "client", id, last: this.store.client(id), at: id });
  }

  close() {
    this.shown = null;
    this.panel.hidden = true;
    document.body.classList.remove("has-details");
    const { part, key, element } = this.cameFrom ?? {};
    const back = element?.isConnected ? element : null;
    const again = key && document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    const span = part && again?.querySelector(`[data-part="${CSS.escape(part)}"]`);
    (back ?? span ?? again)?.focus({ preventScroll: true });
  }

  #open(what) {
    const from = document.activeElement;
    if (!this.panel.contains(from)) {
      this.cameFrom = {
        element: from,
        part: from?.dataset?.part,
        key: from?.closest?.("[data-key]")?.dataset.key,
      };
    }
    if (this.shown?.at !== what.at) this.answer = null;
    this.shown = what;
    this.drawn = "";
    this.panel.hidden = false;
    document.body.classList.add("has-details");
    this.#draw();
    this.title.focus({ preventScroll: true });
  }

  #again() {
    if (this.shown) this.#draw();
  }

  #tick() {
    if (!this.shown) return;
    for (const element of this.body.querySelectorAll("[data-since]")) {
      element.textContent = age((Date.now() - Number(element.dataset.since)) / 1000);
    }
  }

  #draw() {
    const { kind, id, last } = this.shown;
    const now = kind === "lock" ? this.store.files.locks.get(id) : this.store.client(id);
    if (now) this.shown.last = now;
    const item = now ?? last;
    if (!item) return;
    const parts = kind === "lock" ? this.#lockParts(item, !now) : this.#clientParts(item, !now);
    // Do not rebuild unchanged content, which would lose the selection and the focus.
    const fresh = el("div");
    fresh.append(...parts);
    const drawn = fresh.textContent.replace(/\d+[smhd]\d*[smhd]?( ago)?/g, "");
    if (drawn === this.drawn) return;
    const focused = this.body.contains(document.activeElement)
      ? document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent
      : null;
    this.drawn = drawn;
    this.title.textContent = kind === "lock" ? `${item.id}` : item.name;
    this.body.replaceChildren(...parts);
    if (focused !== null) {
      const again = [...this.body.querySelectorAll("button")].find(
        (button) => (button.getAttribute("aria-label") ?? button.textContent) === focused,
      );
      (again ?? this.title).focus({ preventScroll: true });
    }
  }

  #lockParts(lock, isGone) {
    const wait = lock.kind === "waiter";
    const parts = [];
    if (isGone) parts.push(el("p", "gone", wait ? "No longer waiting." : "No longer held."));
    const lead = el("p", "lead");
    const who = paint(el("span", "chip", lock.client.name), lock.client.id);
    const since = el("b", "", age((Date.now() - lock.sinceMs) / 1000));
    since.dataset.since = String(lock.sinceMs);
    const what = lock.kind === "share" ? `a ${MODES[lock.mode]} share` : `a ${MODES[lock.mode]} lock`;
    if (isGone) lead.append(who, wait ? ` waited for ${what}` : ` held ${what}`);
    else lead.append(who, wait ? ` waits for ${what}, for ` : ` holds ${what}, for `, since);
    parts.push(lead, this.#alive(lock.client.id));
    if (!isGone) parts.push(...(wait ? this.#blocker(lock) : this.#free(lock)));
    parts.push(this.#facts(lock, isGone));
    return parts;
  }

  #facts(lock, isGone) {
    const list = el("dl", "facts");
    fact(list, "File", lock.file.shown);
    if (lock.file.export) fact(list, "Export", lock.file.export);
    if (lock.kind !== "share") fact(list, "Bytes", range(lock));
    if (lock.denies) fact(list, "Denies", lock.denies);
    if (!isGone) fact(list, "State", STATES[lock.state] ?? lock.state);
    fact(list, "Since", dayAndClock(lock.sinceMs));
    fact(list, "Owner", lock.tag ? `${lock.owner} (${lock.tag})` : String(lock.owner));
    fact(list, "Client", `${lock.client.name}, ${lock.client.address}, ${lock.client.id}`);
    return list;
  }

  /** Commands that free a held lock, with their consequences. */
  #free(lock, isAsked = true) {
    const client = this.store.client(lock.client.id);
    const parts = [];
    const waiting = lock.file.waiters.filter((waiter) => waiter.blockedBy === lock.id);
    if (waiting.length > 0) {
      parts.push(el("h3", "", `Waiting for it: ${count(waiting.length)}`));
      const list = el("ul", "links");
      for (const waiter of waiting.slice(0, LISTED_MAX)) list.append(this.#link(waiter));
      parts.push(list);
    }
    parts.push(el("h3", "", isAsked ? "Release" : `Release ${lock.id}`));
    parts.push(command(`lockkeeper release ${lock.id}`));
    const alive = isAlive(client);
    parts.push(
      el(
        "p",
        alive ? "hint warn" : "hint",
        alive
          ? `${lock.client.name} is alive and will not be notified; it may keep writing. To stop it as well:`
          : `Releases this lock only. To release all locks of ${lock.client.name} and refuse its writes:`,
      ),
    );
    parts.push(command(`lockkeeper ${client?.fenced ? "unfence" : "fence"} ${lock.client.id}`));
    return parts;
  }

  #blocker(lock) {
    const blocker = this.store.files.locks.get(lock.blockedBy);
    const parts = [];
    if (lock.passedOver) {
      parts.push(el("p", "hint warn", "It does not answer and is passed over; it keeps its place in the queue."));
    }
    if (!blocker) {
      parts.push(el("p", "hint", "Queued behind other waiters."));
      return parts;
    }
    const list = el("ul", "links");
    list.append(this.#link(blocker));
    parts.push(el("h3", "", "Blocked by"), list, this.#alive(blocker.client.id));
    return [...parts, ...this.#free(blocker, false)];
  }

  #link(lock) {
    const item = el("li");
    const button = el("button", "link");
    button.type = "button";
    button.append(el("code", "", lock.id), " ", paint(el("span", "chip", lock.client.name), lock.client.id));
    button.append(` ${MODES[lock.mode]} ${lock.kind === "share" ? "share" : range(lock)}`);
    button.addEventListener("click", () => this.lock(lock));
    item.append(button);
    return item;
  }

  #alive(clientId) {
    const client = this.store.client(clientId);
    const line = el("p", "alive");
    if (!client) {
      line.append(el("span", "dot unknown"), "Unknown client.");
      return line;
    }
    const dot = client.fenced ? "fenced" : isAlive(client) ? "yes" : client.crashed ? "no" : "unknown";
    const seen = client.seenMs === null ? "not seen since the server started" : `seen ${seenWords(client)}`;
    const words = { fenced: "Fenced", yes: "Alive", no: "Silent", unknown: "Unknown" }[dot];
    line.append(el("span", `dot ${dot}`), el("b", "", `${words},`), seen, this.#ask(clientId));
    return line;
  }

  /** A button that probes the client's lock manager. */
  #ask(clientId) {
    const button = el("button", "ask", "Probe now");
    button.type = "button";
    if (this.answer?.id === clientId) button.textContent = this.answer.words;
    button.addEventListener("click", async () => {
      button.disabled = true;
      button.textContent = "Probing …";
      let words;
      try {
        const client = await this.store.link.get(`/v1/clients/${encodeURIComponent(clientId)}?probe=true`);
        words = client.answers ? "Answers" : "Does not answer";
      } catch (error) {
        words = error.message;
      }
      this.answer = { id: clientId, words };
      button.disabled = false;
      button.textContent = words;
    });
    return button;
  }

  #clientParts(client, isGone) {
    const parts = [];
    if (isGone) parts.push(el("p", "gone", "No longer registered."));
    const lead = el("p", "lead");
    lead.append(paint(el("span", "chip", client.name), client.id), " ", stateBadge(client.state));
    parts.push(lead, this.#alive(client.id));
    const pending = client.pending_reboot;
    if (pending) {
      parts.push(el("h3", "", "Unproven reboot"));
      const what = pending.nsm_state ? `state ${pending.nsm_state}` : "FREE_ALL";
      parts.push(el("p", "hint warn", `${pending.why} (from ${pending.source}, ${what})`));
      parts.push(command(`lockkeeper confirm-reboot ${client.id}`));
    }
    if (client.notice && !client.notice.answered) {
      parts.push(el("h3", "", "Notice of the restart"), el("p", "hint", noticeWords(client)));
      parts.push(command(`lockkeeper notify ${client.id}`), command(`lockkeeper doctor --client ${client.id}`));
    }
    parts.push(el("h3", "", client.fenced ? "Allow locks and writes again" : "Release all locks and refuse writes"));
    parts.push(command(`lockkeeper ${client.fenced ? "unfence" : "fence"} ${client.id}`));
    parts.push(el("h3", "", "List its locks"), command(`lockkeeper locks --client ${client.id}`));
    const list = el("dl", "facts");
    fact(list, "Address", client.address);
    fact(list, "Id", client.id);
    fact(list, "NSM state", client.nsm_state ? String(client.nsm_state) : "unknown");
    fact(list, "Locks", `${count(client.locks)} and ${count(client.shares)} shares`);
    fact(list, "Unconfirmed", count(client.unconfirmed));
    fact(list, "Waiting", count(client.waiting));
    fact(list, "Registered", dayAndClock(Date.parse(client.registered_at)));
    fact(list, "Notice", noticeWords(client) || "none");
    if (client.kind === "monitor") fact(list, "Monitors", client.monitored_name);
    if (client.our_addresses?.length) fact(list, "Server addresses used", client.our_addresses.join(", "));
    parts.push(list);
    return parts;
  }
}

function isAlive(client) {
  return client && client.seenMs !== null && Date.now() - client.seenMs < ALIVE_MS && !client.crashed;
}

function fact(list, name, value) {
  list.append(el("dt", "", name), el("dd", "", value));
}
