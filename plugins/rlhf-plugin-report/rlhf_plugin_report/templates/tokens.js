/* Tokens of a completion: their colours, and where a token's numbers come from. */
const Tokens = (() => {
  const MOST = 2000; // drawn at once
  const at = (list, n) => (list ? list[n] : undefined);
  const ratioOf = (row, n) => {
    if (!row.trainer_logprobs) return undefined;
    return row.old_logprobs ? Math.exp(row.trainer_logprobs[n] - row.old_logprobs[n]) : 1;
  };
  const advantageOf = (row, n) => at(row.advantages, n) ?? row.advantage;
  const klOf = (row, n) => {
    if (!row.ref_logprobs) return undefined;
    const gap = row.ref_logprobs[n] - (row.trainer_logprobs || row.logprobs)[n];
    return Math.exp(gap) - gap - 1;
  };
  /* value: of a token; full: where the colour is strongest; both: blue below zero, orange above. */
  const COLOURS = {
    advantage: { of: advantageOf, zero: 0, full: 2, words: ["-2 or less", "2 or more"] },
    logprob: { of: (row, n) => at(row.logprobs, n), zero: 0, full: 6, words: ["probable", "improbable"] },
    ratio: { of: ratioOf, zero: 1, full: 0.4, words: ["0.6 or less", "1.4 or more"] },
    entropy: { of: (row, n) => at(row.entropies, n), zero: 0, full: 3, words: ["0", "3 nats or more"] },
    kl: { of: klOf, zero: 0, full: 0.5, words: ["0", "0.5 nats or more"] },
  };
  const ORANGE = "213, 94, 0";
  const BLUE = "0, 114, 178";
  const shade = (row, n, by) => {
    const kind = COLOURS[by];
    const value = row.mask && !row.mask[n] ? null : kind && kind.of(row, n);
    if (value === undefined || value === null) return "";
    const share = (value - kind.zero) / kind.full;
    const colour = by === "logprob" ? ORANGE : share < 0 ? ORANGE : by === "entropy" || by === "kl" ? ORANGE : BLUE;
    return `rgba(${colour}, ${Math.min(0.7, 0.7 * Math.abs(share)).toFixed(3)})`;
  };
  const scale = (by) => {
    const box = field("scale");
    const kind = COLOURS[by];
    if (!box) return;
    box.replaceChildren();
    if (!kind) return;
    const bar = element("i");
    const low = by === "advantage" || by === "ratio" ? `rgba(${ORANGE}, .7), transparent, rgba(${BLUE}, .7)` : `transparent, rgba(${ORANGE}, .7)`;
    bar.style.background = `linear-gradient(to right, ${low})`;
    box.append(element("span", kind.words[0]), bar, element("span", kind.words[1]));
  };
  const versionAt = (row, n) => (row.versions || []).find(([from, to]) => n >= from && n < to)?.[2] ?? row.policy_version;
  const authorAt = (row, n) => Turns.at(row, n)?.role ?? (row.segments || []).find(([from, to]) => n >= from && n < to)?.[2];

  /* How the advantage follows from the group's scores, if it does so in one of the usual ways. */
  const fromGroup = (row) => {
    const scores = (row.scores || []).filter((score) => score !== null);
    if (scores.length < 2 || typeof row.score !== "number") return "";
    const mean = scores.reduce((a, b) => a + b, 0) / scores.length;
    const others = (mean * scores.length - row.score) / (scores.length - 1);
    const squares = scores.reduce((a, b) => a + (b - mean) ** 2, 0);
    const wide = Math.sqrt(squares / scores.length);
    const sample = Math.sqrt(squares / (scores.length - 1));
    const gap = row.score - mean;
    const near = (value) => Math.abs(value - row.advantage) <= 0.002 * Math.max(1, Math.abs(row.advantage));
    const list = `The ${scores.length} scores of this prompt: ${scores.map(number).join(", ")}; mean ${number(mean)}`;
    if (sample > 0 && near(gap / sample)) return `${list}, standard deviation ${number(sample)}. Score less mean, divided by the standard deviation.`;
    if (wide > 0 && near(gap / wide)) return `${list}, standard deviation ${number(wide)}. Score less mean, divided by the standard deviation.`;
    if (near(gap)) return `${list}. Score less mean.`;
    if (near(row.score - others)) return `${list}; mean of the others ${number(others)}. Score less the mean of the others.`;
    return `${list}.`;
  };
  const numbersOf = (row, n, source) => {
    const lines = [];
    const add = (name, value, from) => value !== undefined && value !== null && lines.push([name, typeof value === "number" ? number(value) : value, from]);
    const place = `trace.jsonl, step ${row.step}, prompt ${row.id}, completion ${row.place}`;
    add("token", `${n + 1} of ${row.ids.length}`, `id ${row.ids[n]}, ${authorAt(row, n) ? `written by: ${authorAt(row, n)}` : "sampled by the policy"}; ${place}`);
    if (row.mask && !row.mask[n]) add("in the loss", "no", "the policy did not choose this token");
    const parts = Object.entries(row.parts || {}).map(([name, value]) => `${name} ${number(value)}`).join(", ");
    add("reward", row.score, `score of the whole completion by reward '${source.reward || "?"}'${parts ? `; parts: ${parts}` : ""}`);
    const each = row.advantages ? "this token's own" : "the same for every token of the completion";
    const values = row.values ? `; critic: value ${number(row.values[n])}${row.returns ? `, target ${number(row.returns[n])}` : ""}` : "";
    add("advantage", advantageOf(row, n), `by '${source.advantage || "?"}', ${each}${values}. ${row.advantages ? "" : fromGroup(row)}`);
    add("log-probability", row.logprobs[n], `when it was sampled, by policy version ${versionAt(row, n)}; probability ${number(Math.exp(row.logprobs[n]))}`);
    if (!row.trainer_logprobs) {
      add("ratio", "none", row.aside ? "this prompt was set aside and not trained on" : row.advantage === 0 ? "advantage 0: the completion was in no update" : "this run's trace does not keep it");
      return lines;
    }
    add("trainer's log-probability", row.trainer_logprobs[n], "in the forward of the (last) update on this completion");
    add("ratio", ratioOf(row, n), ratioWords(row, n, source));
    if (row.old_logprobs && WHOLE[source.importance_level]) add("ratio of the completion", wholeRatio(row, source), `${WHOLE[source.importance_level]}: the one ratio of all its tokens that loss '${source.loss}' has${clipWords(row, n, source, wholeRatio(row, source))}`);
    add("entropy", at(row.entropies, n), "of the policy's distribution at this place, in nats, in the same forward");
    add("KL to the reference", klOf(row, n), row.ref_logprobs ? `estimator k3, from the reference's log-probability ${number(row.ref_logprobs[n])} and the ${row.trainer_logprobs ? "trainer's" : "sampler's"}` : "");
    return lines;
  };
  /* One ratio for all tokens of a completion, of the losses that have it. */
  const WHOLE = { sequence: "geometric mean of the tokens' ratios", product: "product of the tokens' ratios" };
  const wholeRatio = (row, source) => {
    const gaps = row.trainer_logprobs.map((now, n) => now - row.old_logprobs[n]).filter((_, n) => !row.mask || row.mask[n]);
    const sum = gaps.reduce((a, b) => a + b, 0);
    return Math.exp(source.importance_level === "sequence" ? sum / gaps.length : sum);
  };
  const clipWords = (row, n, source, ratio) => {
    const low = source.clip_range;
    if (low === undefined || source.importance_level === undefined) return "";
    const high = source.clip_range_high ?? low;
    const advantage = advantageOf(row, n);
    const dual = source.dual_clip !== undefined && advantage < 0 && ratio > source.dual_clip;
    const clipped = dual || (advantage > 0 && ratio > 1 + high) || (advantage < 0 && ratio < 1 - low);
    const edge = (value) => String(Number(value.toPrecision(6)));
    const verdict = !clipped ? "not clipped" : `clipped${dual ? ` at ${source.dual_clip} (dual clip)` : ""}, no gradient of the reward`;
    return `; clip range ${edge(1 - low)} to ${edge(1 + high)}: ${verdict}`;
  };
  const ratioWords = (row, n, source) => {
    if (!row.old_logprobs) return "one update per rollout batch: the old policy is the one that is updated, so it is 1";
    const words = `exp(${number(row.trainer_logprobs[n])} − ${number(row.old_logprobs[n])}): trainer's less old log-probability`;
    return WHOLE[source.importance_level] ? `${words}, of this token alone` : `${words}${clipWords(row, n, source, ratioOf(row, n))}`;
  };
  const table = (row, n, source) => {
    const box = element("div", undefined, "numbers");
    box.append(element("h3", `Token ${JSON.stringify(row.pieces[n])}`));
    const made = element("table");
    for (const [name, value, from] of numbersOf(row, n, source)) {
      const line = element("tr");
      line.append(element("td", name), element("td", value), element("td", from));
      made.append(line);
    }
    const wide = element("div", undefined, "wide");
    wide.append(made);
    box.append(wide);
    return box;
  };

  /* The completion with a span per token; arrow keys move from token to token. */
  const box = (row, by, source) => {
    const text = element("div", undefined, "completion");
    const panel = element("div");
    panel.setAttribute("aria-live", "polite");
    let chosen = -1;
    const spans = [];
    let into = text;
    let next = 0;
    const open = (n) => {
      while (row.turns && next < row.turns.length && row.turns[next].span[0] <= n) {
        const { box: block, body } = Turns.block(row, next, true);
        text.append(block);
        if (row.turns[next].span[1] > n) into = body;
        next += 1;
      }
    };
    const add = (piece) => {
      const n = spans.length;
      open(n);
      const span = element("span", piece, row.mask && !row.mask[n] ? "token given" : "token");
      span.style.background = shade(row, n, by);
      span.dataset.n = n;
      spans.push(span);
      const start = row.turns ? undefined : (row.segments || []).find(([from]) => from === n);
      if (start) text.append(element("span", start[2], "author"));
      into.append(span);
    };
    const pieces = row.pieces;
    pieces.slice(0, MOST).forEach(add);
    if (pieces.length > MOST) {
      const button = unfolding(`${pieces.length - MOST} more tokens`, () => {
        button.remove();
        pieces.slice(MOST).forEach(add);
        open(pieces.length);
      });
      text.append(button);
    } else open(pieces.length);
    const choose = (n) => {
      if (n < 0 || n >= spans.length) return;
      spans[chosen]?.classList.remove("chosen");
      chosen = n;
      spans[n].classList.add("chosen");
      panel.replaceChildren(table(row, n, source));
      const turn = spans[n].closest(".turn");
      if (turn) turn.open = true;
      if (turn && panel.previousSibling !== turn) turn.after(panel); // long episodes: beside the token
    };
    text.tabIndex = 0;
    text.setAttribute("role", "group");
    text.setAttribute("aria-label", "Completion, token by token: left and right arrow show a token's numbers");
    text.addEventListener("click", (event) => event.target.dataset.n !== undefined && choose(Number(event.target.dataset.n)));
    text.addEventListener("keydown", (event) => {
      if (event.target !== text) return; // a turn's heading, a button
      const move = { ArrowRight: 1, ArrowLeft: -1, Enter: chosen < 0 ? 1 : 0 }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      choose(Math.max(0, chosen + move));
    });
    const whole = element("div");
    whole.append(text, panel);
    return whole;
  };
  return { box, scale };
})();
