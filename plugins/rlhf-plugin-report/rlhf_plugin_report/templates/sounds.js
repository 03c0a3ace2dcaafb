/* Sounds of one prompt side by side, and their blind comparison. */
const Sounds = (() => {
  const PAGE = 6;
  const spoken = (pair) => {
    const line = element("div", pair.prompt, "prompt");
    if (pair.voice) line.append(element("small", ` ${pair.voice}`));
    return line;
  };
  const item = (pair) => {
    const li = element("li");
    const facts = element("div", pair.kind, "meta");
    const row = element("div", undefined, "sides");
    for (const side of pair.sides) {
      const box = element("div");
      box.append(element("div", side.label, "label"), Rollouts.medium(side, pair.run, false));
      row.append(box);
    }
    li.append(facts, spoken(pair), row);
    return li;
  };
  /* The same answers for the same pairs, wherever the page lies. */
  const nameOf = (pairs) => pairs.reduce((sum, { id }) => (Math.imul(sum, 31) + parseInt(id.slice(0, 8), 16)) >>> 0, 7).toString(16);
  const start = (pairs, files) => {
    let shown = PAGE;
    const draw = () => {
      field("pairs").replaceChildren(...pairs.slice(0, shown).map(item));
      field("more-pairs").hidden = pairs.length <= shown;
    };
    field("more-pairs").addEventListener("click", () => {
      shown += PAGE;
      draw();
    });
    draw();
    const whole = pairs.filter((pair) => pair.sides.every((side) => files[pair.run]?.[side.path]?.url));
    const trials = whole.map((pair) => ({ ...pair, sides: pair.sides.map((side) => ({ ...side, ...files[pair.run][side.path] })) }));
    Listen.start(field("listen"), trials, Listen.kept(nameOf(pairs)));
  };
  return { start };
})();
