// Makes and updates elements. Every text goes in as text, never as HTML: names and documents are anybody's.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, name), attributes, children);

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keeps one child of `parent` for each item, in their order. A child stays the same element while its item stays, so
// that the focus, a selection and an open <details> stay too. update(child, item) is called each time.
export function keyed(parent, items, keyOf, create, update = () => {}) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child === undefined) {
      child = create(item);
      child.dataset.key = key;
    }
    old.delete(key);
    if (child === before) before = before.nextElementSibling;
    else parent.insertBefore(child, before);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

// Asks a question in a dialog. The promise gives true if the person says yes.
export function confirmed(text) {
  const dialog = byId("question");
  setText(byId("question-text"), text);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
