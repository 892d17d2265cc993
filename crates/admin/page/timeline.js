// The recovery timeline: a lane for the server, one per client, and a playhead from the crash to the
// end of grace.

import { paint } from "./colours.js";
import { List } from "./list.js";
import { laneWords, progress, storiesOf } from "./story.js";
import { age, clock, dayAndClock, el, plural, svg } from "./words.js";

const LANE_PX = 38;
const PLAY_MS = 12_000;
const STEPS = 1_000;
const MARK_PX = 17;
const MARKS_MAX = 14;

const SYMBOLS = {
  "notice-sent": "sent",
  "notice-answered": "answered",
  "notice-failed": "failed",
  "notice-given-up": "failed",
  reclaimed: "back",
  rebooted: "rebooted",
  released: "freed",
  fenced: "freed",
  crashed: "alarm",
  suspect: "alarm",
  "reboot-pending": "alarm",
  "reclaim-refused": "alarm",
};

export class Timeline {
  constructor(store) {
    this.store = store;
    this.story = null;
    this.chosen = null;
    /** Position of the playhead out of `STEPS`; at the end it follows the present. */
    this.head = STEPS;
    this.playing = null;
    this.built = "";
    /** Width of the time axis. */
    this.width = 600;
    const part = (id) => document.getElementById(id);
    this.box = part("timeline");
    this.empty = part("timeline-empty");
    this.pick = part("story-pick");
    this.play = part("play");
    this.scrub = part("scrub");
    this.when = part("scrub-time");
    this.told = part("told");
    this.server = part("server-lane");
    this.axis = part("time-axis");
    this.list = new List(part("lanes"), {
      heads: 1,
      key: (lane) => lane.client.id,
      version: (lane) => `${lane.marks.length}/${lane.missing}/${lane.story.to}/${this.width}`,
      height: () => LANE_PX,
      row: (lane) => this.#lane(lane),
    });
    this.pick.addEventListener("change", () => {
      this.chosen = this.pick.value;
      this.#stop(STEPS);
      this.refresh();
    });
    this.play.addEventListener("click", () => (this.playing ? this.#stop(this.head) : this.#start()));
    this.scrub.addEventListener("input", () => this.#stop(Number(this.scrub.value)));
    store.on("events", () => this.refresh());
    store.on("link", () => this.refresh());
    store.on("clients", () => this.refresh());
    setInterval(() => this.story?.isRunning && !this.playing && this.refresh(), 1_000);
    new ResizeObserver(() => this.refresh()).observe(this.box);
  }

  refresh() {
    if (this.box.parentElement.offsetParent === null) return;
    const { store } = this;
    const lostSince = store.link.isUp ? null : store.link.lastContact;
    const { events, outages, clients } = store;
    const stories = storiesOf(events, outages, clients, lostSince, Date.now());
    this.empty.hidden = stories.length > 0;
    this.box.hidden = stories.length === 0;
    if (stories.length === 0) return;
    const story = stories.find((each) => each.epoch === this.chosen) ?? stories[0];
    this.#picks(stories, story);
    this.story = story;
    this.width = this.axis.clientWidth || 600;
    this.#server(story);
    this.#axis(story);
    this.list.set(story.lanes);
    this.#moveHead();
  }

  #at(ms) {
    const { from, to } = this.story;
    return Math.min(1, Math.max(0, (ms - from) / (to - from)));
  }

  get #headMs() {
    const { from, to } = this.story;
    return from + ((to - from) * this.head) / STEPS;
  }

  #picks(stories, story) {
    const signature = stories.map((each) => `${each.epoch}${each.isRunning}`).join();
    if (signature !== this.built) {
      this.built = signature;
      this.pick.replaceChildren(
        ...stories.map((each, index) => {
          const when = each.isRunning ? "now" : dayAndClock(each.startMs);
          const words = index === 0 ? `Latest start, ${when}` : `Start of ${when}`;
          const option = el("option", "", each.epoch === "now" ? "No answer, now" : words);
          option.value = each.epoch;
          return option;
        }),
      );
    }
    this.pick.value = story.epoch;
  }

  #start() {
    if (!this.story) return;
    if (this.head >= STEPS) this.head = 0;
    const begun = performance.now() - (this.head / STEPS) * PLAY_MS;
    this.play.textContent = "Pause";
    const step = () => {
      this.head = Math.min(STEPS, ((performance.now() - begun) / PLAY_MS) * STEPS);
      this.#moveHead();
      if (this.head >= STEPS) this.#stop(STEPS);
      else this.playing = requestAnimationFrame(step);
    };
    this.playing = requestAnimationFrame(step);
  }

  #stop(head) {
    if (this.playing) cancelAnimationFrame(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
    this.head = head;
    if (this.story) this.#moveHead();
  }

  #moveHead() {
    const { story } = this;
    const ms = this.#headMs;
    this.box.style.setProperty("--head", String(this.head / STEPS));
    this.box.classList.toggle("is-replay", this.head < STEPS);
    this.scrub.value = String(Math.round(this.head));
    const seconds = (ms - story.zeroMs) / 1000;
    const when = `${clock(ms)} (${seconds < 0 ? "−" : "+"}${Math.abs(seconds).toFixed(1)} s)`;
    this.when.textContent = when;
    this.scrub.setAttribute("aria-valuetext", when);
    for (const row of this.list.rows.values()) {
      const lane = this.list.items[row.index];
      if (lane) this.#words(row.element.querySelector(".lane-words"), lane, ms);
    }
    this.#narrate(ms);
  }

  #words(element, lane, ms) {
    const { look, words } = laneWords(lane, ms);
    if (element.textContent === words) return;
    element.textContent = words;
    element.className = `lane-words ${look}`;
  }

  /** The last event before the playhead. */
  #narrate(ms) {
    const { story } = this;
    const last = story.events.findLast((event) => event.ms <= ms && event.level !== "debug");
    const { all, back } = progress(story, ms);
    let words;
    if (last) {
      words = last.text;
    } else if (story.downMs !== null && ms >= story.downFrom) {
      words = story.isClean ? "The server was stopped." : "The server does not answer: it crashed, or the network is down.";
    } else {
      words = "The server is serving.";
    }
    const parts = [el("span", "told-last", words)];
    if (all > 0 && ms >= story.startMs && story.epoch !== "now") {
      const done = `${back} of ${plural(all, "client")} ${back === 1 ? "has" : "have"} reclaimed everything`;
      parts.push(el("span", back === all ? "told-all back" : "told-all", done));
    }
    this.told.replaceChildren(...parts);
  }

  #server(story) {
    const track = el("div", "track-lane");
    const band = (from, to, look, words) => {
      if (to <= from) return;
      const element = el("div", `band ${look}`, words);
      element.style.left = `${this.#at(from) * 100}%`;
      element.style.width = `${(this.#at(to) - this.#at(from)) * 100}%`;
      element.title = words;
      track.append(element);
    };
    if (story.downMs !== null) {
      band(story.from, story.downFrom, "serving", "");
      const seconds = (story.startMs - story.downMs) / 1000;
      const gone = seconds < 10 ? `${seconds.toFixed(1)} s` : age(seconds);
      band(story.downFrom, story.startMs, "down", story.isClean ? `stopped ${gone}` : `down ${gone}`);
    }
    const graceFrom = story.graceFrom ?? story.startMs;
    const graceTo = story.graceTo ?? graceFrom;
    band(graceFrom, graceTo, "grace", `grace ${((graceTo - graceFrom) / 1000).toFixed(1)} s`);
    if (!story.isRunning) band(graceTo, story.to, "serving", "serving");
    const start = el("div", "start-flag");
    start.style.left = `${this.#at(story.zeroMs) * 100}%`;
    start.title = story.start.text;
    track.append(start);
    const label = el("div", "lane-name");
    label.append(el("b", "", "Server"));
    const state = story.epoch === "now" ? "no answer" : story.isRunning ? "in grace" : "";
    const words = el("div", "lane-words", state);
    this.server.replaceChildren(label, track, words);
    this.server.setAttribute("aria-label", `Server: ${story.start.text}. ${story.graceEnd?.text ?? ""}`);
  }

  #lane(lane) {
    const row = paint(el("div", "lane"), lane.client.id);
    row.setAttribute("role", "row");
    const name = el("div", "lane-name");
    name.setAttribute("role", "rowheader");
    const chip = paint(el("span", "chip", lane.client.name), lane.client.id);
    chip.title = `${lane.client.name}, ${lane.client.address}`;
    name.append(chip);
    const track = el("div", "track-lane");
    track.setAttribute("role", "gridcell");
    for (const { from, to, look } of lane.bands) {
      const element = el("div", `band ${look}`);
      element.style.left = `${this.#at(from) * 100}%`;
      element.style.width = `${Math.max(0, this.#at(to) - this.#at(from)) * 100}%`;
      track.append(element);
    }
    track.append(...this.#marks(lane));
    const words = el("div", "lane-words");
    words.setAttribute("role", "gridcell");
    this.#words(words, lane, this.#headMs);
    row.append(name, track, words);
    row.setAttribute("aria-label", `${lane.client.name}: ${words.textContent || "nothing to reclaim"}`);
    return row;
  }

  #marks(lane) {
    const width = Math.max(100, this.width);
    const known = lane.marks.filter((event) => SYMBOLS[event.kind]);
    const shown = known.length > MARKS_MAX ? [...known.slice(0, 4), ...known.slice(4 - MARKS_MAX)] : known;
    let least = 0;
    return shown.map((event) => {
      // Overlapping marks are placed side by side.
      const x = Math.min(width - MARK_PX, Math.max(this.#at(event.ms) * width, least));
      least = x + MARK_PX;
      const mark = svg("svg", { class: `mark ${SYMBOLS[event.kind]}`, viewBox: "0 0 16 16" });
      mark.style.left = `${Math.min(100, (x / width) * 100)}%`;
      const title = svg("title");
      title.textContent = `${clock(event.ms)} ${event.text}`;
      mark.append(title, svg("use", { href: `#mark-${SYMBOLS[event.kind]}` }));
      return mark;
    });
  }

  #axis(story) {
    const span = (story.to - story.zeroMs) / 1000;
    const room = Math.max(2, this.width / 90);
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600].find(
      (each) => span / each <= room,
    ) ?? Math.ceil(span / room);
    const ticks = [];
    for (let at = 0; at <= span; at += step) {
      const words = at === 0 ? clock(story.zeroMs) : `+${Number(at.toFixed(1))} s`;
      const tick = el("span", at === 0 ? "tick zero" : "tick", words);
      tick.style.left = `${this.#at(story.zeroMs + at * 1000) * 100}%`;
      ticks.push(tick);
    }
    this.axis.replaceChildren(...ticks);
  }
}
