"use strict";
const field = (name) => document.getElementById(name);
const number = (value) => (value === null || value === undefined ? "none" : String(Number(Number(value).toPrecision(4))));
/* Characters that control terminals or reverse what stands behind them are shown. */
const visible = (text) => String(text).replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu, (one) => {
  const code = one.codePointAt(0);
  return code < 32 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
});
const element = (tag, text, name) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = visible(text);
  if (name) made.className = name;
  return made;
};
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/* A text; of a long one the beginning, and a button for the rest. */
const FOLDED = 6000;
const folded = (text, name) => {
  const box = element("div", text.length > FOLDED ? text.slice(0, FOLDED) : text, name);
  if (text.length > FOLDED) box.append(unfolding(`${text.length - FOLDED} more characters`, () => (box.textContent = visible(text))));
  return box;
};
const unfolding = (words, onClick) => {
  const button = element("button", `Show ${words}`, "unfold");
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
};
