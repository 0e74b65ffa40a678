// Talks to the member that served the page: requests, the stream of events, the login, and its JSON.

const TOKEN = "replset-token";
const SILENCE_MS = 15000;

export class Refused extends Error {
  constructor(status, body) {
    super(body.errmsg || `the member answered with status ${status}`);
    this.status = status;
    this.code = body.code;
  }
}

export const isLoggedIn = () => sessionStorage.getItem(TOKEN) !== null;

export function logOut() {
  sessionStorage.removeItem(TOKEN);
}

export async function logIn(user, password, db) {
  logOut();
  const answer = await (await send("POST", "/v1/login", { user, password, db })).json();
  sessionStorage.setItem(TOKEN, answer.token);
}

// Sends a request. `credentials: omit` keeps the browser from asking for a password by itself.
export async function send(method, path, body, { signal, accept = "application/json" } = {}) {
  const headers = { accept };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (isLoggedIn()) headers.authorization = `Bearer ${sessionStorage.getItem(TOKEN)}`;
  const text = body === undefined ? undefined : JSON.stringify(body);
  const options = { method, headers, body: text, signal, credentials: "omit", cache: "no-store" };
  const response = await fetch(path, options);
  if (!response.ok) {
    throw new Refused(response.status, await response.json().catch(() => ({})));
  }
  return response;
}

export const get = async (path) => (await send("GET", path)).json();
export const post = async (path, body = {}, signal = undefined) => (await send("POST", path, body, { signal })).json();

// Reads a text answer up to `most` characters. null: it is longer.
export async function getText(path, most) {
  const leaving = new AbortController();
  const response = await send("GET", path, undefined, { signal: leaving.signal });
  let text = "";
  for await (const part of parts(response)) {
    text += part;
    if (text.length > most) {
      leaving.abort();
      return null;
    }
  }
  return text;
}

async function* parts(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    yield value;
  }
}

// Yields {name, data} of each event until the stream ends. It ends with an error when nothing comes for a while.
export async function* events(path, leaving) {
  let timer = setTimeout(() => leaving.abort(), SILENCE_MS);
  try {
    const response = await send("GET", path, undefined, { signal: leaving.signal, accept: "text/event-stream" });
    let text = "";
    for await (const part of parts(response)) {
      clearTimeout(timer);
      timer = setTimeout(() => leaving.abort(), SILENCE_MS);
      text += part;
      const blocks = text.split("\n\n");
      text = blocks.pop();
      for (const block of blocks) yield parsed(block);
    }
  } finally {
    clearTimeout(timer);
  }
}

function parsed(block) {
  const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
  return { name: fields.event, data: JSON.parse(fields.data) };
}

// --- values ------------------------------------------------------------------------------------------------------

export const dateOf = (value) => (value && value.$date !== undefined ? new Date(value.$date.$numberLong ? Number(value.$date.$numberLong) : value.$date) : null);

// An optime as text, TERM:SECONDS:INC, and as numbers that can be compared.
export const optimeText = (optime) => (optime ? `${optime.t}:${optime.ts.$timestamp.t}:${optime.ts.$timestamp.i}` : "");
const numbers = (text) => text.split(":").map(Number);

export function compareOptimes(one, other) {
  const [a, b] = [numbers(one), numbers(other)];
  const at = a.findIndex((value, index) => value !== b[index]);
  return at < 0 ? 0 : a[at] - b[at];
}

// Local time, as YYYY-MM-DD HH:MM:SS: that is how Sweden writes it.
export const dayAndTime = (date) => (date ? date.toLocaleString("sv-SE") : "");
export const clock = (date) => (date ? date.toLocaleTimeString("sv-SE") : "");

export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; size >= 1000 && unit < units.length - 1; unit += 1) size /= 1000;
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

// Extended JSON as a person writes it: numbers, dates and ids without their wrapping.
export function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  const keys = Object.keys(value);
  if (keys.length === 1) {
    const [key] = keys;
    if (key === "$numberInt" || key === "$numberDouble") return Number(value[key]);
    if (key === "$numberLong" || key === "$numberDecimal") return Number.isSafeInteger(Number(value[key])) ? Number(value[key]) : value[key];
    if (key === "$oid") return `ObjectId(${value[key]})`;
    if (key === "$date") return dateOf(value).toISOString();
  }
  return Object.fromEntries(keys.map((key) => [key, plain(value[key])]));
}
