/* An episode turn by turn: a block for each, with who wrote it, its calls, status, score and seconds. */
const Turns = (() => {
  const POLICY = "assistant";
  const isPolicy = (turn) => turn.role === POLICY;
  const at = (row, n) => (row.turns || []).find(({ span }) => n >= span[0] && n < span[1]);
  /* Where the policy's context was rewritten: what follows was sampled after another prompt. */
  const rewritten = (row, n) => n > 0 && (row.segments || []).some(([from]) => from === n);
  const fact = (line, name, value) => {
    const one = element("span", name ? `${name} ` : "");
    one.append(element("b", String(value)));
    line.append(one);
  };
  const head = (row, turn, place) => {
    const line = element("summary", undefined, "meta");
    fact(line, `${place + 1}`, turn.name ? `${turn.role} ${turn.name}` : turn.role);
    const tokens = turn.span[1] - turn.span[0];
    if (tokens) fact(line, "tokens", tokens);
    if (!isPolicy(turn) || turn.status) {
      const status = element("span", undefined, `outcome ${turn.status || "ok"}`);
      status.append(element("b", turn.status || "ok"));
      line.append(status);
    }
    if (turn.seconds !== undefined) fact(line, "seconds", number(turn.seconds));
    if (turn.score !== undefined) fact(line, "turn score", number(turn.score));
    if (rewritten(row, turn.span[0])) line.append(element("span", "the context was rewritten here"));
    return line;
  };
  const calls = (turn) => (turn.calls || []).map(([name, given]) => {
    const line = element("div", undefined, "call");
    line.append(element("b", name), document.createTextNode(` ${visible(given)}`));
    return line;
  });
  /* A turn's block; its text stands in it unless its tokens will. */
  const block = (row, place, withTokens) => {
    const turn = row.turns[place];
    const box = element("details", undefined, `turn ${isPolicy(turn) ? "wrote" : "read"}`);
    box.open = true;
    box.append(head(row, turn, place), ...calls(turn));
    const tokens = withTokens && turn.span[1] > turn.span[0];
    const body = tokens ? element("div", undefined, "text") : folded(turn.text, "text");
    box.append(body);
    return { box, body };
  };
  /* Without tokens: the texts alone. */
  const list = (row) => {
    const whole = element("div", undefined, "completion");
    row.turns.forEach((_, place) => whole.append(block(row, place, false).box));
    return whole;
  };
  const words = (row) => (row.turns || []).map((turn) => `${turn.role} ${turn.name ?? ""} ${turn.text} ${(turn.calls || []).flat().join(" ")}`).join("\n");
  return { at, block, list, words };
})();
