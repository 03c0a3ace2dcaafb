"use strict";
/* Asks the server every two seconds for what is new, and only for that. Nothing is asked while the page is not seen. */
(() => {
  const EVERY = 2000;
  const MOST = 8; // runs drawn at once
  const KEPT = 200;
  const field = (id) => document.getElementById(id);
  const slots = new Map(); // selected run -> number of its colour
  const known = new Map(); // run -> cursors and rollouts
  let runs = [];
  let paused = false;
  let timer = 0;
  let asking = false;

  const ask = async (path) => {
    const answer = await fetch(path, { cache: "no-store" });
    const body = await answer.json();
    if (!answer.ok) throw Object.assign(new Error(body.error), { told: true });
    return body;
  };
  const select = (name) => {
    if (slots.has(name)) return;
    if (slots.size >= MOST) slots.delete(slots.keys().next().value);
    const taken = new Set(slots.values());
    let slot = 0;
    while (taken.has(slot)) slot += 1;
    slots.set(name, slot);
  };
  const remember = () => history.replaceState(null, "", `#${[...slots.keys()].map(encodeURIComponent).join("&")}`);
  const selected = () => [...slots].map(([name, slot]) => ({ name, slot }));

  const choose = (first) => {
    const there = new Set(runs.map((run) => run.name));
    for (const name of slots.keys()) if (!there.has(name)) slots.delete(name);
    if (!first) return;
    const wanted = location.hash.slice(1).split("&").filter(Boolean).map(decodeURIComponent).filter((name) => there.has(name));
    const running = runs.filter((run) => run.status === "running").map((run) => run.name);
    const usable = runs.filter((run) => run.step !== null).map((run) => run.name);
    const chosen = wanted.length ? wanted : running.length ? running.slice(0, 4) : usable.slice(0, 1);
    chosen.forEach(select);
  };

  const drawList = () => {
    Lists.drawRuns(runs, slots, field("find").value.toLowerCase(), (name, on) => {
      if (on) select(name);
      else slots.delete(name);
      remember();
      draw();
      poll();
    });
  };

  const draw = () => {
    drawList();
    Lists.drawLegend(selected());
    Curves.show(selected(), field("metric").value.toLowerCase());
    const rollouts = [...slots.keys()].flatMap((name) => known.get(name)?.rollouts || []);
    rollouts.sort((a, b) => b.step - a.step || b.number - a.number);
    Lists.drawRollouts(rollouts, slots, field("text").value.toLowerCase());
    Lists.drawStatuses([...slots.keys()].flatMap((name) => known.get(name)?.statuses || []));
    Lists.drawWarnings([...slots.keys()].flatMap((name) => known.get(name)?.warnings || []));
    const query = [...slots.keys()].map((name) => `run=${encodeURIComponent(name)}`).join("&");
    if (query) field("report").href = `report?${query}`;
    else field("report").removeAttribute("href");
  };

  const follow = async (name) => {
    const had = known.get(name) || { metrics: "", newest: "", rollouts: [] };
    const query = new URLSearchParams({ name, metrics: had.metrics, rollouts: had.newest });
    const news = await ask(`api/run?${query}`);
    Curves.add(name, news.metrics, news.groups, news.words, news.thresholds);
    const epoch = news.rollouts.cursor.split(".")[0];
    const fresh = news.rollouts.rows.map((row) => ({ ...row, run: name, epoch })).reverse();
    const before = news.rollouts.restarted ? [] : had.rollouts;
    const warnings = news.warnings.map((one) => ({ ...one, run: name }));
    const statuses = news.statuses.map((one) => ({ ...one, run: name }));
    known.set(name, { statuses, metrics: news.metrics.cursor, newest: news.rollouts.cursor, rollouts: [...fresh, ...before].slice(0, KEPT), warnings });
  };

  const say = (text, lost) => {
    field("state").className = lost ? "lost" : "";
    if (field("state").textContent !== text) field("state").textContent = text;
  };

  const poll = async (first = false) => {
    clearTimeout(timer);
    if (asking) return;
    asking = true;
    try {
      if (!paused && (first || !document.hidden)) {
        const news = await ask("api/runs");
        runs = news.runs;
        field("root").textContent = news.root;
        choose(first);
        drawList();
        const problems = [];
        for (const name of [...slots.keys()]) {
          try {
            await follow(name);
          } catch (error) {
            if (!error.told) throw error;
            problems.push(error.message);
          }
        }
        draw();
        say(problems.join("; ") || "live", problems.length > 0);
      }
    } catch (error) {
      say(error.told ? error.message : "The dashboard cannot be reached: it was ended, or the connection is lost. What is shown is as of then.", true);
    } finally {
      asking = false;
      timer = setTimeout(() => poll(), EVERY);
    }
  };

  for (const id of ["find", "metric", "text"]) field(id).addEventListener("input", draw);
  field("smooth").addEventListener("input", () => Curves.setSmoothing(Number(field("smooth").value)));
  field("pause").addEventListener("click", () => {
    paused = !paused;
    field("pause").setAttribute("aria-pressed", String(paused));
    field("pause").textContent = paused ? "Go on" : "Pause";
    if (paused) say("paused", false);
    else poll();
  });
  document.addEventListener("visibilitychange", () => document.hidden || poll());
  poll(true);
})();
