"use strict";
/* The list of runs and the newest rollouts. Texts of runs are set as text, never as markup. */
const Lists = (() => {
  const PAGE = 40;
  /* As in a report's tools.js: characters that act on the order of letters, or are not seen, are shown. */
  const visible = (text) => String(text).replace(/(?![\n\t\u200c\u200d\u00ad])[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, (one) => {
    const code = one.codePointAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = visible(text);
    if (name) made.className = name;
    return made;
  };
  const number = (value) => (typeof value === "number" ? Number(value).toPrecision(4) : "none");
  const age = (s) => (s === null ? "" : s < 60 ? `${Math.round(s)} s` : s < 3600 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`);
  const key = (slot) => {
    const { colour, dash } = Curves.style(slot);
    const made = element("span", undefined, "key");
    made.style.borderTopColor = colour;
    made.style.borderTopStyle = dash === "dotdash" ? "double" : dash;
    return made;
  };
  const set = (node, text) => {
    const shown = visible(text);
    if (node.textContent !== shown) node.textContent = shown;
  };

  const rows = new Map(); // run -> parts of its line

  const made = (run, onChange) => {
    const line = element("tr");
    const box = element("input");
    box.type = "checkbox";
    box.id = `run-${rows.size}`;
    box.addEventListener("change", () => onChange(run.name, box.checked));
    const label = element("label");
    label.htmlFor = box.id;
    const mark = element("span");
    label.append(mark, element("span", run.name));
    const parts = { line, box, mark, what: element("span", "", "what"), problem: element("span", "", "problem"), status: element("span", "", "status") };
    for (const name of ["step", "value", "age"]) parts[name] = element("td", "", "number");
    const cells = [element("td"), element("td"), element("td")];
    cells[0].append(box);
    cells[1].append(label, parts.what, parts.problem);
    cells[2].append(parts.status);
    line.append(...cells, parts.step, parts.value, parts.age);
    line.dataset.run = run.name;
    return parts;
  };

  /** Lines are kept and changed in place, so that focus and selection stay. */
  const drawRuns = (runs, slots, text, onChange) => {
    const body = document.getElementById("list");
    const there = new Set(runs.map((run) => run.name));
    for (const [name, parts] of rows) if (!there.has(name)) { parts.line.remove(); rows.delete(name); }
    let before = body.firstChild;
    for (const run of runs) {
      if (!rows.has(run.name)) rows.set(run.name, made(run, onChange));
      const parts = rows.get(run.name);
      parts.box.checked = slots.has(run.name);
      parts.mark.replaceChildren(...(slots.has(run.name) ? [key(slots.get(run.name))] : []));
      set(parts.what, [run.algorithm, run.reward, run.model].filter(Boolean).join(" · "));
      set(parts.problem, run.problem);
      set(parts.status, run.status);
      parts.status.className = `status ${run.status}`;
      set(parts.step, run.step === null ? "" : run.steps ? `${run.step} of ${run.steps}` : String(run.step));
      set(parts.value, run.value === null ? "" : Curves.short(run.value));
      parts.value.title = run.metric;
      set(parts.age, age(run.age));
      const words = `${run.name} ${run.algorithm} ${run.reward} ${run.model} ${run.status}`.toLowerCase();
      parts.line.hidden = !words.includes(text);
      if (parts.line === before) before = before.nextSibling;
      else body.insertBefore(parts.line, before);
    }
    const none = document.getElementById("none");
    none.hidden = runs.length > 0;
    set(none, "There is no run any more.");
  };

  let legend = "";

  const drawLegend = (selected) => {
    if (legend === JSON.stringify(selected)) return;
    legend = JSON.stringify(selected);
    const items = selected.map(({ name, slot }) => {
      const item = element("li");
      item.append(key(slot), element("span", name));
      return item;
    });
    document.getElementById("legend").replaceChildren(...items);
  };

  let told = "";

  /** What monitors said last, of the selected runs. */
  const drawWarnings = (warnings) => {
    const newest = warnings.sort((a, b) => b.step - a.step).slice(0, 4);
    if (told === JSON.stringify(newest)) return;
    told = JSON.stringify(newest);
    const lines = newest.map((one) => element("li", `${one.run}, step ${one.step}, ${one.monitor}: ${one.text}`));
    document.getElementById("warnings").replaceChildren(...lines);
  };

  let lit = "";

  /** A light for each signal that a monitor watches: its colour is also a word, its reason names the step. */
  const drawStatuses = (statuses) => {
    if (lit === JSON.stringify(statuses)) return;
    lit = JSON.stringify(statuses);
    const several = new Set(statuses.map((one) => one.run)).size > 1;
    const lines = statuses.map((one) => {
      const line = element("li");
      line.append(element("span", one.colour, `signal ${one.colour}`), element("span", `${several ? `${one.run}: ` : ""}${one.title}`), element("small", one.reason));
      return line;
    });
    document.getElementById("statuses").replaceChildren(...lines);
    const counts = ["red", "amber", "green", "grey"].map((colour) => [statuses.filter((one) => one.colour === colour).length, colour]);
    set(document.getElementById("lights"), `Monitors: ${counts.filter(([n]) => n).map(([n, colour]) => `${n} ${colour}`).join(", ") || "none"}`);
  };

  /** One turn of an episode; what the policy only read is grey. */
  const turn = (one) => {
    const facts = [one.name ? `${one.role} ${one.name}` : one.role, one.status, one.score === undefined ? "" : `turn score ${number(one.score)}`, one.seconds === undefined ? "" : `${number(one.seconds)} s`];
    const calls = (one.calls || []).map(([name, given]) => `${name} ${given}`);
    const box = element("div", undefined, `completion turn ${one.role === "assistant" ? "wrote" : "read"}`);
    box.append(element("small", facts.filter(Boolean).join(" · ")), element("div", [one.text, ...calls].filter(Boolean).join("\n")));
    return box;
  };

  const item = (row, slot, several) => {
    const li = element("li");
    li.dataset.number = row.number;
    const meta = element("div", undefined, "meta");
    if (several) {
      const run = element("span");
      run.append(key(slot), element("b", row.run));
      meta.append(run);
    }
    const facts = { step: row.step, score: number(row.score), advantage: number(row.advantage), tokens: row.tokens, end: row.finish_reason };
    if (row.status !== "ok") facts.status = row.status;
    for (const [name, value] of Object.entries(facts)) {
      if (value === null || value === undefined) continue;
      const one = element("span", `${name} `);
      one.append(element("b", String(value)));
      meta.append(one);
    }
    li.append(meta, element("div", row.prompt, "prompt"), ...(row.turns ? row.turns.map(turn) : [element("div", row.text, "completion")]));
    const parts = Object.entries(row.parts || {}).map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : JSON.stringify(value)}`);
    const more = [parts.join(", "), row.detail].filter(Boolean).join("\n");
    if (more) {
      const details = element("details");
      details.append(element("summary", "parts of the score"), element("div", more, "detail"));
      li.append(details);
    }
    return li;
  };

  const drawn = new Map(); // key of a rollout -> its element, so that open details stay open

  const drawRollouts = (rollouts, slots, text) => {
    const fits = rollouts.filter((row) => !text || `${row.prompt}\n${row.text}\n${row.id}\n${(row.turns || []).map((one) => one.text).join("\n")}`.toLowerCase().includes(text));
    const several = slots.size > 1;
    const wanted = fits.slice(0, PAGE).map((row) => [`${row.run} ${row.epoch} ${row.number} ${slots.get(row.run)} ${several}`, row]);
    const keys = new Set(wanted.map(([name]) => name));
    for (const [name, node] of drawn) if (!keys.has(name)) { node.remove(); drawn.delete(name); }
    const list = document.getElementById("newest");
    let before = list.firstChild;
    for (const [name, row] of wanted) {
      if (!drawn.has(name)) drawn.set(name, item(row, slots.get(row.run), several));
      const node = drawn.get(name);
      if (node === before) before = before.nextSibling;
      else list.insertBefore(node, before);
    }
    set(document.getElementById("count"), `${wanted.length} of the ${fits.length} newest`);
  };

  return { drawRuns, drawLegend, drawStatuses, drawWarnings, drawRollouts };
})();
