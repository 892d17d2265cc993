// One file's bar: which bytes are locked by whom, and who waits for what.
//
// The axis keeps the order of bytes, not their distances: every stretch between two borders gets a
// width that grows with the logarithm of its length. So [0, 99], 2^40 and "to the end" are readable
// in one picture; the ticks say the numbers.

import { hueOf, paint } from "./colours.js";
import { MODES, el, offset, sentence, svg } from "./words.js";

export const LANE_PX = 24;
export const WAIT_PX = 33;
const AXIS_PX = 18;
const HELD_LANES_MAX = 4;
const WAIT_LANES_MAX = 4;
/** Beyond this many, spans are painted, not built of elements; the rows below them list them. */
const SPANS_MAX = 60;
const TICK_PX = 78;
const END_PX = 44;
const LETTER_PX = 6.4;

/** Where everything is, as fractions of the width. Kept on the file until that changes. */
export function layoutOf(file) {
  if (file.layout) return file.layout;
  const held = [...file.held].sort((a, b) => a.start - b.start || b.end - a.end);
  const waiters = [...file.waiters].sort((a, b) => a.sinceMs - b.sinceMs);
  const scale = scaleOf([...held, ...waiters], waiters.slice(0, WAIT_LANES_MAX));
  const lanes = lanesOf(held);
  file.layout = {
    held,
    waiters,
    scale,
    lanes,
    heldLanes: Math.min(HELD_LANES_MAX, Math.max(1, lanes.count)),
    waitLanes: Math.min(WAIT_LANES_MAX, waiters.length),
    isDense: held.length > SPANS_MAX,
  };
  return file.layout;
}

/** How high the drawing is. */
export function barHeight(file) {
  // The usual file has one lock: its height is known without laying it out.
  if (file.held.length <= 1 && file.waiters.length === 0) return LANE_PX + AXIS_PX;
  const layout = layoutOf(file);
  return layout.waitLanes * WAIT_PX + layout.heldLanes * LANE_PX + AXIS_PX;
}

/** What is not drawn because there is no room. */
export function hiddenIn(file) {
  const layout = layoutOf(file);
  return {
    waiters: Math.max(0, layout.waiters.length - WAIT_LANES_MAX),
    held: layout.isDense ? 0 : layout.lanes.of.filter((lane) => lane >= HELD_LANES_MAX).length,
  };
}

/** The drawing, `width` pixels wide. `dim(lock)` fades what the filter does not mean. */
export function drawBar(file, width, dim, now) {
  const layout = layoutOf(file);
  const bar = el("div", "bar");
  bar.style.height = `${barHeight(file)}px`;
  const heldTop = layout.waitLanes * WAIT_PX;
  bar.append(track(layout, heldTop));
  const spots = new Map();
  if (layout.isDense) {
    bar.append(dense(layout, width, heldTop, dim));
  } else {
    layout.held.forEach((lock, index) => {
      const lane = layout.lanes.of[index];
      if (lane >= HELD_LANES_MAX) return;
      const top = heldTop + (layout.heldLanes - 1 - lane) * LANE_PX;
      spots.set(lock.id, top);
      bar.append(span(lock, layout.scale, top, width, dim, now));
    });
  }
  layout.waiters.slice(0, WAIT_LANES_MAX).forEach((lock, index) => {
    // The first in the queue is next to what it waits for.
    const top = heldTop - (index + 1) * WAIT_PX;
    spots.set(lock.id, top);
    bar.append(span(lock, layout.scale, top, width, dim, now));
  });
  const arrows = arrowsOf(layout, spots, heldTop);
  if (arrows) bar.append(arrows);
  bar.append(axis(layout.scale, width));
  return bar;
}

/** A single span on the axis of its file, for the rows that list locks. */
export function drawOne(lock) {
  const { scale } = layoutOf(lock.file);
  const bar = el("div", "bar one");
  const one = paint(el("div", `span bare ${lock.kind} ${lock.mode} ${lock.state}`), lock.client.id);
  const [from, to] = edges(lock, scale);
  one.style.left = `${from * 100}%`;
  one.style.width = `${(to - from) * 100}%`;
  bar.append(el("div", "track"), one);
  bar.setAttribute("aria-hidden", "true");
  return bar;
}

/** Paints the dense bars of a row that is in the document now. */
export function placed(row) {
  for (const canvas of row.querySelectorAll("canvas")) canvas.paint?.();
}

/** A file with many locks must not press those that matter into a pixel: they get this share. */
const FOCUS_SHARE = 0.4;

function scaleOf(locks, focus) {
  const borders = new Set([0]);
  const covered = [];
  let open = false;
  for (const lock of locks) {
    if (lock.kind === "share") continue;
    borders.add(lock.start);
    if (lock.end === Infinity) open = true;
    else borders.add(lock.end);
    covered.push([lock.start, lock.end]);
  }
  const points = [...borders].sort((a, b) => a - b);
  covered.sort((a, b) => a[0] - b[0]);
  const { weights, gaps } = weigh(points, covered);
  magnify(points, weights, focus);
  const places = [0];
  for (const weight of weights) places.push(places.at(-1) + weight);
  const sum = places.at(-1);
  // The end of the file is nowhere in particular: a stretch of its own.
  const whole = sum + (open ? Math.max(1, sum * 0.25) : Math.max(0.15, sum * 0.04));
  const byPoint = new Map(points.map((point, index) => [point, places[index] / whole]));
  return {
    points,
    gaps: gaps.map((index) => [places[index] / whole, places[index + 1] / whole]),
    open,
    at: (byte) => (byte === Infinity ? 1 : byPoint.get(byte) ?? 0),
  };
}

/** How wide each stretch between two borders is, and which of them nobody locks. */
function weigh(points, covered) {
  const weights = [];
  const gaps = [];
  let reach = 0;
  let next = 0;
  for (let index = 0; index + 1 < points.length; index += 1) {
    while (next < covered.length && covered[next][0] <= points[index]) {
      reach = Math.max(reach, covered[next][1]);
      next += 1;
    }
    const length = Math.log2(1 + points[index + 1] - points[index]);
    const isGap = reach < points[index + 1];
    if (isGap) gaps.push(index);
    weights.push(isGap ? 0.3 + length / 30 : 1 + length / 8);
  }
  return { weights, gaps };
}

function magnify(points, weights, focus) {
  if (focus.length === 0 || weights.length < 24) return;
  const isMeant = weights.map((_, index) =>
    focus.some((lock) => lock.start <= points[index] && points[index + 1] <= lock.end),
  );
  let meant = 0;
  let all = 0;
  weights.forEach((weight, index) => {
    all += weight;
    if (isMeant[index]) meant += weight;
  });
  if (meant === 0 || meant / all >= FOCUS_SHARE) return;
  const factor = (FOCUS_SHARE * (all - meant)) / ((1 - FOCUS_SHARE) * meant);
  weights.forEach((weight, index) => {
    if (isMeant[index]) weights[index] = weight * factor;
  });
}

/** What overlaps, readers and shares, goes on lanes of their own. */
function lanesOf(held) {
  const ends = [];
  const of = held.map((lock) => {
    let lane = ends.findIndex((end) => end <= lock.start);
    if (lane < 0) lane = Math.min(ends.length, HELD_LANES_MAX);
    ends[lane] = Math.max(ends[lane] ?? 0, lock.end);
    return lane;
  });
  return { of, count: ends.length };
}

function edges(lock, scale) {
  return [scale.at(lock.start), scale.at(lock.end)];
}

function span(lock, scale, top, width, dim, now) {
  const [from, to] = edges(lock, scale);
  const element = el("button", `span ${lock.kind} ${lock.mode} ${lock.state}`);
  element.type = "button";
  element.tabIndex = -1;
  element.dataset.part = lock.id;
  element.style.left = `${from * 100}%`;
  element.style.width = `${(to - from) * 100}%`;
  element.style.top = `${top}px`;
  if (lock.end === Infinity && lock.kind !== "share") element.classList.add("open");
  if (lock.passedOver) element.classList.add("passed");
  if (dim(lock)) element.classList.add("dim");
  const said = sentence(lock, now);
  element.title = said;
  element.setAttribute("aria-label", said);
  if ((to - from) * width >= 34) {
    element.append(el("span", "who", lock.client.name));
    const mode = lock.kind === "share" ? `share ${MODES[lock.mode]}` : MODES[lock.mode];
    const state = lock.kind === "waiter" || lock.state === "held" ? "" : ` · ${lock.state}`;
    const text = lock.kind === "waiter" ? `waits · ${mode}` : `${mode}${state}`;
    if ((to - from) * width >= 110) element.append(el("span", "mode", text));
  }
  return paint(element, lock.client.id);
}

/** Thousands of spans as pixels: a column shows the last of those that share it. */
function dense(layout, width, top, dim) {
  const canvas = el("canvas", "dense");
  const height = layout.heldLanes * LANE_PX - 3;
  canvas.style.top = `${top}px`;
  canvas.style.height = `${height}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${layout.held.length} locks; open the row to list them`);
  canvas.paint = () => {
    const ratio = globalThis.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const light = style.getPropertyValue("--span-light").trim() || "0.7";
    const laneHeight = canvas.height / layout.heldLanes;
    layout.held.forEach((lock, index) => {
      const [from, to] = edges(lock, layout.scale);
      context.globalAlpha = dim(lock) ? 0.2 : lock.state === "held" ? 1 : 0.5;
      context.fillStyle = `oklch(${light} 0.11 ${hueOf(lock.client.id)})`;
      const lane = Math.min(layout.lanes.of[index], layout.heldLanes - 1);
      const y = (layout.heldLanes - 1 - lane) * laneHeight;
      // Whole pixels: halves of neighbours would mix to grey.
      const x = Math.floor(from * canvas.width);
      const right = Math.max(x + 1, Math.floor(to * canvas.width) - (to - from > 0.004 ? 1 : 0));
      context.fillRect(x, y, right - x, laneHeight - ratio);
    });
  };
  // The nearest lock under the pointer.
  canvas.lockAt = (fraction) => {
    let best = null;
    let distance = Infinity;
    for (const lock of layout.held) {
      const [from, to] = edges(lock, layout.scale);
      const away = fraction < from ? from - fraction : fraction > to ? fraction - to : 0;
      if (away < distance) [best, distance] = [lock, away];
      if (away === 0) break;
    }
    return best;
  };
  return canvas;
}

function track(layout, top) {
  const line = el("div", "track");
  line.style.top = `${top}px`;
  line.style.height = `${layout.heldLanes * LANE_PX - 3}px`;
  if (!layout.isDense) {
    for (const [from, to] of layout.scale.gaps.slice(0, SPANS_MAX)) {
      const gap = el("div", "gap");
      gap.style.left = `${from * 100}%`;
      gap.style.width = `${(to - from) * 100}%`;
      line.append(gap);
    }
  }
  return line;
}

function arrowsOf(layout, spots, heldTop) {
  const drawn = layout.waiters.slice(0, WAIT_LANES_MAX);
  if (drawn.length === 0) return null;
  const canvas = svg("svg", { class: "arrows", width: "100%", height: "100%", "aria-hidden": "true" });
  drawn.forEach((waiter, index) => {
    const blocker =
      layout.held.find((lock) => lock.id === waiter.blockedBy) ??
      drawn.slice(0, index).findLast((other) => overlap(other, waiter)) ??
      layout.held.find((lock) => overlap(lock, waiter));
    if (!blocker) return;
    const [a, b] = edges(waiter, layout.scale);
    const [c, d] = edges(blocker, layout.scale);
    const [low, high] = [Math.max(a, c), Math.min(b, d)];
    const middle = high > low ? low + ((high - low) * (index + 1)) / (drawn.length + 1) : (a + b) / 2;
    const from = heldTop - (index + 1) * WAIT_PX + LANE_PX - 4;
    const to = (spots.get(blocker.id) ?? heldTop) + 1;
    const x = `${middle * 100}%`;
    const line = { x1: x, x2: x, y1: from, y2: to };
    canvas.append(svg("line", { ...line, class: "halo" }));
    canvas.append(svg("line", { ...line, class: "arrow", "marker-end": "url(#arrowhead)" }));
  });
  return canvas;
}

function overlap(a, b) {
  return a.start < b.end && b.start < a.end;
}

function axis(scale, width) {
  const line = el("div", "axis");
  line.setAttribute("aria-hidden", "true");
  const until = scale.open ? width - END_PX : width;
  let free = 0;
  const all = scale.points.length > 200 ? thin(scale.points, width) : scale.points;
  for (const point of all) {
    const x = scale.at(point) * width;
    const words = offset(point);
    const wide = words.length * LETTER_PX + 12;
    // A number that has no room to its right may stand to the left of its tick.
    const isLast = x + wide > until;
    if (isLast ? x - wide < free || x > until : x < free) continue;
    free = isLast ? x : x + wide;
    const tick = el("span", isLast ? "tick last" : "tick", words);
    tick.style.left = `${scale.at(point) * 100}%`;
    line.append(tick);
  }
  if (scale.open) line.append(el("span", "tick end", "end →"));
  return line;
}

function thin(points, width) {
  const step = Math.max(1, Math.floor(points.length / Math.max(2, width / TICK_PX)));
  return points.filter((_, index) => index % step === 0);
}
