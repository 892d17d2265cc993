// Events told as stories: each start of the server, what it recovered, whom it told, who took
// everything back, and how grace ended. No drawing here.

/** Without a grace to wait for, a story is over this soon. */
const SHORT_MS = 8_000;
/** An outage may take up at most this share of the picture, however long it was. */
const OUTAGE_SHARE = 0.22;

/** The starts that are known, newest first; `lostSince` if the server does not answer now. */
export function storiesOf(events, outages, clients, lostSince, now) {
  const byEpoch = new Map();
  for (const event of events) {
    if (!byEpoch.has(event.epoch)) byEpoch.set(event.epoch, []);
    byEpoch.get(event.epoch).push(event);
  }
  const epochs = [...byEpoch.keys()].sort((a, b) => Number(a) - Number(b));
  const stories = epochs.map((epoch, index) => {
    const before = index > 0 ? byEpoch.get(epochs[index - 1]) : [];
    const isLast = index === epochs.length - 1;
    return tell(epoch, byEpoch.get(epoch), before, outages, isLast ? clients : new Map(), isLast, now);
  });
  if (lostSince !== null) stories.push(lost(lostSince, clients, now));
  return stories.reverse();
}

/** A story whose end is not known: since when the server does not answer, and whose locks wait. */
function lost(since, clients, now) {
  const to = Math.max(now, since + 2_000);
  const story = {
    epoch: "now",
    start: { text: "The server does not answer: it crashed, or the network did." },
    startMs: to,
    zeroMs: since,
    from: since - (to - since) * 0.4,
    to,
    isRunning: true,
    downMs: since,
    downFrom: since,
    isClean: false,
    graceFrom: null,
    graceTo: null,
    graceEnd: null,
    events: [],
    lanes: [],
  };
  const holders = [...clients.values()].filter((client) => client.locks + client.shares > 0);
  story.lanes = holders.map((client) => {
    const bands = [
      { from: story.from, to: since, look: "back" },
      { from: since, to, look: "kept" },
    ];
    return { client, story, marks: [], bands, backMs: null, missing: 0 };
  });
  return story;
}

function tell(epoch, events, before, outages, clients, isLast, now) {
  const start = events.find((event) => event.kind === "started") ?? events[0];
  const graceStart = events.find((event) => event.kind === "grace-started");
  const graceEnd = events.find((event) => event.kind === "grace-ended");
  const isRunning = isLast && graceStart !== undefined && graceEnd === undefined;
  const startMs = start.ms;
  let to;
  if (isRunning) to = Math.max(now, startMs + 2_000);
  else if (graceEnd) to = graceEnd.ms + Math.max(1_000, (graceEnd.ms - startMs) * 0.18);
  else to = startMs + SHORT_MS;
  // The outage as this page saw it ends about when the server had started.
  const outage = outages.find((each) => each.from <= startMs && each.to >= startMs - 1_000);
  const stopped = before.find((event) => event.kind === "stopped");
  const downMs = outage?.from ?? stopped?.ms ?? null;
  const shown = (to - startMs) * OUTAGE_SHARE;
  const from = downMs === null ? startMs - shown / 3 : startMs - shown;
  const story = {
    epoch,
    start,
    startMs,
    /** What times are counted from. */
    zeroMs: startMs,
    from,
    to,
    isRunning,
    /** Since when it did not answer, if that is known; `downFrom` is where it is drawn. */
    downMs,
    downFrom: downMs === null ? null : Math.max(downMs, startMs - shown * 0.72),
    isClean: stopped !== undefined,
    graceFrom: graceStart?.ms ?? null,
    graceTo: graceEnd?.ms ?? (isRunning ? to : null),
    graceEnd: graceEnd ?? null,
    events: events.filter((event) => event.ms <= to),
    lanes: [],
  };
  story.lanes = lanesOf(story, clients);
  return story;
}

/** What happens on every day, and tells nothing about a recovery. */
const ROUTINE = new Set(["registered", "unregistered", "deadlock", "refused", "passed-over"]);

/** What becomes of a client's locks: kept for it, back, freed, or in doubt. */
const TURNS = {
  reclaimed: "back",
  crashed: "silent",
  released: "freed",
  rebooted: "freed",
  fenced: "freed",
};

function lanesOf(story, clients) {
  const lanes = new Map();
  const laneOf = (client) => {
    if (!lanes.has(client.id)) {
      lanes.set(client.id, { client, story, marks: [], bands: [], backMs: null, missing: 0 });
    }
    return lanes.get(client.id);
  };
  for (const event of story.events) {
    if (event.client && !ROUTINE.has(event.kind)) laneOf(event.client).marks.push(event);
  }
  for (const client of clients.values()) {
    if (client.unconfirmed > 0) laneOf(client).missing = client.unconfirmed;
  }
  for (const lane of lanes.values()) finish(lane, story);
  // Those who had nothing at stake come last; while it goes on, those who are missing come first.
  const order = (lane) => {
    if (lane.bands.length === 0) return Number.MAX_VALUE;
    return lane.backMs ?? (story.isRunning ? 0 : Number.MAX_SAFE_INTEGER);
  };
  return [...lanes.values()].sort(
    (a, b) => order(a) - order(b) || (a.client.name < b.client.name ? -1 : 1),
  );
}

function finish(lane, story) {
  const turns = lane.marks.filter((event) => TURNS[event.kind]);
  const first = turns.find((event) => event.kind === "reclaimed");
  lane.backMs = first?.ms ?? null;
  // Nothing of it was at stake: its line stays thin.
  if (turns.length === 0 && lane.missing === 0) return;
  let from = story.startMs;
  let look = "kept";
  for (const event of turns) {
    lane.bands.push({ from, to: event.ms, look });
    from = event.ms;
    look = TURNS[event.kind];
  }
  lane.bands.push({ from, to: story.to, look });
}

/** How a client stands at a moment, in words. */
export function laneWords(lane, ms) {
  if (ms < lane.story.startMs) return { look: "", words: "" };
  if (lane.story.epoch === "now") {
    const { locks, shares } = lane.client;
    return { look: "", words: `${locks + shares} held when it went` };
  }
  const past = lane.marks.filter((event) => event.ms <= ms);
  const turn = past.findLast((event) => TURNS[event.kind]);
  const seconds = (to) => `${((to - lane.story.startMs) / 1000).toFixed(1)} s`;
  if (turn?.kind === "reclaimed") {
    const what = turn.locks ? `${turn.locks} ${turn.locks === 1 ? "lock" : "locks"}` : "all";
    return { look: "back", words: `${what} back after ${seconds(turn.ms)}` };
  }
  if (turn) return { look: TURNS[turn.kind], words: turn.kind };
  const sent = past.filter((event) => event.kind === "notice-sent").length;
  const answered = past.some((event) => event.kind === "notice-answered");
  const failed = past.filter((event) => event.kind === "notice-failed").length;
  if (lane.bands.length === 0) {
    return { look: "", words: answered ? "told; held nothing" : failed ? "no answer; held nothing" : "" };
  }
  if (answered) return { look: "kept", words: "told, has not taken all back" };
  if (failed) return { look: "silent", words: failed === 1 ? "a notice failed" : `${failed} notices failed` };
  return { look: "kept", words: sent ? "notice sent" : "not told yet" };
}

/** How many clients had something to take back, and how many have it by then. */
export function progress(story, ms) {
  const concerned = story.lanes.filter((lane) => lane.bands.length > 0);
  const back = concerned.filter((lane) => lane.backMs !== null && lane.backMs <= ms);
  return { all: concerned.length, back: back.length };
}
