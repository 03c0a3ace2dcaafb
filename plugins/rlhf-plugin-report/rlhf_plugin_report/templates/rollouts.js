/* The list of completions (or, of a run that learns from data, examples): filtered, ordered, shown. */
const Rollouts = (() => {
  let rows = [];
  let sources = {};
  const PAGE = 50;
  let shown = PAGE;
  const part = (row, name, otherwise) => row.parts?.[name] ?? otherwise;
  const ORDERS = {
    step: (a, b) => a.step - b.step,
    high: (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity),
    low: (a, b) => (a.score ?? Infinity) - (b.score ?? Infinity),
    long: (a, b) => (b.tokens ?? -1) - (a.tokens ?? -1),
    advantage: (a, b) => Math.abs(b.advantage ?? 0) - Math.abs(a.advantage ?? 0),
    loss: (a, b) => part(b, "loss", -Infinity) - part(a, "loss", -Infinity),
    margin: (a, b) => part(a, "margin", Infinity) - part(b, "margin", Infinity),
  };
  const pairs = (values) => {
    const list = element("dl");
    for (const [key, value] of Object.entries(values)) {
      const pair = element("div");
      const text = typeof value === "number" ? number(value) : typeof value === "object" ? JSON.stringify(value, null, 1) : String(value);
      pair.append(element("dt", key), element("dd", text));
      list.append(pair);
    }
    return list;
  };
  let files = {};
  const medium = ({ kind, path, missing }, run, named = true) => {
    const url = files[run]?.[path]?.url;
    const box = element("div", undefined, "media");
    if (url && kind) {
      const player = document.createElement(kind === "image" ? "img" : kind);
      player.src = url;
      if (kind === "image") player.alt = path;
      else player.controls = true;
      player.setAttribute("aria-label", `${kind} ${path}`);
      box.append(player);
      if (kind === "audio") box.append(Sound.view(url));
    }
    if (named || missing) box.append(element("small", `${kind || "file"} ${path}${missing ? " (the file is not there)" : ""}`));
    return box;
  };
  const meta = (row) => {
    const line = element("div", undefined, "meta");
    const facts = { run: row.run, step: row.step };
    if (row.play) facts.benchmark = row.play;
    if (row.heldout) facts["held out"] = "evaluation";
    else if (!row.example) Object.assign(facts, { score: number(row.score), advantage: number(row.advantage) });
    else Object.assign(facts, Object.fromEntries(Object.entries(row.parts).map(([name, value]) => [name, number(value)])));
    if (row.tokens !== undefined) facts.tokens = row.tokens;
    if (row.finish_reason) facts.end = row.finish_reason;
    if (row.status && row.status !== "ok") facts.status = row.status;
    if (row.aside) facts["not trained on"] = "set aside";
    for (const [key, value] of Object.entries(facts)) {
      const one = element("span", `${key} `);
      one.append(element("b", String(value)));
      line.append(one);
    }
    return line;
  };
  const more = (row) => {
    const details = element("details");
    details.append(element("summary", row.example || row.heldout ? "details" : "parts of the score, verdict, details"));
    if (row.parts && !row.example) details.append(element("div", "parts of the score", "label"), pairs(row.parts));
    if (row.detail) details.append(element("div", "verdict or judge's reason", "label"), folded(row.detail, "completion"));
    if (row.info) details.append(element("div", "episode: calls, rewards and state that the agent or environment left", "label"), pairs(row.info));
    const rest = { id: row.id, "completion of its prompt": row.place };
    if (row.segments && !row.turns) rest.turns = row.segments.map(([from, to, role]) => `${role} ${from}-${to}`).join(", ");
    if (row.seed) rest.seed = row.seed;
    if (row.policy_version !== undefined) rest["policy version"] = row.policy_version;
    details.append(element("div", "where it is from", "label"), pairs(rest));
    return details;
  };
  const item = (row) => {
    const li = element("li");
    li.append(meta(row));
    if (row.prompt) li.append(folded(row.prompt, "prompt"));
    for (const one of row.media || []) li.append(medium(one, row.run));
    if (row.ids) li.append(Tokens.box(row, field("colour").value, sources[row.run] || {}));
    else if (row.turns) li.append(Turns.list(row));
    else if (!row.example) li.append(folded(row.text ?? "", "completion"));
    for (const [name, text] of Object.entries(row.texts || {})) li.append(element("div", name, "label"), folded(text, "completion"));
    li.append(more(row));
    return li;
  };
  const words = (row) => `${row.prompt}\n${row.text ?? ""}\n${row.id}\n${row.detail ?? ""}\n${Turns.words(row)}\n${Object.values(row.texts || {}).join("\n")}`.toLowerCase();
  const draw = () => {
    const text = field("text").value.toLowerCase();
    const step = field("step").value;
    const run = field("run")?.value;
    const traced = field("traced")?.checked;
    const from = field("from")?.value ?? "all";
    const fits = (row) => (from === "all" || Boolean(row.heldout) === (from === "heldout")) && (step === "" || row.step === Number(step)) && (!run || row.run === run) && (!traced || row.ids) && (!text || words(row).includes(text));
    const found = rows.filter(fits).sort(ORDERS[field("order").value]);
    field("list").replaceChildren(...found.slice(0, shown).map(item));
    field("count").textContent = rows.length ? `${Math.min(shown, found.length)} of ${found.length} ${rows[0].example ? "examples" : "completions"}` : "";
    field("more").hidden = found.length <= shown;
    if (field("colour")) Tokens.scale(field("colour").value);
  };
  const start = (ofPage, sourcesOfPage, filesOfPage) => {
    rows = ofPage;
    files = filesOfPage;
    sources = sourcesOfPage;
    for (const name of ["text", "run", "step", "from", "order", "traced", "colour"]) {
      field(name)?.addEventListener("input", () => {
        shown = PAGE;
        draw();
      });
    }
    field("filter").addEventListener("submit", (event) => event.preventDefault());
    field("more").addEventListener("click", () => {
      shown += PAGE;
      draw();
    });
    draw();
  };
  return { start, medium };
})();
