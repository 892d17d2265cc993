// Assembles the page: tabs, filter box, and the views of one store.

import { Clients } from "./clients.js";
import { Details } from "./details.js";
import { Events } from "./events.js";
import { Filter } from "./filter.js";
import { Header } from "./header.js";
import { LockMap } from "./map.js";
import { Store } from "./store.js";
import { Timeline } from "./timeline.js";
import { Token } from "./token.js";
import { Traffic } from "./traffic.js";

const FILTER_MS = 150;

const store = new Store();
const details = new Details(store);
new Header(store);
new Token(store);
const views = {
  locks: [new LockMap(store, details)],
  clients: [new Clients(store, details)],
  traffic: [new Traffic(store)],
  recovery: [new Timeline(store), new Events(store)],
};

const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(name, withFocus = false) {
  for (const tab of tabs) {
    const mine = tab.dataset.view === name;
    tab.setAttribute("aria-selected", String(mine));
    tab.tabIndex = mine ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !mine;
    if (mine && withFocus) tab.focus();
  }
  for (const view of views[name]) view.refresh();
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => choose(tab.dataset.view));
  tab.addEventListener("keydown", (event) => {
    const to = {
      ArrowRight: (index + 1) % tabs.length,
      ArrowLeft: (index + tabs.length - 1) % tabs.length,
      Home: 0,
      End: tabs.length - 1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(tabs[to].dataset.view, true);
  });
});

const box = document.getElementById("filter");
let typing = null;
box.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const filter = new Filter(box.value);
    for (const view of Object.values(views).flat()) view.setFilter?.(filter);
  }, FILTER_MS);
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    box.focus();
  }
});

function fromAddress() {
  const name = location.hash.slice(1);
  choose(views[name] ? name : "locks");
}
addEventListener("hashchange", fromAddress);
fromAddress();
store.start();
