// Asks the member what the set would do if one of its members were gone, and shows the answer below the table.

import { byId, el, setText } from "./elements.js";
import { post } from "./member.js";

const DEEDS = {
  kill: "its process dies",
  stop: "it is stopped in order",
  cut: "it is cut off from all others",
  "lose-disk": "it loses its disk",
  remove: "it is removed from the set",
};

const panel = byId("what-if");
const [host, deed, close] = ["h3 span", "select", "button"].map((name) => panel.querySelector(name));
const [outcome, answer] = [panel.querySelector(".outcome"), panel.querySelector("pre")];
let asked = 0; // the newest question: the answer of an older one is not shown
let leaving = new AbortController();

deed.append(...Object.entries(DEEDS).map(([value, text]) => el("option", { value }, text)));
deed.addEventListener("change", ask);
close.addEventListener("click", () => { leaving.abort(); panel.hidden = true; });

// The button in a member's row. A member that is gone already can only be removed.
export function whatIfButton(name) {
  const button = el("button", { type: "button", class: "small" });
  button.addEventListener("click", () => {
    setText(host, name);
    deed.value = button.dataset.deed;
    ask();
  });
  return button;
}

export function updateWhatIf(button, one) {
  button.dataset.deed = one.health ? "kill" : "remove";
  setText(button, one.health ? "What if it died?" : "What if removed?");
  button.setAttribute("aria-label", `${button.textContent} ${one.name}`);
}

async function ask() {
  const number = asked += 1;
  leaving.abort();
  leaving = new AbortController();
  const tell = (text, isBad = false, lines = []) => {
    if (number !== asked) return;
    outcome.classList.toggle("bad", isBad);
    setText(outcome, text);
    setText(answer, lines.join("\n"));
    answer.hidden = !lines.length;
  };
  panel.hidden = false;
  tell("Playing what the set would do. Nothing is changed.");
  panel.scrollIntoView({ block: "nearest" });
  try {
    const { text, unreachable } = await post("/v1/replset/whatIf", { deed: deed.value, host: host.textContent }, leaving.signal);
    const silent = Object.keys(unreachable);
    tell(silent.length ? `No answer from ${silent.join(", ")}: what the others say of it is used.` : "", false, text);
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message, true);
  }
}
