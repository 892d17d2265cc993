// The bar of one file: locked byte ranges by client, and waiters with arrows to what blocks them.
//
// The axis preserves the order of bytes, not distances: each interval between two boundaries gets a
// width logarithmic in its length, so that [0, 99], 2^40 and "to the end" fit in one picture. Ticks
// give the numbers.

import { hueOf, paint } from "./colours.js";
import { MODES, el, offset, sentence, svg } from "./words.js";

export const LANE_PX = 24;
export const WAIT_PX = 33;
const AXIS_PX = 18;
const HELD_LANES_MAX = 4;
const WAIT_LANES_MAX = 4;
/** With more spans, a canvas is drawn instead of elements; the expanded row lists the locks. */
const SPANS_MAX = 60;
const TICK_PX = 78;
const END_PX = 44;
const LETTER_PX = 6.4;

/** Positions as fractions of the width, cached on the file until it changes. */
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

/** Height of the drawing in pixels. */
export function barHeight(file) {
  // Most files have one lock; their height needs no layout.
  if (file.held.length <= 1 && file.waiters.length === 0) return LANE_PX + AXIS_PX;
  const layout = layoutOf(file);
  return layout.waitLanes * WAIT_PX + layout.heldLanes * LANE_PX + AXIS_PX;
}

/** Numbers of locks and waiters not drawn for lack of space. */
export function hiddenIn(file) {
  const layout = layoutOf(file);
  return {
    waiters: Math.max(0, layout.waiters.length - WAIT_LANES_MAX),
    held: layout.isDense ? 0 : layout.lanes.of.filter((lane) => lane >= HELD_LANES_MAX).length,
  };
}

/** Draws the bar `width` pixels wide; locks for which `dim(lock)` holds are faded. */
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
    // The first waiter is next to the lock that blocks it.
    const top = heldTop - (index + 1) * WAIT_PX;
    spots.set(lock.id, top);
    bar.append(span(lock, layout.scale, top, width, dim, now));
  });
  const arrows = arrowsOf(layout, spots, heldTop);
  if (arrows) bar.append(arrows);
  bar.append(axis(layout.scale, width));
  return bar;
}

/** A single span on the axis of its file, for rows of single locks. */
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

/** Draws the canvases of a row once it is in the document. */
export function placed(row) {
  for (const canvas of row.querySelectorAll("canvas")) canvas.paint?.();
}

/** Share of the width for ranges with waiters, in files with many locks. */
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
  // Open-ended locks get an interval of their own.
  const whole = sum + (open ? Math.max(1, sum * 0.25) : Math.max(0.15, sum * 0.04));
  const byPoint = new Map(points.map((point, index) => [point, places[index] / whole]));
  return {
    points,
    gaps: gaps.map((index) => [places[index] / whole, places[index + 1] / whole]),
    open,
    at: (byte) => (byte === Infinity ? 1 : byPoint.get(byte) ?? 0),
  };
}

/** Weight of each interval between two boundaries, and the indices of unlocked ones. */
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

/** Overlapping locks (readers, shares) are placed on separate lanes. */
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

/** Draws thousands of spans on a canvas; of spans sharing a column, the last is shown. */
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
      // Whole pixels, as blended neighbours would turn grey.
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
    // A label without space on the right is placed left of its tick.
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
