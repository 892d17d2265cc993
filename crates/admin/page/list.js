// A virtualised list: only visible rows are in the document.
//
// Rows have individual heights and a roving tab stop, and are reused by key: a row whose version did
// not change is only moved. The focused row stays in the document when scrolled out of view.

const OVERSCAN_PX = 240;
/** Below this width, rows are laid out for a small screen (`.narrow` in the style sheets). */
export const NARROW_PX = 720;

export class List {
  /**
   * `of.key(item)`, `of.version(item)`, `of.height(item)` and `of.row(item, index)` say what a row
   * is; `of.onKey(event, item, row)` may take a key first and says so with true.
   */
  constructor(scroller, of) {
    this.scroller = scroller;
    this.of = of;
    this.items = [];
    this.tops = new Float64Array(1);
    this.rows = new Map();
    this.active = null;
    /** Cached: reading the size between changes would force a layout. */
    this.width = 0;
    this.height = 0;
    this.top = 0;
    this.space = document.createElement("div");
    this.space.className = "list-space";
    this.space.setAttribute("role", "rowgroup");
    scroller.append(this.space);
    scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    scroller.addEventListener("keydown", (event) => this.#key(event));
    scroller.addEventListener("focusin", (event) => {
      const row = event.target.closest("[data-key]");
      if (row) this.#mark(row.dataset.key);
    });
    new ResizeObserver(() => this.relayout()).observe(scroller);
  }

  set(items) {
    const anchor = this.#anchor();
    if (this.height === 0) this.#size();
    this.items = items;
    this.#measure();
    if (anchor) {
      const index = items.findIndex((item) => this.of.key(item) === anchor.key);
      if (index >= 0) this.scroller.scrollTop = this.tops[index] + anchor.offset;
    }
    this.draw();
  }

  /** Recomputes heights after a resize. */
  relayout() {
    this.#size();
    if (this.height > 0) this.set(this.items);
  }

  draw() {
    const { items, tops } = this;
    if (this.height === 0) return;
    this.top = this.scroller.scrollTop;
    const from = this.indexAt(this.top - OVERSCAN_PX);
    const until = this.top + this.height + OVERSCAN_PX;
    const wanted = new Map();
    for (let index = from; index < items.length && tops[index] < until; index += 1) {
      wanted.set(this.of.key(items[index]), index);
    }
    const focused = document.activeElement?.closest?.("[data-key]");
    const pinned = focused && this.space.contains(focused) ? focused.dataset.key : null;
    if (pinned !== null && !wanted.has(pinned)) {
      const index = items.findIndex((item) => this.of.key(item) === pinned);
      if (index >= 0) wanted.set(pinned, index);
    }
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      row.element.remove();
      this.rows.delete(key);
    }
    if (this.active === null || !wanted.has(this.active)) {
      this.active = this.#firstVisible(wanted);
    }
    for (const [key, index] of wanted) this.#place(key, index);
    if (pinned !== null && !wanted.has(pinned)) {
      this.rows.get(this.active)?.element.focus({ preventScroll: true });
    }
  }

  /** The last row that starts at or above this offset. */
  indexAt(top) {
    let low = 0;
    let high = this.items.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= top) low = middle;
      else high = middle - 1;
    }
    return Math.max(0, low);
  }

  /** The visible items. */
  visible() {
    const from = this.indexAt(this.scroller.scrollTop);
    const until = this.indexAt(this.scroller.scrollTop + this.height);
    return this.items.slice(from, until + 1);
  }

  focusIndex(index) {
    if (index < 0 || index >= this.items.length) return;
    const { scroller, tops } = this;
    if (tops[index] < scroller.scrollTop) scroller.scrollTop = tops[index];
    const under = tops[index + 1] - this.height;
    if (under > scroller.scrollTop) scroller.scrollTop = under;
    this.#mark(this.of.key(this.items[index]));
    this.draw();
    this.rows.get(this.active)?.element.focus({ preventScroll: true });
  }

  #key(event) {
    const row = event.target.closest("[data-key]");
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const known = this.rows.get(row.dataset.key);
    if (!known) return;
    if (this.of.onKey?.(event, this.items[known.index], row)) {
      event.preventDefault();
      return;
    }
    const page = Math.max(1, this.visible().length - 1);
    const last = this.items.length - 1;
    const to = {
      ArrowDown: known.index + 1,
      ArrowUp: known.index - 1,
      PageDown: Math.min(last, known.index + page),
      PageUp: Math.max(0, known.index - page),
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.focusIndex(to);
  }

  #size() {
    this.width = this.scroller.clientWidth;
    this.height = this.scroller.clientHeight;
    this.scroller.classList.toggle("narrow", this.width < NARROW_PX);
  }

  #measure() {
    const tops = new Float64Array(this.items.length + 1);
    for (let index = 0; index < this.items.length; index += 1) {
      tops[index + 1] = tops[index] + this.of.height(this.items[index]);
    }
    this.tops = tops;
    this.space.style.height = `${tops[this.items.length]}px`;
    const counted = this.scroller.closest("[role=grid],[role=treegrid],[role=table]");
    counted?.setAttribute("aria-rowcount", String(this.items.length + (this.of.heads ?? 0)));
  }

  /** The item at the top, kept in place when rows above it change. */
  #anchor() {
    if (this.items.length === 0 || this.scroller.scrollTop === 0) return null;
    const index = this.indexAt(this.scroller.scrollTop);
    const offset = this.scroller.scrollTop - this.tops[index];
    return { key: this.of.key(this.items[index]), offset };
  }

  #firstVisible(wanted) {
    for (const [key, index] of wanted) {
      if (this.tops[index] >= this.top) return key;
    }
    return wanted.keys().next().value ?? null;
  }

  #mark(key) {
    if (key === this.active) return;
    this.rows.get(this.active)?.element.setAttribute("tabindex", "-1");
    this.active = key;
    this.rows.get(key)?.element.setAttribute("tabindex", "0");
  }

  #place(key, index) {
    const item = this.items[index];
    const version = this.of.version(item);
    let row = this.rows.get(key);
    if (!row || row.version !== version) {
      const element = this.of.row(item, index);
      element.dataset.key = key;
      if (row) {
        const part = row.element.contains(document.activeElement)
          ? document.activeElement.dataset.part ?? ""
          : null;
        row.element.replaceWith(element);
        if (part !== null) {
          const again = part && element.querySelector(`[data-part="${CSS.escape(part)}"]`);
          element.tabIndex = -1;
          (again || element).focus({ preventScroll: true });
        }
      } else {
        this.space.append(element);
      }
      row = { element, version, index: -1, top: -1 };
      this.rows.set(key, row);
      this.of.placed?.(element, item);
    }
    row.element.setAttribute("tabindex", key === this.active ? "0" : "-1");
    if (row.index !== index) {
      row.index = index;
      row.element.setAttribute("aria-rowindex", String(index + 1 + (this.of.heads ?? 0)));
    }
    if (row.top !== this.tops[index]) {
      row.top = this.tops[index];
      row.element.style.transform = `translateY(${row.top}px)`;
    }
  }
}
