// Shows the set as it is now: reads the member's events, and brings each of them into the sections of the page.

import { addLags, addRates } from "./charts.js";
import { drawTopology, drawTrack, kindOf, lagsOf, seconds, stateOf } from "./draw.js";
import { byId, confirmed, el, keyed, setText } from "./elements.js";
import {
  Refused, bytes, clock, dateOf, dayAndTime, duration, events, get, isLoggedIn, logIn, logOut, optimeText, plain, post,
} from "./member.js";
import { showRollbacks } from "./rollbacks.js";
import { updateWhatIf, whatIfButton } from "./what-if.js";

const AGAIN_MS = 15000; // elections and rollbacks are read again after this time, and when the set changes
const SOON_MS = 3000;
const WAITS_LONG_MS = 2000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

let last = null; // the newest event
let known = ""; // states, term and rollbacks of the last read of elections and rollbacks
let readAt = 0;
let leaving = new AbortController();

// --- the stream --------------------------------------------------------------------------------------------------

async function follow() {
  let wait = FIRST_WAIT_MS;
  for (;;) {
    try {
      leaving = new AbortController();
      for await (const { name, data } of events("/v1/replset/events", leaving)) {
        if (name === "error") throw new Refused(403, data);
        wait = FIRST_WAIT_MS;
        setConnection(true, "live");
        try {
          show(data);
        } catch (error) {
          reportError(error); // a mistake in the page is no broken connection
        }
      }
    } catch (error) {
      setConnection(false, error instanceof Refused ? error.message : "no connection to this member");
      if (error instanceof Refused && error.status === 401) await askToLogIn();
    }
    await pause(wait);
    wait = Math.min(LONGEST_WAIT_MS, wait * 2);
  }
}

// Waits, and does not read on while nobody looks at the page.
async function pause(ms) {
  await new Promise((resolve) => setTimeout(resolve, ms));
  while (document.hidden) {
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}

function setConnection(isLive, text) {
  const pill = byId("connection");
  pill.className = `pill ${isLive ? "on" : "off"}`;
  setText(pill, text);
  byId("log-out").hidden = !isLoggedIn();
  byId("metrics-link").hidden = isLoggedIn(); // a link takes no token with it
}

function show(data) {
  const { status, oplog } = data;
  setText(byId("member-name"), `This is ${data.member}. Times are of ${Intl.DateTimeFormat().resolvedOptions().timeZone}`);
  document.body.classList.toggle("no-set", !status.members);
  if (!status.members) {
    setText(byId("summary"), status.errmsg);
    const waits = status.errmsg.includes("--expect-members"); // it is initiated by itself, with the others
    showRows([{
      why: "This member is in no set.",
      next: waits ? "" : `replset initiate --host ${data.member} makes one; replset add ${data.member} --host MEMBER puts it into the set of that member`,
    }]);
    return;
  }
  announce(status);
  last = data;
  showHead(status);
  showRemarks(status);
  const lags = lagsOf(status);
  showMembers(status, lags);
  showOplog(status, oplog);
  addLags(status.members, lags);
  showConsumers(status.consumers || []);
  addRates(data.operations);
  showSlow(data.slow);
  showActions(status);
  readTheRest(status, data.member);
}

// --- the sections ------------------------------------------------------------------------------------------------

function announce(status) {
  if (last === null) return;
  const before = new Map(last.status.members.map((one) => [one.name, stateOf(one)]));
  const changes = status.members.filter((one) => before.get(one.name) !== stateOf(one));
  if (changes.length) setText(byId("announcements"), changes.map((one) => `${one.name} is ${stateOf(one)} now`).join(", "));
}

function showHead(status) {
  const primary = status.members.find((one) => one.stateStr === "PRIMARY" && one.health);
  const up = status.members.filter((one) => one.health).length;
  setText(byId("set-name"), status.set);
  document.title = `${status.set}: ${primary ? primary.name : "no primary"}`;
  const leads = primary ? `Primary ${primary.name}, since ${dayAndTime(dateOf(primary.electionDate))}` : "No primary";
  const { setName, lagSecs } = status.following || {};
  const follows = setName ? `; follows ${setName}, whose newest entry here is ${lagSecs === null ? "unknown" : `${seconds(lagSecs)} old`}` : "";
  setText(byId("summary"), `${leads}; term ${status.term}; ${up} of ${status.members.length} members reachable${follows}`);
}

function showRemarks(status) {
  const warnings = (status.startupWarnings || []).map((why) => ({ why, next: "" }));
  const since = dateOf(status.blockingSince);
  const isLong = since === null || status.commitPointLagMillis > WAITS_LONG_MS; // a busy set always waits for a moment
  const from = since === null ? "" : `, since ${clock(since)}`;
  const waits = status.blocking && isLong ? [{ why: `Majority writes wait${from}: ${status.blocking}`, next: "" }] : [];
  if (status.rollbackStatus) waits.push({ why: status.rollbackStatus.text, next: "" });
  const remarks = [...(status.remarks || []), ...waits, ...warnings];
  if (status.unacknowledgedRollbacks) {
    remarks.push({ why: `${rollbacks(status.unacknowledgedRollbacks)} that nobody acknowledged`, next: "look at them below" });
  }
  byId("attention").className = remarks.length ? "loud" : "quiet";
  showRows(remarks.length ? remarks : [{ why: "Nothing. All is well as this member sees it.", next: "" }]);
}

const rollbacks = (count) => `${count} rollback${count === 1 ? "" : "s"}`;

function showRows(rows) {
  keyed(byId("remarks"), rows, (one) => one.why + one.next, (one) =>
    el("li", {}, one.why, one.next ? el("span", { class: "next" }, ` Next: ${one.next}`) : null));
}

function showMembers(status, lags) {
  drawTopology(status.members, lags, status.following);
  keyed(byId("member-rows"), status.members, (one) => one.name, (one) => {
    const name = el("th", { scope: "row" }, one.self || !one.httpAddress ? one.name : el("a", { href: `${location.protocol}//${one.httpAddress}/` }, one.name));
    return el("tr", {}, name, el("td", {}, el("span"), " ", whatIfButton(one.name)), ...[1, 2, 3].map(() => el("td")), el("td", { class: "optime" }), el("td"), el("td"));
  }, (row, one) => {
    const [, state, source, lag, behind, optime, ping, notes] = row.children;
    state.firstChild.className = `state ${kindOf(one)}`;
    setText(state.firstChild, stateOf(one));
    updateWhatIf(state.lastChild, one);
    setText(source, one.syncSourceHost || "–");
    setText(lag, seconds(lags.get(one.name)));
    setText(behind, one.entriesBehind === undefined ? "–" : one.entriesBehind >= 1000 ? "1000 or more" : String(one.entriesBehind));
    setText(optime, optimeText(one.optime) || "–");
    setText(ping, one.pingMs === undefined ? "–" : `${one.pingMs} ms`);
    setText(notes, notesOf(one).join("; "));
  });
}

function notesOf(one) {
  const facts = [
    [one.self, "this member"],
    [!one.counted, "not counted for majorities"],
    [one.newlyAdded, "newly added"],
    [one.overloaded, "overloaded"],
    [one.maintenanceMode, "in maintenance"],
    [one.quarantine, `quarantine: ${one.quarantine}`],
    [one.unacknowledgedRollbacks, `${rollbacks(one.unacknowledgedRollbacks)} not acknowledged`],
    [one.fallsOffOplogInSecs !== undefined, `falls off the oplog in ${duration(one.fallsOffOplogInSecs)}`],
    [one.flow?.limitBytesPerSec, `is sent ${bytes(one.flow?.sentBytesPerSec)}/s of at most ${bytes(one.flow?.limitBytesPerSec)}/s`],
    [one.infoMessage, one.infoMessage],
    [one.lastHeartbeatMessage, one.lastHeartbeatMessage],
  ];
  return facts.filter(([holds]) => holds).map(([, text]) => text);
}

function showOplog(status, oplog) {
  const committed = optimeText(status.optimes.lastCommittedOpTime);
  drawTrack(oplog, committed, status.members);
  const check = status.documentCheck; // of a secondary, by its pass in the background
  const facts = {
    "Commit point": `${committed}, written ${clock(dateOf(status.optimes.lastCommittedWallTime))}`,
    Newest: oplog.last || "none",
    Oldest: oplog.first || "none",
    Window: `${duration(oplog.windowSecs)}, ${bytes(oplog.bytes)} of ${bytes(oplog.maxBytes)}`,
    Majority: `${status.writeMajorityCount} of ${status.writableVotingMembersCount} copies for a write, ${status.majorityVoteCount} of ${status.votingMembersCount} votes for a primary`,
    ...(check ? { Documents: `${check.differing} differ from the primary's in the last comparison; ${check.repaired} repaired since the start` } : {}),
  };
  keyed(byId("oplog-facts"), Object.entries(facts).flatMap(([name, text]) => [["dt", name, name], ["dd", text, `${name}:`]]),
    ([, , key]) => key, ([kind]) => el(kind), (node, [, text]) => setText(node, text));
}

function showConsumers(rows) {
  byId("consumers").hidden = rows.length === 0;
  const lagOf = (row) => (row.isLost ? "the history that it needs is gone" : `${seconds(row.lagSecs)} behind`);
  keyed(byId("consumer-list"), rows, (row) => row.name, () => el("li"), (node, row) =>
    setText(node, `${row.name} (${row.mode}, ${row.ns || "all databases"}): ${lagOf(row)}${row.held ? `, ${row.held} held` : ""}${row.parked ? `, ${row.parked} parked` : ""}${row.holder ? `, read by ${row.holder}` : ""}`));
}

function showSlow(rows) {
  setText(byId("slow-note"), rows.length ? `The newest ${rows.length}, newest first.` : "None since this member started.");
  keyed(byId("slow-list"), rows, (row) => JSON.stringify(row), (row) =>
    el("li", {}, el("time", {}, clock(dateOf(row.date))), ` ${row.command} `, el("span", { class: "mono" }, row.ns), ` took ${row.millis} ms: ${row.why}${row.fields.length ? `; its filter names ${row.fields.join(", ")}` : ""}; client ${row.client}`));
}

// --- elections and rollbacks -------------------------------------------------------------------------------------

async function readTheRest(status, member) {
  const seen = JSON.stringify([status.term, status.unacknowledgedRollbacks, status.members.map((one) => [one.name, one.stateStr])]);
  if (seen === known && Date.now() - readAt < AGAIN_MS) return;
  readAt = Date.now() - (seen === known ? 0 : AGAIN_MS - SOON_MS); // what has just begun is read once more soon
  known = seen;
  const tell = (id) => (error) => setText(byId(id), error.message);
  await Promise.all([
    showElections().catch(tell("elections-note")),
    showRollbacks(member).then(followLink, tell("rollbacks-note")),
  ]);
}

async function showElections() {
  const { elections, unreachable } = await get("/v1/replset/elections?limit=20");
  const silent = Object.keys(unreachable || {});
  setText(byId("elections-note"), silent.length ? `Not reached: ${silent.join(", ")}. Their elections are missing.` : "");
  keyed(byId("elections"), elections, (one) => JSON.stringify([one.member, one.date, one.outcome, one.journal.length, one.ended]), (one) => {
    const took = one.phases.reduce((sum, phase) => sum + phase.millis, 0);
    const votes = one.outcome === "won" ? `votes of ${one.granted.join(", ")}` : one.why || "still open";
    const refused = [...new Set(one.refused.map((vote) => `${vote.member} refused: ${vote.reason}`))]; // a dry run and its election alike
    const lines = [...one.before, ...one.journal, ...(one.ended ? [one.ended] : [])];
    return el("li", { class: one.outcome },
      el("p", {}, el("time", {}, dayAndTime(dateOf(one.date))), ` Term ${one.term}: `, el("strong", {}, one.member), ` ${one.outcome}`),
      el("p", {}, `Reason: ${one.reason}. ${took} ms. ${votes}`),
      ...refused.map((text) => el("p", { class: "note" }, text)),
      one.ended ? el("p", { class: "note" }, `Ended ${clock(dateOf(one.ended.date))}: ${one.ended.detail}`) : null,
      el("details", {}, el("summary", {}, "Journal"), el("pre", {}, lines.map((line) => `${clock(dateOf(line.date))} ${line.event}: ${line.detail}`).join("\n"))));
  });
}

let followed = "";

// Goes to the rollback that the address names, once it is there: another member's page leads here.
function followLink() {
  const id = decodeURIComponent(location.hash.slice(1));
  const target = id.startsWith("rollback-") && followed !== id ? byId(id) : null;
  if (target === null) return;
  followed = id;
  target.scrollIntoView();
  target.querySelector("button, a")?.focus();
}

// --- actions -----------------------------------------------------------------------------------------------------

function showActions(status) {
  const primary = status.members.find((one) => one.stateStr === "PRIMARY" && one.health);
  const isPrimary = Boolean(primary?.self);
  const form = byId("step-down");
  form.querySelector("button").disabled = !isPrimary;
  const note = form.querySelector(".elsewhere");
  note.hidden = isPrimary;
  if (!isPrimary) {
    const page = primary?.httpAddress ? el("a", { href: `${location.protocol}//${primary.httpAddress}/#actions` }, `page of ${primary.name}`) : "page of the primary";
    if (note.dataset.primary !== primary?.name) note.replaceChildren("Only on the ", page, ".");
    note.dataset.primary = primary?.name;
  }
  byId("freeze").querySelector("button").disabled = isPrimary;
  const heirs = ["", ...status.members.filter((one) => !one.self && one.optime && !one.witness).map((one) => one.name)];
  keyed(form.elements.handOverTo, heirs, (name) => name, (name) => el("option", { value: name }, name || "any member"));
}

function act(id, question, path, bodyOf) {
  const form = byId(id);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form));
    if (!await confirmed(question(values))) return;
    const outcome = byId("action-outcome");
    outcome.classList.remove("bad");
    try {
      const answer = await post(path, bodyOf(values));
      setText(outcome, ["Done.", answer.warning, answer.info].filter(Boolean).map((part) => (typeof part === "string" ? part : JSON.stringify(plain(part)))).join(" "));
    } catch (error) {
      outcome.classList.add("bad");
      setText(outcome, error.message);
    }
  });
}

act("step-down",
  ({ handOverTo, seconds }) => `Let ${last.member} step down for ${seconds} s${handOverTo ? `, for ${handOverTo}` : ""}? Writes wait until another member leads.`,
  "/v1/replset/stepDown",
  ({ seconds, handOverTo }) => ({ seconds: Number(seconds), ...(handOverTo ? { handOverTo } : {}) }));
act("freeze",
  ({ seconds }) => (Number(seconds) ? `Keep ${last.member} from leading for ${seconds} s?` : `End the freeze of ${last.member}?`),
  "/v1/replset/freeze",
  ({ seconds }) => ({ seconds: Number(seconds) }));
act("add-member",
  ({ host, kind }) => `Add ${host} (${kind}) to the set?`,
  "/v1/replset/members",
  ({ host, kind }) => ({ host, ...(kind === "arbiter" ? { arbiterOnly: true } : kind === "witness" ? { witness: true } : {}) }));

// --- login -------------------------------------------------------------------------------------------------------

let waitsForLogin = null;

// Shows the form. The promise ends when somebody has logged in or has closed the form.
function askToLogIn() {
  logOut();
  byId("log-in").hidden = false;
  const dialog = byId("login");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => { waitsForLogin = resolve; });
}

byId("login").addEventListener("close", () => { if (isLoggedIn()) waitsForLogin?.(); });
byId("login-cancel").addEventListener("click", () => byId("login").close());
byId("log-in").addEventListener("click", () => byId("login").showModal());
byId("log-out").addEventListener("click", () => { logOut(); location.reload(); });
byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { user, password, db } = Object.fromEntries(new FormData(event.target));
  try {
    await logIn(user, password, db);
    event.target.reset();
    setText(byId("login-problem"), "");
    byId("log-in").hidden = true;
    byId("login").close();
  } catch (error) {
    setText(byId("login-problem"), error.message);
  }
});
document.addEventListener("visibilitychange", () => { if (document.hidden) leaving.abort(); });
addEventListener("hashchange", () => { followed = ""; followLink(); });

follow();
