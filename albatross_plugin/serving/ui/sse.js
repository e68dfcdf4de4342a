/** Server-sent events of an answer, however its bytes are cut. No DOM. */

/**
 * The data of each event. One that the stream's end cuts off, before its empty line, is not given.
 * @param {Response} response
 * @returns {AsyncGenerator<string>}
 */
export async function* events(response) {
  if (!response.body) return;
  const reader = response.body.getReader();
  // Streaming: a character may be cut too. The decoder takes a byte order mark off the start.
  const decoder = new TextDecoder();
  const parser = new Parser();
  let ended = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
    ended = true;
  } catch (error) {
    ended = true;
    throw error;
  } finally {
    // Whoever stops listening half way ends the connection, so that the server stops too.
    if (!ended) await reader.cancel().catch(() => {});
  }
}

class Parser {
  #rest = "";
  #data = null;
  #afterReturn = false;

  /** The data of the events that `text` completes. */
  push(text) {
    const complete = [];
    if (text === "") return complete;
    // The second half of a CRLF whose first half ended a line already.
    let start = this.#afterReturn && text[0] === "\n" ? 1 : 0;
    this.#afterReturn = text.endsWith("\r");
    const ends = /\r\n|\r|\n/g;
    ends.lastIndex = start;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      const line = this.#rest + text.slice(start, end.index);
      this.#rest = "";
      start = ends.lastIndex;
      this.#line(line, complete);
    }
    this.#rest += text.slice(start);
    return complete;
  }

  #line(line, complete) {
    if (line === "") {
      if (this.#data !== null) complete.push(this.#data);
      this.#data = null;
    } else if (line === "data" || line.startsWith("data:")) {
      const value = line.slice(line[5] === " " ? 6 : 5);
      this.#data = this.#data === null ? value : `${this.#data}\n${value}`;
    }
  }
}
