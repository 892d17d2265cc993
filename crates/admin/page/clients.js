// The client list: liveness, notices of the server's restart, unreclaimed locks.

import { paint } from "./colours.js";
import { Filter } from "./filter.js";
import { List } from "./list.js";
import { age, count, el, plural } from "./words.js";

const ROW_PX = 44;

/** Worst first. */
const STATES = ["fenced", "reboot-pending", "crashed", "suspect", "recovering", "active", "idle"];

const text = (client) => client.name.toLowerCase();
const seen = (client) => client.seenMs ?? -Infinity;

const ORDERS = {
  name: (a, b) => compare(text(a), text(b)),
  address: (a, b) => compare(a.address, b.address),
  state: (a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state),
  seen: (a, b) => compare(seen(b), seen(a)),
  nsm: (a, b) => a.nsm_state - b.nsm_state,
  locks: (a, b) => b.locks + b.shares - a.locks - a.shares,
  waiting: (a, b) => b.waiting - a.waiting,
  unconfirmed: (a, b) => b.unconfirmed - a.unconfirmed,
  notice: (a, b) => noticeRank(b) - noticeRank(a),
};

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function noticeRank(client) {
  if (!client.notice) return 0;
  return client.notice.answered ? 1 : 1 + client.notice.attempts;
}

/** Progress of the notice of the server's restart. */
export function noticeWords(client) {
  const { notice } = client;
  if (!notice) return "";
  if (notice.answered) return `answered (${notice.attempts} sent)`;
  const next = notice.next_in_seconds;
  const again = next === null || next === undefined ? "" : `, next in ${age(next)}`;
  return `${plural(notice.attempts, "notice")}, no answer${again}`;
}

export class Clients {
  constructor(store, details) {
    this.store = store;
    this.details = details;
    this.filter = new Filter();
    this.order = "state";
    this.isReversed = false;
    this.scroller = document.getElementById("clients");
    this.note = document.getElementById("clients-note");
    this.empty = document.getElementById("clients-empty");
    this.list = new List(this.scroller, {
      heads: 1,
      key: (client) => client.id,
      version: (client) => client.version,
      height: () => ROW_PX,
      row: (client) => this.#row(client),
      onKey: (event, client) => {
        if (event.key !== "Enter" && event.key !== " ") return false;
        this.details.client(client.id);
        return true;
      },
    });
    this.scroller.addEventListener("click", (event) => {
      const row = event.target.closest("[data-key]");
      if (row) this.details.client(row.dataset.key);
    });
    this.heads = [...document.querySelectorAll("#clients-head [data-order]")];
    for (const head of this.heads) {
      head.addEventListener("click", () => this.#sort(head.dataset.order));
    }
    store.on("clients", () => this.refresh());
  }

  setFilter(filter) {
    this.filter = filter;
    this.refresh();
  }

  refresh() {
    if (this.scroller.offsetParent === null) return;
    const all = [...this.store.clients.values()];
    const shown = this.filter.isEmpty ? all : all.filter((client) => this.filter.client(client));
    const order = ORDERS[this.order];
    const sign = this.isReversed ? -1 : 1;
    shown.sort((a, b) => sign * order(a, b) || compare(text(a), text(b)) || compare(a.id, b.id));
    for (const head of this.heads) {
      const mine = head.dataset.order === this.order;
      const sort = mine ? (this.isReversed ? "descending" : "ascending") : "none";
      head.closest("[role=columnheader]").setAttribute("aria-sort", sort);
    }
    this.list.set(shown);
    const sweep = this.store.clientsSweep;
    this.note.textContent = this.filter.isEmpty
      ? plural(all.length, "client")
      : `${count(shown.length)} of ${plural(all.length, "client")}`;
    this.empty.hidden = shown.length > 0;
    if (!this.empty.hidden) {
      const none = sweep.isComplete ? "No clients." : "Loading clients …";
      this.empty.textContent = sweep.problem || (this.filter.isEmpty ? none : "No matches.");
    }
  }

  #sort(order) {
    this.isReversed = this.order === order && !this.isReversed;
    this.order = order;
    this.refresh();
  }

  #row(client) {
    const row = el("div", "client-row");
    row.setAttribute("role", "row");
    const cell = (name, content) => {
      const element = el("div", `c-${name}`);
      element.setAttribute("role", "gridcell");
      if (content instanceof Node) element.append(content);
      else element.textContent = content;
      row.append(element);
      return element;
    };
    const name = paint(el("span", "chip", client.name), client.id);
    name.title = client.name;
    cell("name", name).append(el("code", "client-id", client.id));
    cell("address", client.address);
    cell("state", stateBadge(client.state));
    cell("seen", seenWords(client));
    cell("nsm", client.nsm_state ? String(client.nsm_state) : "–");
    cell("locks", count(client.locks + client.shares));
    cell("waiting", client.waiting ? count(client.waiting) : "–");
    const left = cell("unconfirmed", client.unconfirmed ? count(client.unconfirmed) : "–");
    if (client.unconfirmed) left.classList.add("warn");
    cell("notice", noticeMark(client));
    return row;
  }
}

export function seenWords(client) {
  if (client.seenMs === null) return "not since start";
  const seconds = (Date.now() - client.seenMs) / 1000;
  return seconds < 2 ? "now" : `${age(seconds)} ago`;
}

export function stateBadge(state) {
  return el("span", `badge ${state}`, state === "reboot-pending" ? "reboot pending" : state);
}

/** One dot per notice sent, hollow while unanswered. */
function noticeMark(client) {
  const mark = el("span", "notice-mark");
  if (!client.notice) {
    mark.textContent = "–";
    return mark;
  }
  const { attempts, answered } = client.notice;
  mark.classList.add(answered ? "answered" : "unanswered");
  const dots = el("span", "dots");
  dots.setAttribute("aria-hidden", "true");
  for (let index = 0; index < Math.min(attempts, 6); index += 1) {
    const last = index === Math.min(attempts, 6) - 1;
    dots.append(el("i", answered && last ? "yes" : "no"));
  }
  mark.append(dots, el("span", "", noticeWords(client)));
  mark.title = noticeWords(client);
  return mark;
}
