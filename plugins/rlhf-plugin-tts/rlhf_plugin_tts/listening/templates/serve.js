/* The comparison over the server's trials; each answer is sent at once. */
(async () => {
  const box = document.getElementById("listen");
  try {
    const { trials, seed, answers, place } = await (await fetch("api/trials")).json();
    const save = async (_, answer) => {
      const headers = { "Content-Type": "application/json" };
      const sent = await fetch("api/answers", { method: "POST", headers, body: JSON.stringify(answer) });
      if (!sent.ok) throw new Error(await sent.text());
    };
    Listen.start(box, trials, { seed, load: () => ({ seed, answers }), save, downloads: false, place: () => place });
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    box.textContent = `The trials cannot be had (${error.message}): has rlhf tts listen ended?`;
  }
})();
