// Draws the members with who fetches from whom, and the newest oplog entries with the commit point among them.

import { byId, setText, svg } from "./elements.js";
import { compareOptimes, optimeText } from "./member.js";

const BOX = { width: 172, height: 64, gap: 22, rise: 56 };
const CELL = { width: 26, height: 26 };
const KINDS = { PRIMARY: "primary", SECONDARY: "secondary", ARBITER: "voter" };

// The style of a member's state. The text of the state stands beside it always: colour alone says nothing.
export function kindOf(member) {
  if (member.health === 0) return "down";
  return KINDS[member.stateStr] || "changing";
}

export function stateOf(member) {
  if (member.health === 0) return "DOWN";
  return member.witness && member.stateStr === "ARBITER" ? "WITNESS" : member.stateStr;
}

// The lag in seconds of each member with data that is no primary, by name, and of the commit point, as it was measured.
// Entries' wall times would not do: after a pause, or a clock that was wrong, they say something else.
export function lagsOf(status) {
  const members = status.members.filter((one) => one.optime && one.health && one.stateStr !== "PRIMARY");
  const lags = members.map((one) => [one.name, one.lagMillis / 1000]);
  return new Map([...lags, ["commit point", status.commitPointLagMillis / 1000]]);
}

export const seconds = (lag) => (lag === undefined ? "–" : `${lag.toFixed(1)} s`);

// The beginning and the end of a long name: members differ there.
const fit = (text) => (text.length > 17 ? `${text.slice(0, 8)}…${text.slice(-7)}` : text);

// --- the members -------------------------------------------------------------------------------------------------

let drawn = "";

export function drawTopology(members, lags, following) {
  const place = byId("topology");
  const width = Math.max(BOX.width, place.clientWidth);
  const signature = JSON.stringify([width, members.map((one) => [one.name, kindOf(one), stateOf(one), one.syncSourceHost])]);
  const positions = layOut(members, width);
  if (signature !== drawn) {
    drawn = signature;
    place.replaceChildren(picture(members, positions, width));
  }
  for (const member of members) {
    const box = place.querySelector(`[data-member="${CSS.escape(member.name)}"]`);
    setText(box, noteOf(member, lags.get(member.name), following));
    const edge = place.querySelector(`[data-edge="${CSS.escape(member.name)}"]`);
    const optime = optimeText(member.optime);
    if (edge) {
      edge.classList.toggle("flows", edge.dataset.optime !== undefined && edge.dataset.optime !== optime);
      edge.dataset.optime = optime;
    }
  }
}

function noteOf(member, lag, following) {
  if (member.health === 0) return "not reachable";
  const leads = following ? `follows ${following.setName}` : "takes writes";
  if (lag === undefined) return member.stateStr === "PRIMARY" ? leads : "has no data";
  return `${seconds(lag)} behind`;
}

// Puts each member one row below the one that it fetches from; those that fetch from nobody are on top.
function layOut(members, width) {
  const byName = new Map(members.map((one) => [one.name, one]));
  const depth = (one, seen = new Set()) => {
    const source = one.health ? byName.get(one.syncSourceHost) : undefined;
    if (!source || seen.has(one.name)) return one.stateStr === "PRIMARY" ? 0 : 1;
    return 1 + depth(source, seen.add(one.name));
  };
  const levels = new Map();
  for (const one of members) {
    const level = depth(one);
    levels.set(level, [...(levels.get(level) || []), one]);
  }
  const perRow = Math.max(1, Math.floor((width + BOX.gap) / (BOX.width + BOX.gap)));
  const positions = new Map();
  let y = 4;
  const isNarrow = width < 700 && [...levels.values()].some((row) => row.length > perRow);
  if (isNarrow) return listed(members, depth);
  for (const level of [...levels.keys()].sort((a, b) => a - b)) {
    const row = levels.get(level);
    for (let begin = 0; begin < row.length; begin += perRow) {
      const part = row.slice(begin, begin + perRow);
      const used = part.length * (BOX.width + BOX.gap) - BOX.gap;
      part.forEach((one, index) => positions.set(one.name, { x: (width - used) / 2 + index * (BOX.width + BOX.gap), y }));
      y += BOX.height + (begin + perRow < row.length ? 14 : BOX.rise);
    }
  }
  positions.height = y - BOX.rise + 6;
  return positions;
}

// On a narrow screen: one below the other, each indented under the one that it fetches from.
function listed(members, depth) {
  const positions = new Map();
  const place = (one) => {
    if (positions.has(one.name)) return;
    positions.set(one.name, { x: 4 + 28 * depth(one), y: 4 + positions.size * (BOX.height + 12) });
    members.filter((other) => other.health && other.syncSourceHost === one.name).forEach(place);
  };
  [...members].sort((a, b) => depth(a) - depth(b)).forEach(place);
  positions.height = 4 + positions.size * (BOX.height + 12);
  positions.isList = true;
  return positions;
}

function picture(members, positions, width) {
  const told = members.map((one) => `${one.name} is ${stateOf(one)}${one.syncSourceHost ? `, fetches from ${one.syncSourceHost}` : ""}`);
  const drawing = svg("svg", { width, height: positions.height, viewBox: `0 0 ${width} ${positions.height}`, role: "img", "aria-label": `Members: ${told.join("; ")}` });
  for (const one of members) {
    const [from, to] = [positions.get(one.syncSourceHost), positions.get(one.name)];
    if (from && one.health !== 0) drawing.append(...(positions.isList ? elbow : edge)(one.name, from, to));
  }
  for (const one of members) drawing.append(box(one, positions.get(one.name)));
  return drawing;
}

function edge(name, from, to) {
  const [x1, y1, x2, y2] = [from.x + BOX.width / 2, from.y + BOX.height, to.x + BOX.width / 2, to.y - 7];
  const middle = (y1 + y2) / 2;
  return [
    svg("path", { class: "edge", "data-edge": name, d: `M${x1} ${y1} C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}` }),
    svg("path", { class: "arrow", d: `M${x2 - 6} ${y2 - 3} L${x2 + 6} ${y2 - 3} L${x2} ${y2 + 7} Z` }),
  ];
}

function elbow(name, from, to) {
  const [x, y] = [to.x - 7, to.y + BOX.height / 2];
  return [
    svg("path", { class: "edge", "data-edge": name, d: `M${from.x + 10} ${from.y + BOX.height} V${y} H${x}` }),
    svg("path", { class: "arrow", d: `M${x - 3} ${y - 6} L${x - 3} ${y + 6} L${x + 7} ${y} Z` }),
  ];
}

function box(member, { x, y }) {
  const kind = kindOf(member);
  return svg("g", {},
    svg("title", {}, member.name),
    svg("rect", { class: `box ${kind}`, x, y, width: BOX.width, height: BOX.height, rx: 8 }),
    svg("rect", { class: `stripe ${kind}`, x, y: y + 8, width: 6, height: BOX.height - 16 }),
    svg("text", { x: x + 14, y: y + 20, "font-weight": 600 }, fit(member.name)),
    svg("text", { x: x + 14, y: y + 38 }, stateOf(member) + (member.self ? ", this one" : "")),
    svg("text", { class: "small", x: x + 14, y: y + 55, "data-member": member.name }, ""));
}

// --- the oplog ---------------------------------------------------------------------------------------------------

const OPERATIONS = { i: "insert", u: "update", d: "delete", c: "command", n: "no operation" };

// Shows the newest entries from left to right, which of them are committed, and up to where each member has them.
export function drawTrack(oplog, commitPoint, members) {
  const place = byId("track");
  const width = Math.max(280, place.clientWidth);
  const many = Math.floor((width - 8) / CELL.width);
  const entries = oplog.newest.slice(-many);
  const holders = members.filter((one) => one.optime);
  const waiting = entries.filter((entry) => compareOptimes(entry.optime, commitPoint) > 0).length;
  const height = 50 + holders.length * 20;
  const label = `The newest ${entries.length} oplog entries of this member; ${waiting ? `${waiting} are not committed yet` : "all are committed"}. Commit point ${commitPoint}.`;
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const begin = width - 4 - entries.length * CELL.width;
  entries.forEach((entry, index) => drawing.append(cell(entry, begin + index * CELL.width, compareOptimes(entry.optime, commitPoint) <= 0)));
  const end = (optime) => begin + CELL.width * entries.filter((entry) => compareOptimes(entry.optime, optime) <= 0).length;
  const x = Math.max(2, end(commitPoint));
  drawing.append(svg("line", { class: "commit-line", x1: x, x2: x, y1: 2, y2: 38 }));
  holders.forEach((member, index) => drawing.append(mark(member, Math.max(4, end(optimeText(member.optime))), 54 + index * 20, width)));
  place.replaceChildren(drawing);
}

function cell(entry, x, isCommitted) {
  const state = isCommitted ? "committed" : "";
  return svg("g", {},
    svg("title", {}, `${entry.optime} ${OPERATIONS[entry.op] || entry.op} ${entry.ns}${isCommitted ? "" : ", not committed yet"}`),
    svg("rect", { class: `entry ${state}`, x: x + 2, y: 7, width: CELL.width - 4, height: CELL.height, rx: 3 }),
    svg("text", { class: `letter ${state}`, x: x + CELL.width / 2, y: 24 }, entry.op));
}

function mark(member, x, y, width) {
  const text = `${member.name}${member.entriesBehind ? `, ${member.entriesBehind >= 1000 ? "1000 or more" : member.entriesBehind} behind` : ""}`;
  const isRight = x > width / 2;
  return svg("g", {},
    svg("path", { class: "mark", d: `M${x} ${y - 12} l5 9 l-10 0 Z` }),
    svg("text", { class: "small", x: isRight ? x - 10 : x + 10, y: y - 2, "text-anchor": isRight ? "end" : "start" }, text));
}
