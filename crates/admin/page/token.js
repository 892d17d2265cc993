// The token that shows the paths of locked files: asked for while the server withholds them, and kept
// until the tab is closed.

const KEY = "lockkeeper-token";

export class Token {
  constructor(store) {
    this.store = store;
    this.form = document.getElementById("token-form");
    this.box = document.getElementById("token");
    this.say = document.getElementById("token-say");
    store.link.token = sessionStorage.getItem(KEY) ?? "";
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#use(this.box.value.trim());
    });
    store.on("status", () => this.#draw());
  }

  #use(token) {
    this.store.link.token = token;
    this.say.textContent = "";
    if (token === "") sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, token);
    this.store.refresh();
  }

  #draw() {
    const withheld = this.store.status?.paths_withheld === true;
    const wasHidden = this.form.hidden;
    this.form.hidden = !withheld;
    if (!withheld) {
      this.box.value = "";
      if (!wasHidden) this.store.refresh();
      return;
    }
    if (this.store.link.token !== "") {
      // Wrong, or of before the server got another one.
      this.#use("");
      this.say.textContent = "This is not the server's token.";
    }
  }
}
