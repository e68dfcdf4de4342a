/** Figures in the language that is spoken: counts, rates, bytes and times. */

import { LANGUAGES, language, t } from "./words.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const FILE_UNITS = ["B", "kB", "MB", "GB", "TB"];

/** @param {number} value @param {Intl.NumberFormatOptions} [options] */
export function number(value, options = {}) {
  return new Intl.NumberFormat(LANGUAGES[language()], options).format(value);
}

/** Three digits or so: 0.42, 7.5, 1,234. */
export function rate(value) {
  return number(value, { maximumFractionDigits: value < 1 ? 2 : value < 100 ? 1 : 0 });
}

/** As `rate`, short enough for an axis that ends at `most`, and written in one way all along it. */
export function short(value, most = value) {
  return most < 10_000 ? rate(value) : number(value, { notation: "compact", maximumFractionDigits: 1 });
}

/** @param {number} value bytes */
export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value, { maximumFractionDigits: value < 10 && unit > 0 ? 1 : 0 })} ${UNITS[unit]}`;
}

/** How much of a file is there, `1.20 / 3.00 GB`: both in the unit of the larger one, decimal as files are measured. */
export function bytesOf(done, total) {
  const step = Math.min(FILE_UNITS.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(total, 1)) / 3)));
  const digits = step > 2 ? 2 : step > 1 ? 1 : 0;
  const write = (value) => number(value / 1000 ** step, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${write(done)} / ${write(total)} ${FILE_UNITS[step]}`;
}

/** @param {number} value seconds */
export function duration(value) {
  if (value < 60) return t("status.seconds", { n: number(value, { maximumFractionDigits: value < 10 ? 1 : 0 }) });
  return t("status.minutes", { m: number(Math.floor(value / 60)), n: number(Math.floor(value % 60)) });
}
