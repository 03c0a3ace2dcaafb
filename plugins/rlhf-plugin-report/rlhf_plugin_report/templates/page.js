"use strict";
(() => {
  const rows = JSON.parse(document.getElementById("data").textContent);
  const field = (name) => document.getElementById(name);
  const PAGE = 50;
  let shown = PAGE;
  const number = (value) => (value === null || value === undefined ? "none" : Number(value).toPrecision(4));
  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const ORDERS = {
    step: (a, b) => a.step - b.step,
    high: (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity),
    low: (a, b) => (a.score ?? Infinity) - (b.score ?? Infinity),
    long: (a, b) => b.tokens - a.tokens,
    advantage: (a, b) => Math.abs(b.advantage ?? 0) - Math.abs(a.advantage ?? 0),
  };
  const shade = (row, n) => {
    const by = field("colour").value;
    if (by === "none") return "";
    const value = by === "logprob" ? -row.logprobs[n] / 6 : (row.advantage ?? 0) / 2;
    const strength = Math.min(0.75, Math.abs(value));
    const colour = by === "logprob" || value < 0 ? "213, 94, 0" : "0, 114, 178";
    return `rgba(${colour}, ${strength.toFixed(3)})`;
  };
  const tokens = (row) => {
    const box = element("div", undefined, "completion");
    if (!row.pieces) {
      box.textContent = row.text;
      return box;
    }
    row.pieces.forEach((piece, n) => {
      const span = element("span", piece, "token");
      span.style.background = shade(row, n);
      span.title = `log-probability ${number(row.logprobs[n])}, advantage ${number(row.advantage)}`;
      box.append(span);
    });
    return box;
  };
  const item = (row) => {
    const li = element("li");
    const meta = element("div", undefined, "meta");
    const facts = { run: row.run, step: row.step, score: number(row.score), advantage: number(row.advantage), tokens: row.tokens, end: row.finish_reason };
    if (row.status !== "ok") facts.status = row.status;
    for (const [key, value] of Object.entries(facts)) {
      const one = element("span", `${key} `);
      one.append(element("b", String(value)));
      meta.append(one);
    }
    li.append(meta, element("div", row.prompt, "prompt"), tokens(row));
    const more = { ...row.parts, ...(row.detail ? { detail: row.detail } : {}), ...(row.info || {}), id: row.id, seed: row.seed };
    const details = element("details");
    details.append(element("summary", "parts of the score, details"));
    const list = element("dl");
    for (const [key, value] of Object.entries(more)) {
      const pair = element("div");
      const text = typeof value === "number" && key !== "seed" ? number(value) : typeof value === "object" ? JSON.stringify(value) : String(value);
      pair.append(element("dt", key), element("dd", text));
      list.append(pair);
    }
    details.append(list);
    li.append(details);
    return li;
  };
  const draw = () => {
    const text = field("text").value.toLowerCase();
    const step = field("step").value;
    const fits = (row) =>
      (!text || `${row.prompt}\n${row.text}\n${row.id}`.toLowerCase().includes(text)) && (step === "" || row.step === Number(step));
    const found = rows.filter(fits).sort(ORDERS[field("order").value]);
    field("list").replaceChildren(...found.slice(0, shown).map(item));
    field("count").textContent = `${Math.min(shown, found.length)} of ${found.length} completions`;
    field("more").hidden = found.length <= shown;
  };
  for (const name of ["text", "step", "order", "colour"]) {
    field(name).addEventListener("input", () => {
      shown = PAGE;
      draw();
    });
  }
  field("more").addEventListener("click", () => {
    shown += PAGE;
    draw();
  });
  draw();

  const charts = JSON.parse(document.getElementById("charts").textContent);
  const drawCharts = (group) => {
    for (const place of group.querySelectorAll("figure > div")) {
      if (charts[place.id]) Bokeh.embed.embed_item(charts[place.id], place.id);
      delete charts[place.id];
    }
  };
  for (const group of document.querySelectorAll("details.group")) {
    if (group.open) drawCharts(group);
    group.addEventListener("toggle", () => group.open && drawCharts(group));
  }
})();
