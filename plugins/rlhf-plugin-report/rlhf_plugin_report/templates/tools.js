"use strict";
const field = (name) => document.getElementById(name);
const number = (value) => (value === null || value === undefined ? "none" : String(Number(Number(value).toPrecision(4))));
const element = (tag, text, name) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
};
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/* A text; of a long one the beginning, and a button for the rest. */
const FOLDED = 6000;
const folded = (text, name) => {
  const box = element("div", text.length > FOLDED ? text.slice(0, FOLDED) : text, name);
  if (text.length > FOLDED) box.append(unfolding(`${text.length - FOLDED} more characters`, () => (box.textContent = text)));
  return box;
};
const unfolding = (words, onClick) => {
  const button = element("button", `Show ${words}`, "unfold");
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
};
