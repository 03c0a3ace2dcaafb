"use strict";
const field = (name) => document.getElementById(name);
const number = (value) => (value === null || value === undefined ? "none" : String(Number(Number(value).toPrecision(4))));
/* Characters that control terminals or reverse what stands behind them are shown. */
const visible = (text) => String(text).replace(/(?![\n\t\u200c\u200d\u00ad])[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, (one) => {
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
