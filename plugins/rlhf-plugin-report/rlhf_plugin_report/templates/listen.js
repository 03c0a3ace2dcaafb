/* Blind comparison of two sounds: which is A is drawn by chance, equally often either; answers become preference pairs. */
const Listen = (() => {
  const KEYS = { 1: "play0", 2: "play1", a: "play0", b: "play1", ArrowLeft: "A", ArrowRight: "B", ArrowDown: "tie", t: "tie", Backspace: "back" };
  const WORDS = { A: "A is better (←)", tie: "no difference (↓)", B: "B is better (→)" };

  /* Numbers in [0, 1) that depend on the seed alone (mulberry32). */
  const random = (seed) => () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const shuffled = (list, draw) => {
    const mixed = [...list];
    for (let i = mixed.length - 1; i > 0; i -= 1) {
      const j = Math.floor(draw() * (i + 1));
      [mixed[i], mixed[j]] = [mixed[j], mixed[i]];
    }
    return mixed;
  };
  /* Trials in a random order; of each kind every second one begins with the second side, which ones is random. */
  const ordered = (trials, seed) => {
    const draw = random(seed);
    const firsts = new Map();
    for (const kind of new Set(trials.map((trial) => trial.kind))) {
      const ids = shuffled(trials.filter((trial) => trial.kind === kind).map(({ id }) => id), draw);
      const flip = draw() < 0.5 ? 1 : 0;
      ids.forEach((id, n) => firsts.set(id, (n + flip) % 2));
    }
    return shuffled(trials, draw).map((trial) => ({ ...trial, first: firsts.get(trial.id) }));
  };
  /* Answers in this browser, as long as it keeps what pages store. */
  const kept = (name) => {
    const key = `rlhf-listen-${name}`;
    let unkept = "";
    return {
      load: () => {
        try {
          return JSON.parse(localStorage.getItem(key));
        } catch {
          return null;
        }
      },
      save: (state) => {
        try {
          localStorage.setItem(key, JSON.stringify(state));
        } catch {
          unkept = "This browser keeps nothing for this page: download before you close it.";
        }
      },
      downloads: true,
      place: () => unkept || "Answers stay in this browser until you download them.",
    };
  };
  const chosenOf = (trial, { answer, first }) => (answer === "A" ? first : 1 - first);
  /* Rows as `rlhf data speech` writes them; where there was no difference there is no pair. */
  const pairOf = (trial, answer) => {
    const chosen = chosenOf(trial, answer);
    const [better, worse] = [trial.sides[chosen], trial.sides[1 - chosen]];
    const texts = better.text && worse.text ? { chosen: better.text, rejected: worse.text } : {};
    const sounds = { chosen_audio: better.file ?? better.path, rejected_audio: worse.file ?? worse.path };
    const labels = { kind: trial.kind, chosen_is: better.label, rejected_is: worse.label, source: "listening" };
    return { id: trial.id, prompt: trial.messages ?? trial.prompt, ...texts, ...sounds, ...labels };
  };
  /* Wilson's 95% interval of a share. */
  const interval = (hits, of) => {
    const z = 1.96;
    const centre = (hits + (z * z) / 2) / (of + z * z);
    const half = (z / (of + z * z)) * Math.sqrt((hits * (of - hits)) / of + (z * z) / 4);
    return `${((centre - half) * 100).toFixed(0)} to ${((centre + half) * 100).toFixed(0)} %`;
  };
  const download = (name, rows) => {
    const text = rows.map((row) => `${JSON.stringify(row)}\n`).join("");
    const link = Object.assign(document.createElement("a"), { download: name, href: URL.createObjectURL(new Blob([text], { type: "application/jsonl" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const button = (words, onClick, name) => {
    const made = element("button", words, name);
    made.type = "button";
    made.addEventListener("click", onClick);
    return made;
  };

  const start = (box, all, store) => {
    let state = store.load() || { seed: store.seed ?? Math.floor(Math.random() * 2 ** 31), answers: {} };
    let kind = null;
    let trials = [];
    let at = 0;
    let players = [];
    let heard = [false, false];
    let began = 0;
    box.tabIndex = -1;
    box.classList.add("listen");
    const stop = () => players.forEach((player) => player.pause());
    const open = () => trials.findIndex(({ id }) => !state.answers[id]);

    const intro = () => {
      stop();
      players = [];
      const kinds = [...new Set(all.map((trial) => trial.kind))];
      const list = kinds.map((one) => {
        const of = all.filter((trial) => trial.kind === one);
        const done = of.filter(({ id }) => state.answers[id]).length;
        const words = `${done === of.length ? "Result" : done ? "Go on" : "Start"}: ${one} (${done} of ${of.length} answered)`;
        return button(words, () => begin(one));
      });
      const explain = "Two sounds, A and B, at the same level; which is which is hidden, and equally often either way. Keys: 1 and 2 play, ← A is better, → B is better, ↓ no difference, Backspace goes back.";
      box.replaceChildren(element("p", explain, "note"), ...list, element("p", store.place(), "note"), ...results());
      if (!all.length) box.replaceChildren(element("p", "There are no two sounds of one prompt to compare.", "note"));
    };
    const begin = (one) => {
      kind = one;
      trials = ordered(all, state.seed).filter((trial) => trial.kind === kind);
      at = open();
      show();
    };
    const show = () => {
      stop();
      if (at < 0 || at >= trials.length) return end();
      const trial = trials[at];
      heard = [false, false];
      began = Date.now();
      const sides = [trial.sides[trial.first], trial.sides[1 - trial.first]];
      players = sides.map(({ url }) => Object.assign(new Audio(url), { preload: "auto" }));
      const plays = players.map((player, n) => {
        const made = button(`Play ${"AB"[n]} (${n + 1})`, () => play(n), "play");
        player.addEventListener("play", () => made.classList.add("playing"));
        player.addEventListener("pause", () => made.classList.remove("playing"));
        player.addEventListener("ended", () => hear(n));
        player.addEventListener("error", () => {
          made.textContent = `${"AB"[n]} cannot be played`;
          hear(n);
        });
        return made;
      });
      const answers = Object.entries(WORDS).map(([answer, words]) => button(words, () => give(answer), "answer"));
      for (const one of answers) one.disabled = true;
      const earlier = state.answers[trial.id];
      const row = (buttons) => {
        const made = element("div", undefined, "buttons");
        made.append(...buttons);
        return made;
      };
      const prompt = element("div", trial.prompt, "prompt");
      if (trial.voice) prompt.append(element("small", ` ${trial.voice}`));
      const count = element("p", `${at + 1} of ${trials.length}${earlier ? `; answered before: ${WORDS[earlier.answer]}` : ""}`, "meta");
      const status = element("p", "Play both to the end, then answer.", "note");
      status.setAttribute("aria-live", "polite");
      box.replaceChildren(count, prompt, row(plays), row(answers), status, row([button("Back (Backspace)", back), button("Stop here", intro)]));
      box.focus({ preventScroll: true });
      sameLevel(trial.id, sides);
    };
    /* The louder one is turned down to the level of the other. */
    const sameLevel = async (id, sides) => {
      const mine = players;
      try {
        const levels = (await Promise.all(sides.map(({ url }) => Sound.decode(url)))).map(Sound.level);
        const least = Math.min(...levels);
        if (least > 1e-4) mine.forEach((player, n) => (player.volume = least / levels[n]));
      } catch {
        box.querySelector(".note")?.append(" Their levels could not be made equal.");
      }
    };
    const play = (n) => {
      players[1 - n].pause();
      players[n].currentTime = 0;
      players[n].play().catch(() => {}); // the error event says why
    };
    const hear = (n) => {
      heard[n] = true;
      if (!heard[0] || !heard[1]) return;
      for (const one of box.querySelectorAll(".answer")) one.disabled = false;
      box.querySelector(".note").textContent = "Which is better?";
    };
    const give = async (answer) => {
      if (!heard[0] || !heard[1]) return;
      const { id, first } = trials[at];
      state.answers[id] = { answer, first, kind, seconds: (Date.now() - began) / 1000, at: new Date().toISOString() };
      heard = [false, false];
      try {
        await store.save(state, { id, ...state.answers[id] });
      } catch (error) {
        delete state.answers[id];
        heard = [true, true];
        box.querySelector(".note").textContent = `The answer could not be saved: ${error.message}`;
        return;
      }
      at = open() < 0 ? trials.length : at + 1 < trials.length && !state.answers[trials[at + 1].id] ? at + 1 : open();
      show();
    };
    const back = () => {
      at = Math.max(0, at - 1);
      show();
    };
    const results = () => {
      const list = [];
      for (const one of new Set(all.map((trial) => trial.kind))) {
        const done = all.filter((trial) => trial.kind === one && state.answers[trial.id]);
        if (!done.length) continue;
        const counts = {};
        let [ties, firsts] = [0, 0];
        for (const trial of done) {
          const given = state.answers[trial.id];
          if (given.answer === "tie") ties += 1;
          else {
            const side = chosenOf(trial, given);
            counts[side] = (counts[side] || 0) + 1;
            if (given.answer === "A") firsts += 1;
          }
        }
        const decided = done.length - ties;
        const whole = done.length === all.filter((trial) => trial.kind === one).length;
        const names = [0, 1].map((side) => [...new Set(done.map((trial) => trial.sides[side].label))].slice(0, 3).join(", "));
        const share = decided ? ` (${((100 * (counts[1] || 0)) / decided).toFixed(0)} %, 95% interval ${interval(counts[1] || 0, decided)})` : "";
        const text = `${one}: ${names[1]} was better ${counts[1] || 0} times${share}, ${names[0]} ${counts[0] || 0} times, no difference ${ties} times. A was preferred ${firsts} of ${decided} times.`;
        list.push(element("p", whole ? text : `${one}: ${done.length} answered; the result is shown when all are.`, "result"));
      }
      const answered = all.filter(({ id }) => state.answers[id]);
      if (!answered.length) return list;
      const pairs = answered.filter(({ id }) => state.answers[id].answer !== "tie").map((trial) => pairOf(trial, state.answers[trial.id]));
      if (store.downloads) {
        list.push(button(`Download ${pairs.length} preference pairs`, () => download("listening-pairs.jsonl", pairs), "pairs"));
        const rows = answered.map((trial) => ({ id: trial.id, seed: state.seed, ...state.answers[trial.id], labels: trial.sides.map(({ label }) => label) }));
        list.push(button(`Download all ${answered.length} answers`, () => download("listening-answers.jsonl", rows), "answers"));
        list.push(button("Begin anew, as another listener", () => {
          if (!confirm("This removes the answers from this browser. Were they downloaded?")) return;
          state = { seed: Math.floor(Math.random() * 2 ** 31), answers: {} };
          store.save(state);
          intro();
        }));
      }
      return list;
    };
    const end = () => {
      intro();
      box.querySelector(".result")?.scrollIntoView({ block: "nearest" });
    };
    box.addEventListener("keydown", (event) => {
      const wanted = KEYS[event.key];
      if (!players.length || !wanted || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      if (wanted === "back") back();
      else if (wanted.startsWith("play")) play(Number(wanted.slice(4)));
      else give(wanted);
    });
    intro();
  };
  return { start, kept, ordered, pairOf };
})();
