/** Prompts out of lines of text and out of files. No DOM. */

export const MAX_ITEMS = 1000;
const ESCAPES = { "\\n": "\n", "\\t": "\t", "\\\\": "\\" };
const WRITTEN = { "\n": "\\n", "\r": "", "\t": "\\t", "\\": "\\\\" };

/** A line of a file that is no prompt. `reason`: `json` or `shape`. */
export class BadLine extends Error {
  constructor(line, reason) {
    super(`line ${line}: ${reason}`);
    this.line = line;
    this.reason = reason;
  }
}

/** `\n`, `\t` and `\\` of a line as the characters that they stand for; other backslashes stay. */
export function unescaped(line) {
  return line.replace(/\\[nt\\]/g, (pair) => ESCAPES[pair]);
}

/** The opposite: a text of any number of lines on one line. */
export function escaped(text) {
  return text.replace(/\r\n/g, "\n").replace(/[\n\r\t\\]/g, (each) => WRITTEN[each]);
}

/** One prompt for each line that is not blank. */
export function promptsOf(text) {
  return linesOf(text).filter((line) => line.trim() !== "").map(unescaped);
}

/**
 * The lines that a file gives to the list: those of a .txt as they are, those of a .jsonl as texts or objects with a text `prompt`.
 * Throws BadLine.
 */
export function linesOfFile(name, text) {
  const lines = linesOf(text.replace(/^\uFEFF/, ""));
  if (!/\.(jsonl|ndjson|json)$/i.test(name)) return lines.filter((line) => line.trim() !== "");
  return lines.flatMap((line, index) => (line.trim() === "" ? [] : [escaped(promptOf(line, index + 1))]));
}

function linesOf(text) {
  return text.split(/\r\n|\r|\n/);
}

function promptOf(line, number) {
  let value;
  try {
    value = JSON.parse(line);
  } catch {
    throw new BadLine(number, "json");
  }
  const prompt = typeof value === "string" ? value : value?.prompt;
  if (typeof prompt !== "string" || prompt.trim() === "") throw new BadLine(number, "shape");
  return prompt;
}
