// The connection to the server: requests with a timeout, the event stream, and reachability.

const ANSWER_MS_MAX = 10_000;
const RETRY_MS = 2_000;

/** The server answered with an error. */
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
    /** Time of the last response or event. */
    this.lastContact = Date.now();
    this.stream = null;
    this.isStreaming = false;
    /** Sent with requests, as far as there is one; the events have nothing that needs it. */
    this.token = "";
  }

  open() {
    const stream = new EventSource("/v1/events?last=10000");
    this.stream = stream;
    const data = (take) => (message) => {
      this.#contact();
      try {
        take(parse(message.data));
      } catch (error) {
        console.warn("malformed event:", error.message);
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
      // The stream was up until now.
      if (this.isStreaming && this.isUp) this.lastContact = Date.now();
      this.isStreaming = false;
      // A proxy may have closed the stream: send a request before declaring the server unreachable.
      this.heard.doubt();
      // EventSource reconnects by itself, unless it was refused.
      if (stream.readyState === EventSource.CLOSED) {
        setTimeout(() => stream === this.stream && this.open(), RETRY_MS);
      }
    });
  }

  /** Sends a GET; throws on failure or an error response. */
  async get(path) {
    let answer;
    let text;
    try {
      const headers = this.token === "" ? {} : { Authorization: `Bearer ${this.token}` };
      const signal = AbortSignal.timeout(ANSWER_MS_MAX);
      answer = await fetch(path, { cache: "no-store", headers, signal });
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
        // Not from the server but an intermediary; the status suffices.
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
 * Offsets up to 2^63 exceed the precision of numbers: long ones are kept as text. Quotes inside
 * JSON strings are escaped, so this matches keys only.
 */
function parse(text) {
  return JSON.parse(text.replace(/"(start|end)":(\d{16,})/g, '"$1":"$2"'));
}
