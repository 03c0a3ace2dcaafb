/* The theme of the reader's system, unless the button says otherwise; then rollouts and charts. */
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const store = (value) => {
    try {
      return value === undefined ? localStorage.getItem("rlhf-theme") : localStorage.setItem("rlhf-theme", value);
    } catch {
      return null; // a browser that keeps nothing for files
    }
  };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    field("theme").textContent = dark() ? "Light" : "Dark";
    field("theme").setAttribute("aria-label", dark() ? "Switch to light colours" : "Switch to dark colours");
    field("theme").setAttribute("aria-pressed", String(dark()));
  };
  const kept = store();
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  field("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    store(root.dataset.theme);
    show();
    Charts.redraw();
  });
  system.addEventListener("change", () => {
    show();
    Charts.redraw();
  });
  show();
  const start = async () => {
    try {
      const library = Charts.load();
      const { rows, heldout, charts, sources, files, pairs } = await Unpack.data();
      Rollouts.start([...rows, ...heldout], sources, files);
      if (field("sounds")) Sounds.start(pairs, files);
      await library;
      Charts.start(charts);
      root.dataset.ready = "yes";
      document.dispatchEvent(new Event("ready"));
    } catch (error) {
      field("count").textContent = `The page's data could not be unpacked (${error}): it needs a browser of 2023 or later, and the whole file.`;
      throw error;
    }
  };
  start();
})();
