// Groups events into recoveries, one per server start: outage, notices, reclaims, end of grace. No
// drawing here.

/** Length of a recovery without a grace period. */
const SHORT_MS = 8_000;
/** Maximum share of the timeline for an outage. */
const OUTAGE_SHARE = 0.22;

/** Known recoveries, newest first; `lostSince` if the server is unreachable now. */
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

/** An outage in progress: its start, and the clients that held locks. */
function lost(since, clients, now) {
  const to = Math.max(now, since + 2_000);
  const story = {
    epoch: "now",
    start: { text: "The server does not answer: it crashed, or the network is down." },
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
  // The outage as seen by this page ends about when the server started.
  const outage = outages.find((each) => each.from <= startMs && each.to >= startMs - 1_000);
  const stopped = before.find((event) => event.kind === "stopped");
  const downMs = outage?.from ?? stopped?.ms ?? null;
  const shown = (to - startMs) * OUTAGE_SHARE;
  const from = downMs === null ? startMs - shown / 3 : startMs - shown;
  const story = {
    epoch,
    start,
    startMs,
    /** Origin of relative times. */
    zeroMs: startMs,
    from,
    to,
    isRunning,
    /** Start of the outage, if known; `downFrom` is where it is drawn. */
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

/** Routine events, unrelated to recovery. */
const ROUTINE = new Set(["registered", "unregistered", "deadlock", "refused", "passed-over"]);

/** Events that change the state of a client's locks. */
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
  // Clients without locks last; during a recovery, those that have not reclaimed first.
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
  // It held nothing: no band.
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

/** A client's state at a moment, in words. */
export function laneWords(lane, ms) {
  if (ms < lane.story.startMs) return { look: "", words: "" };
  if (lane.story.epoch === "now") {
    const { locks, shares } = lane.client;
    return { look: "", words: `${locks + shares} held at the crash` };
  }
  const past = lane.marks.filter((event) => event.ms <= ms);
  const turn = past.findLast((event) => TURNS[event.kind]);
  const seconds = (to) => `${((to - lane.story.startMs) / 1000).toFixed(1)} s`;
  if (turn?.kind === "reclaimed") {
    const what = turn.locks ? `${turn.locks} ${turn.locks === 1 ? "lock" : "locks"}` : "all";
    return { look: "back", words: `${what} reclaimed after ${seconds(turn.ms)}` };
  }
  if (turn) return { look: TURNS[turn.kind], words: turn.kind };
  const sent = past.filter((event) => event.kind === "notice-sent").length;
  const answered = past.some((event) => event.kind === "notice-answered");
  const failed = past.filter((event) => event.kind === "notice-failed").length;
  if (lane.bands.length === 0) {
    return { look: "", words: answered ? "notified; held nothing" : failed ? "no answer; held nothing" : "" };
  }
  if (answered) return { look: "kept", words: "notified, not all reclaimed" };
  if (failed) return { look: "silent", words: failed === 1 ? "a notice failed" : `${failed} notices failed` };
  return { look: "kept", words: sent ? "notice sent" : "not notified yet" };
}

/** Number of clients with locks to reclaim, and how many have done so by then. */
export function progress(story, ms) {
  const concerned = story.lanes.filter((lane) => lane.bands.length > 0);
  const back = concerned.filter((lane) => lane.backMs !== null && lane.backMs <= ms);
  return { all: concerned.length, back: back.length };
}
