// The filter box: all words must match. `client:`, `path:` and `state:` restrict a word to a field.

const STATES = ["held", "unconfirmed", "releasable", "suspect", "remembered", "waiting"];

export class Filter {
  constructor(text = "") {
    this.text = text.trim();
    this.words = this.text
      .split(/\s+/)
      .map((word) => {
        const [, field, said] = /^(client|path|state):(.*)$/i.exec(word) ?? [null, "any", word];
        return { field: field.toLowerCase(), said, rest: said.toLowerCase() };
      })
      .filter((word) => word.rest !== "");
  }

  get isEmpty() {
    return this.words.length === 0;
  }

  lock(lock) {
    return this.words.every(({ field, rest }) => {
      const client = () => clientHas(lock.client, rest);
      const path = () => lock.file.lower.includes(rest);
      const state = () => lock.state.startsWith(rest) || lock.mode.startsWith(rest);
      if (field === "client") return client();
      if (field === "path") return path();
      if (field === "state") return state();
      return client() || path() || state() || lock.id === rest;
    });
  }

  client(client) {
    return this.words.every(({ field, rest }) => {
      if (field === "path") return true;
      if (field === "state") return client.state.startsWith(rest);
      return clientHas(client, rest) || (field === "any" && client.state.startsWith(rest));
    });
  }

  /** A client address with the hosts that lock from there. */
  address({ address, clients }) {
    return this.words.every(
      ({ field, rest }) =>
        field === "path" ||
        field === "state" ||
        address.toLowerCase().includes(rest) ||
        clients.some((client) => clientHas(client, rest)),
    );
  }

  event(event) {
    return this.words.every(
      ({ rest }) =>
        event.text.toLowerCase().includes(rest) ||
        event.kind.includes(rest) ||
        (event.client && clientHas(event.client, rest)),
    );
  }

  /** The part of the filter that the server can apply, used when the list is truncated. */
  query() {
    const parameters = new URLSearchParams();
    for (const { field, said } of this.words) {
      const isWhole = field !== "state" || STATES.includes(said);
      if (field !== "any" && isWhole && !parameters.has(field)) parameters.set(field, said);
    }
    return parameters;
  }
}

function clientHas(client, word) {
  return (
    client.id === word ||
    client.name.toLowerCase().includes(word) ||
    client.address.toLowerCase().includes(word)
  );
}
