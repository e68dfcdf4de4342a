/** A live chart of one figure over the last seconds, drawn as SVG in the pixels of its box. */

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 46;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 22;

/**
 * Round numbers from 0 to at least `highest`, `parts` steps at most.
 * @param {number} highest
 * @param {number} [parts]
 * @returns {number[]}
 */
export function ticks(highest, parts = 4) {
  // Nothing at all is shown on an axis of whole numbers.
  const most = highest > 0 ? highest : parts;
  const least = most / parts;
  const power = 10 ** Math.floor(Math.log10(least));
  // What rounding leaves counts as equal: 3 * 0.1 is not 0.3.
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= least * (1 - 1e-9));
  const count = Math.ceil(most / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

/** Samples of the last `seconds`; a `null` or a pause longer than `gap` seconds is a hole in the line. */
export class Chart {
  /**
   * @param {{seconds?: number, gap?: number, format?: (value: number, most: number) => string, ago?: (seconds: number) => string}} [options]
   *   `format` writes a value of an axis that ends at its second argument, `ago` a moment: 0 is now.
   */
  constructor({ seconds = 120, gap = 3, format = String, ago = (past) => `-${past} s` } = {}) {
    this.seconds = seconds;
    this.gap = gap;
    this.format = format;
    this.ago = ago;
    /** @type {{time: number, value: number | null}[]} */
    this.samples = [];
    this.width = 600;
    this.height = 180;
    this.svg = shape("svg", { class: "chart", role: "img", "aria-label": "" });
    this.resizes = new ResizeObserver(([entry]) => this.#resize(entry.contentRect));
    this.resizes.observe(this.svg);
    this.draw();
  }

  /**
   * One more sample, to be seen after `draw`.
   * @param {number | null} value
   * @param {number} [time] seconds, of a clock that never goes back
   */
  push(value, time = performance.now() / 1000) {
    this.samples.push({ time, value: Number.isFinite(value) && value >= 0 ? value : null });
    this.samples = this.samples.filter((sample) => time - sample.time <= this.seconds + this.gap);
  }

  /** What screen readers hear in place of the lines. @param {string} text */
  describe(text) {
    if (this.svg.getAttribute("aria-label") !== text) this.svg.setAttribute("aria-label", text);
  }

  /** The highest sample, 0 where there is none. */
  get highest() {
    return Math.max(0, ...this.samples.map((sample) => sample.value ?? 0));
  }

  draw() {
    const axis = ticks(this.highest);
    const top = axis[axis.length - 1];
    const now = this.samples.length ? this.samples[this.samples.length - 1].time : 0;
    const x = (time) => this.width - RIGHT - ((now - time) / this.seconds) * (this.width - LEFT - RIGHT);
    const y = (value) => this.height - BOTTOM - (value / top) * (this.height - TOP - BOTTOM);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    const lines = this.#runs(now).map((run) => run.map(({ time, value }) => [x(time), y(value)]));
    this.svg.replaceChildren(...this.#grid(axis, y), ...this.#moments(now, x), ...lines.flatMap((points) => curve(points, y(0))));
  }

  close() {
    this.resizes.disconnect();
  }

  /** The samples without holes, each run a list. */
  #runs(now) {
    const runs = [];
    let last = null;
    for (const sample of this.samples) {
      if (sample.value === null || now - sample.time > this.seconds) last = null;
      else {
        if (last === null || sample.time - last.time > this.gap) runs.push([]);
        runs[runs.length - 1].push(sample);
        last = sample;
      }
    }
    return runs;
  }

  #grid(axis, y) {
    return axis.flatMap((value) => [
      shape("line", { class: "chart-grid", x1: LEFT, x2: this.width - RIGHT, y1: y(value), y2: y(value) }),
      shape("text", { class: "chart-value", x: LEFT - 6, y: y(value) + 4 }, this.format(value, axis.at(-1))),
    ]);
  }

  #moments(now, x) {
    const wide = this.width > 420;
    const steps = wide ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.5, 1];
    return steps.map((part) => {
      const past = part * this.seconds;
      const side = part === 0 ? "end" : part === 1 ? "start" : "middle";
      return shape("text", { class: `chart-time chart-${side}`, x: x(now - past), y: this.height - 6 }, this.ago(past));
    });
  }

  #resize({ width, height }) {
    // A box in a hidden panel has no size, and what was drawn for the last one will do.
    if (width < 1 || height < 1 || (width === this.width && height === this.height)) return;
    this.width = Math.round(width);
    this.height = Math.round(height);
    this.draw();
  }
}

/** A line through the points, and the area under it; a lone point is a dot. */
function curve(points, floor) {
  if (points.length === 1) return [shape("circle", { class: "chart-dot", cx: points[0][0], cy: points[0][1], r: 2 })];
  const way = points.map(([left, up]) => `${left.toFixed(1)},${up.toFixed(1)}`).join(" L");
  const [first, last] = [points[0][0].toFixed(1), points[points.length - 1][0].toFixed(1)];
  return [
    shape("path", { class: "chart-area", d: `M${first},${floor} L${way} L${last},${floor} Z` }),
    shape("path", { class: "chart-line", d: `M${way}` }),
  ];
}

function shape(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  if (text !== undefined) node.textContent = text;
  return node;
}
