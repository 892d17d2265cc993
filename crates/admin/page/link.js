// The connection to the server: requests with a time-out, the stream of events, and whether it
// can be reached at all.

const ANSWER_MS_MAX = 10_000;
const RETRY_MS = 2_000;

/** The server answered, and refused. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? `the server answered ${status}`);
    this.status = status;
    this.code = problem?.code ?? "";
  }
}

export class Link {
  /** `heard.news`, `heard.tally`, `heard.resync` take events; `heard.change` a change of state. */
  constructor(heard) {
    this.heard = heard;
    this.isUp = true;
    /** When anything was last heard from the server. */
    this.lastContact = Date.now();
    this.stream = null;
    this.isStreaming = false;
  }

  open() {
    const stream = new EventSource("/v1/events?last=10000");
    this.stream = stream;
    const data = (take) => (message) => {
      this.#contact();
      try {
        take(parse(message.data));
      } catch (error) {
        console.warn("an event that cannot be read:", error.message);
      }
    };
    stream.addEventListener("news", data(this.heard.news));
    stream.addEventListener("locks", data(this.heard.tally));
    stream.addEventListener("resync", () => {
      this.#contact();
      this.heard.resync();
    });
    stream.addEventListener("open", () => {
      this.isStreaming = true;
      this.#contact();
    });
    stream.addEventListener("error", () => {
      // Until now it was there: this is the moment at which it went.
      if (this.isStreaming && this.isUp) this.lastContact = Date.now();
      this.isStreaming = false;
      // A broken stream alone may be a proxy's doing: ask before saying that the server is gone.
      this.heard.doubt();
      // It reconnects by itself, unless it was refused.
      if (stream.readyState === EventSource.CLOSED) {
        setTimeout(() => stream === this.stream && this.open(), RETRY_MS);
      }
    });
  }

  /** The answer to a GET, or an error that says why not. */
  async get(path) {
    let answer;
    let text;
    try {
      answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) });
      text = await answer.text();
    } catch (error) {
      this.#lost();
      throw error;
    }
    this.#contact();
    if (!answer.ok) {
      let problem = null;
      try {
        problem = JSON.parse(text);
      } catch {
        // Something between us and the server answered; the status says enough.
      }
      throw new Refused(answer.status, problem);
    }
    return parse(text);
  }

  #contact() {
    const before = this.lastContact;
    this.lastContact = Date.now();
    if (this.isUp) return;
    this.isUp = true;
    this.heard.change({ from: before, to: this.lastContact });
  }

  #lost() {
    if (!this.isUp) return;
    this.isUp = false;
    this.heard.change(null);
  }
}

/**
 * Offsets go up to 2^63, beyond what a number of this language can tell apart: long ones stay
 * text. A quote inside a JSON string is escaped, so this can only match real keys.
 */
function parse(text) {
  return JSON.parse(text.replace(/"(start|end)":(\d{16,})/g, '"$1":"$2"'));
}
