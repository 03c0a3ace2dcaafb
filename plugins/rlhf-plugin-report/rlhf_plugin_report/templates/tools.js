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
