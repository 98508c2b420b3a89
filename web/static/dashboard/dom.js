// DOM elements, updated in place: focus, scroll positions and opened details are kept.

export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "width") node.style.width = value; // through the object model, which the security policy allows
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Set the children of a node with the fewest changes. Rows with a `data-key` keep their element when other rows come or go. */
export function show(parent, ...children) {
  const wanted = present(children).map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  const keyed = new Map([...parent.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  wanted.forEach((node, at) => {
    const here = parent.childNodes[at];
    const old = keyOf(node) ? keyed.get(keyOf(node)) : here;
    if (!old || keyOf(old) !== keyOf(node) || old.nodeName !== node.nodeName) {
      parent.insertBefore(node, here ?? null);
    } else {
      if (old !== here) parent.insertBefore(old, here ?? null);
      update(old, node);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

/** Attributes that an update keeps: the user opened an element, or an action is in progress. */
const STAYS = ["style", "open", "disabled"];

function update(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!STAYS.includes(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  if (old.style.width !== fresh.style.width) old.style.width = fresh.style.width;
  if (old.hasAttribute("data-kept")) return; // another module fills it
  show(old, ...fresh.childNodes);
}

const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE && node.getAttribute("data-key");

const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
