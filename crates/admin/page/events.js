// The event list, newest first.

import { paint } from "./colours.js";
import { Filter } from "./filter.js";
import { List, NARROW_PX } from "./list.js";
import { clock, dayAndClock, el } from "./words.js";

const ROW_PX = 36;
const NARROW_ROW_PX = 58;

export class Events {
  constructor(store) {
    this.store = store;
    this.filter = new Filter();
    this.scroller = document.getElementById("events");
    this.all = document.getElementById("events-all");
    this.empty = document.getElementById("events-empty");
    this.list = new List(this.scroller, {
      key: (event) => event.id,
      version: () => 0,
      height: () => (this.list.width < NARROW_PX ? NARROW_ROW_PX : ROW_PX),
      row: (event) => row(event),
    });
    this.all.addEventListener("change", () => this.refresh());
    store.on("events", () => this.refresh());
  }

  setFilter(filter) {
    this.filter = filter;
    this.refresh();
  }

  refresh() {
    if (this.scroller.offsetParent === null) return;
    const shown = this.store.events.filter(
      (event) => (this.all.checked || event.level !== "debug") && this.filter.event(event),
    );
    shown.reverse();
    this.list.set(shown);
    this.empty.hidden = shown.length > 0;
  }
}

function row(event) {
  const element = el("div", `event-row ${event.level}`);
  element.setAttribute("role", "row");
  const cell = (name, content) => {
    const part = el("div", `e-${name}`);
    part.setAttribute("role", "gridcell");
    part.append(content);
    element.append(part);
  };
  const at = el("time", "", clock(event.ms));
  at.dateTime = event.at;
  at.title = dayAndClock(event.ms);
  cell("at", at);
  cell("kind", el("span", `kind ${event.kind}`, event.kind.replaceAll("-", " ")));
  const who = event.client ? paint(el("span", "chip", event.client.name), event.client.id) : "";
  cell("who", who);
  const text = el("span", "", event.by && !event.text.includes(event.by) ? `${event.text} (by ${event.by})` : event.text);
  text.title = text.textContent;
  cell("text", text);
  return element;
}
