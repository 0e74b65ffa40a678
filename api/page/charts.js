// Draws the lag of the members and the operations of this one over the last minutes, with uPlot.

import { byId, setText } from "./elements.js";
import { kindOf, seconds } from "./draw.js";
import { clock } from "./member.js";

const KEPT_S = 300;
const COLOURS = ["--secondary", "--voter", "--changing", "--down", "--primary"];
const DASHES = [[], [6, 3], [2, 3], [10, 4, 2, 4]];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `light-dark()` in a custom property is resolved where it is used, so a probe element gives the colour of now.
function resolved(name) {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = `var(${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value || colour(name);
}

class History {
  constructor(place, unit) {
    this.place = byId(place);
    this.unit = unit;
    this.times = [];
    this.values = new Map(); // label -> values, null where there was none
    this.plot = null;
    this.labels = "";
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(true));
  }

  size() {
    return { width: Math.max(240, this.place.clientWidth), height: 200 };
  }

  add(time, row) {
    for (const label of Object.keys(row)) {
      if (!this.values.has(label)) this.values.set(label, this.times.map(() => null));
    }
    this.times.push(time);
    for (const [label, values] of this.values) values.push(row[label] ?? null);
    while (this.times[0] < time - KEPT_S) {
      this.times.shift();
      for (const values of this.values.values()) values.shift();
    }
    for (const [label, values] of this.values) {
      if (values.every((value) => value === null)) this.values.delete(label);
    }
    this.draw(false);
  }

  draw(isNew) {
    const labels = [...this.values.keys()].join("\n");
    const data = [this.times, ...this.values.values()];
    if (this.plot !== null && labels === this.labels && !isNew) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.labels = labels;
    this.plot = new uPlot(this.options(), data, this.place);
    this.plot.root.querySelector("canvas").setAttribute("aria-hidden", "true"); // the text below the chart says it
  }

  options() {
    const [ink, line] = [resolved("--muted"), resolved("--line")];
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const shown = (_, value) => (value === null ? "" : `${value.toFixed(1)} ${this.unit}`);
    const series = [...this.values.keys()].map((label, index) => ({
      label,
      stroke: resolved(COLOURS[index % COLOURS.length]),
      dash: DASHES[index % DASHES.length],
      width: 2,
      points: { show: false },
      value: shown,
    }));
    const time = { label: "time", value: (_, second) => (second === null ? "" : clock(new Date(second * 1000))) };
    const times = { ...axis, space: 80, values: (_, splits) => splits.map((second) => clock(new Date(second * 1000))) };
    const range = (_, least, most) => [0, Math.max(1, most || 0) * 1.1];
    return { ...this.size(), series: [time, ...series], axes: [times, { ...axis, size: 56 }], scales: { y: { range } }, legend: { live: false }, cursor: { drag: { x: false } } };
  }
}

const history = new History("lag-chart", "s");
const rates = new History("operations-chart", "/s");
let before = null;

export function addLags(members, lags) {
  history.add(Date.now() / 1000, Object.fromEntries(lags));
  const down = members.filter((one) => kindOf(one) === "down").map((one) => `${one.name} is not reachable`);
  const told = [...lags].map(([name, lag]) => `${name} ${seconds(lag)}`);
  setText(byId("lag-text"), [`Behind the newest entry now: ${told.join(", ")}`, ...down].join("; "));
}

export function addRates(operations) {
  const now = Date.now() / 1000;
  const sums = { reads: 0, writes: 0 };
  for (const [name, count] of Object.entries(operations)) {
    sums[["insert", "update", "delete", "findAndModify"].includes(name) ? "writes" : "reads"] += count;
  }
  if (before !== null && now > before.now + 0.5) {
    const rate = (name) => Math.max(0, (sums[name] - before.sums[name]) / (now - before.now));
    rates.add(now, { reads: rate("reads"), writes: rate("writes") });
    setText(byId("operations-text"), `Now: ${rate("reads").toFixed(1)} read and ${rate("writes").toFixed(1)} write commands a second.`);
  }
  if (before === null || now > before.now + 0.5) before = { now, sums };
}
