// Shows the rollbacks of all members; those of this member with their differences, and restores them.

import { byId, confirmed, el, keyed, setText } from "./elements.js";
import { dateOf, dayAndTime, get, getText, plain, post } from "./member.js";

const LONGEST_DIFF = 4e6;
const ROWS_SHOWN = 200;
const POLICIES = {
  skip: "skip: leave every document that somebody changed since",
  "keep-newer": "keep-newer: the later write of the two wins",
  merge: "merge: put back fields that nobody changed since",
  overwrite: "overwrite: put back everything that was lost",
  "to-collection": "to-collection: copy what was lost elsewhere",
};

const CHANGED_BY = { lost: "the lost write", live: "the set", same: "both, to the same", both: "both: a conflict" };

let self = "";

export async function showRollbacks(member) {
  self = member;
  const { rollbacks, unreachable } = await get("/v1/replset/rollbacks");
  const waiting = rollbacks.filter((one) => one.acknowledged === null && one.state !== "abandoned").length;
  const silent = Object.keys(unreachable || {});
  setText(byId("rollbacks-note"), [
    rollbacks.length === 0 ? "No member holds a rollback." : `${rollbacks.length} in all, ${waiting} not acknowledged.`,
    silent.length ? `Not reached: ${silent.join(", ")}.` : "",
  ].join(" "));
  keyed(byId("rollback-list"), rollbacks.reverse(), (one) => `${one.member} ${one.id}`, card, updateCard);
}

function card(one) {
  const tools = one.member === self ? el("div", {}, ...toolsOf(one)) : elsewhere(one);
  return el("li", { id: one.id }, el("h3", {}, one.id), el("p", { class: "facts" }), tools);
}

function updateCard(child, one) {
  const range = one.range || {};
  const operations = Object.entries(range.operations || {}).map(([op, count]) => `${count} ${op}`).join(", ");
  const taken = one.acknowledged ? `acknowledged ${dayAndTime(new Date(plain(one.acknowledged)))}` : "not acknowledged";
  setText(child.querySelector(".facts"),
    `${one.member}, ${dayAndTime(dateOf(one.when) || new Date(one.when))}: ${one.state || "unreadable"}, ` +
    `${range.entries ?? "?"} entries${operations && ` (${operations})`} after ${one.commonPoint}; ${taken}`);
  child.classList.toggle("waiting", one.acknowledged === null && one.state !== "abandoned");
}

// The files are on that member, and so is what works on them.
function elsewhere(one) {
  const address = `${location.protocol}//${one.httpAddress}/#${one.id}`;
  return el("p", {}, one.httpAddress ? el("a", { href: address }, `Compare and restore on ${one.member}`) : "Its member's address is not known yet.");
}

function toolsOf(one) {
  const path = `/v1/replset/rollbacks/${encodeURIComponent(one.id)}`;
  const outcome = el("p", { class: "outcome", role: "status" });
  const difference = el("div");
  const policy = el("select", { name: "policy" }, ...Object.entries(POLICIES).map(([value, text]) => el("option", { value }, text)));
  const collection = el("input", { name: "collection", autocomplete: "off", disabled: true });
  policy.addEventListener("change", () => { collection.disabled = policy.value !== "to-collection"; });
  const wanted = (dryRun) => ({
    policy: policy.value,
    ...(policy.value === "to-collection" ? { collection: collection.value } : {}),
    ...(dryRun ? { dryRun } : {}),
  });
  const button = (text, work) => {
    const made = el("button", { type: "button" }, text);
    made.addEventListener("click", () => run(made, outcome, work));
    return made;
  };
  return [
    el("div", { class: "row" },
      button("Show the differences", async () => { difference.replaceChildren(...await differences(path)); return ""; }),
      button("Check the files", async () => checked(await get(`${path}/verify`))),
      button("Acknowledge", async () => { await post(`${path}/ack`); await showRollbacks(self); return "Noted that a person knows of it. The files stay."; })),
    el("form", { class: "row" },
      el("label", {}, "Policy", policy), el("label", {}, "Collection", collection),
      button("Try (writes nothing)", async () => restored(await post(`${path}/restore`, wanted(true)))),
      button("Restore…", async () => {
        if (!await confirmed(`Put the lost writes of ${one.id} back, with the policy ${policy.value}?`)) return "";
        const answer = restored(await post(`${path}/restore`, wanted(false)));
        if (difference.childElementCount) difference.replaceChildren(...await differences(path));
        return answer;
      })),
    outcome, difference,
  ];
}

// Runs one button's work and tells its outcome beside it.
async function run(button, outcome, work) {
  button.disabled = true;
  setText(outcome, "Working…");
  outcome.classList.remove("bad");
  try {
    setText(outcome, await work());
  } catch (error) {
    outcome.classList.add("bad");
    setText(outcome, error.message);
  }
  button.disabled = false;
}

function checked(answer) {
  const { files, problems } = answer;
  const many = Array.isArray(files) ? files.length : files;
  return answer.ok ? `All files are sound (${many}).` : `Not sound: ${JSON.stringify(plain(problems))}`;
}

function restored(answer) {
  if (answer.error) throw new Error(`Not complete: ${answer.error.errmsg}. Send it again; it does the rest.`);
  const { done, there, would, left } = plain(answer.counts);
  const what = answer.dryRun ? `${would} would be put back` : `${done} put back`;
  return `${what}, ${there} are there already, ${left} stay undone.${answer.audit ? ` Record: ${answer.audit}` : ""}`;
}

async function differences(path) {
  const text = await getText(`${path}/diff`, LONGEST_DIFF);
  if (text === null) return [el("p", {}, "This difference is too long for a page. Use: rollback-tools diff")];
  const found = JSON.parse(text);
  if (found.error) throw new Error(found.error.errmsg);
  const rows = found.writes.slice(0, ROWS_SHOWN).map(difference);
  const { there, clean, conflict } = plain(found.counts);
  const more = found.writes.length > ROWS_SHOWN ? ` The first ${ROWS_SHOWN} are shown.` : "";
  return [el("p", {}, `${found.writes.length} lost writes: ${clean} can be put back as they were, ${conflict} in conflict, ${there} are there already.${more}`), ...rows];
}

const shown = (value) => (value === undefined ? "–" : JSON.stringify(plain(value)));

function difference(row) {
  const name = row.class === "command" ? row.command : `_id ${shown(row._id)}`;
  const summary = el("summary", {}, el("span", { class: "mono" }, `${row.ns} ${name}`), ` ${row.class}, ${row.standing}`);
  if (row.class === "command") return el("details", {}, summary, el("pre", {}, shown(row.options)));
  const head = ["Field", "Before", "Lost", "Now", "Changed by"].map((text) => el("th", { scope: "col" }, text));
  const fields = (row.fields || []).map((field) => el("tr", {},
    el("th", { scope: "row" }, field.path.join(".")), ...[field.before, field.lost, field.live].map((value) => el("td", {}, el("pre", {}, shown(value)))),
    el("td", {}, CHANGED_BY[field.changedBy] || field.changedBy)));
  return el("details", {}, summary, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...fields))));
}
