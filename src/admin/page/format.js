"use strict";
// The format of numbers, and helpers that make elements. Text from the server is inserted as text, never as markup.

const COMMITMENTS = ["processed", "confirmed", "finalized"];
// The four ways in which a call ends, in drawing order, with the outcomes of each.
const SERIES = {
  kept: { name: "from the cache", means: "answered from the cache, or by a call in flight", outcomes: ["hit", "carried", "stale", "derived", "collapsed"] },
  asked: { name: "from a node", means: "answered by a node", outcomes: ["miss", "bypass"] },
  refused: { name: "refused", means: "refused: invalid, not allowed, or over a limit", outcomes: ["invalid", "denied", "limited"] },
  failed: { name: "failed", means: "failed: no node could answer", outcomes: ["error"] },
};
const MEANINGS = {
  hit: "answered from the cache", carried: "answered from the cache: no block has written it", stale: "answered from the cache while a refresh runs", derived: "derived from another cached answer",
  collapsed: "shared a call in flight", miss: "answered by a node", bypass: "answered by a node, because the caller asked to bypass the cache",
  invalid: "not a valid call", denied: "not allowed for the key", limited: "over a rate limit or quota", error: "no node could answer",
};

const $ = (id) => document.getElementById(id);
const setText = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

/** Makes an element with classes, attributes and children: `element("td.n", {}, "7")`. */
function element(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Makes an SVG element. */
function svgElement(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const slot = (n) => (n == null ? "–" : whole.format(n));
const count = (n) => (n < 100000 ? whole.format(n) : short.format(n));
const rate = (n) => (n === 0 ? "0" : n < 0.1 ? "< 0.1" : n < 10 ? n.toFixed(1) : n < 10000 ? whole.format(Math.round(n)) : short.format(n));
// Rounded down, so that "100 %" means all.
const percent = (r) => (r == null ? "–" : r === 1 ? "100 %" : (Math.floor(r * 1000) / 10).toFixed(1) + " %");
// The middle of a long name is cut, because long names often start alike.
const clip = (text, most) => (text.length > most ? text.slice(0, Math.ceil(most / 2) - 1) + "…" + text.slice(-Math.floor(most / 2)) : text);
const plural = (n, one, many) => `${whole.format(n)} ${n === 1 ? one : many}`;

function millis(ms) {
  if (ms == null) return "–";
  if (ms < 1) return Math.max(1, Math.round(ms * 1000)) + " µs";
  return ms < 10 ? ms.toFixed(1) + " ms" : ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(1) + " s";
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (n < 10 && unit ? n.toFixed(1) : Math.round(n)) + " " + units[unit];
}

function ago(seconds) {
  const [d, h, m] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min` : `${seconds} s`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** Returns a round step that divides `span` into at most `most` parts. */
function step(span, most) {
  const rough = Math.max(span / most, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((m) => m * power >= rough) * power;
}
