// Colours of clients: twelve hues, then the same hues with textures.
//
// A client keeps its colour for the life of the tab, across reloads and server restarts. Two clients
// share a colour only when all are taken.

const HUES = 12;
const TEXTURES = 4;
const KEPT = "lockkeeper-colours";
const DIGITS = "0123456789abcdefghjkmnpqrstvwxyz";

const slots = new Map(restored());
const taken = new Set(slots.values());

/** The colour slot of a client; plain hues are assigned first. */
function slotOf(clientId) {
  const known = slots.get(clientId);
  if (known !== undefined) return known;
  const number = numberOf(clientId);
  if (taken.size >= HUES * TEXTURES) return number % (HUES * TEXTURES);
  for (let at = 0; ; at += 1) {
    const texture = Math.floor(at / HUES);
    const slot = texture * HUES + ((number + at) % HUES);
    if (taken.has(slot)) continue;
    taken.add(slot);
    slots.set(clientId, slot);
    keep();
    return slot;
  }
}

/** Consecutive slots get distant hues. */
export const hueOf = (clientId) => (((slotOf(clientId) % HUES) * 5) % HUES) * 30 + 12;

/** Sets the client's hue on an element; the style sheet derives the colours. */
export function paint(element, clientId) {
  element.style.setProperty("--hue", String(hueOf(clientId)));
  const texture = Math.floor(slotOf(clientId) / HUES);
  if (texture > 0) element.classList.add(`texture-${texture}`);
  return element;
}

/** `c3` is 3. */
function numberOf(clientId) {
  let number = 0;
  for (const digit of clientId.slice(1)) {
    number = (number * 32 + Math.max(0, DIGITS.indexOf(digit))) % (HUES * TEXTURES);
  }
  return number;
}

function restored() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
    return kept.filter(([id, slot]) => typeof id === "string" && Number.isInteger(slot));
  } catch {
    return [];
  }
}

function keep() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify([...slots]));
  } catch {
    // Without storage, a reload may assign other colours.
  }
}
