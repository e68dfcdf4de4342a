/** Letters that carry thousands of marks: browsers take many seconds to draw one. No DOM. */

// No writing puts so many on one letter.
const MOST = 16;

/** A text that comes in pieces, as it may be shown: marks beyond `MOST` on one letter are left out. */
export class Marks {
  #before = 0;

  /** @param {string} piece what follows the pieces before it */
  shown(piece) {
    const shown = piece.replace(/\p{M}+/gu, (run, at) => {
      const room = Math.max(0, MOST - (at === 0 ? this.#before : 0));
      return run.length <= room ? run : [...run].slice(0, room).join("");
    });
    const last = /\p{M}+$/u.exec(piece)?.[0];
    if (last === undefined) this.#before = 0;
    else this.#before = [...last].length + (last.length === piece.length ? this.#before : 0);
    return shown;
  }
}
