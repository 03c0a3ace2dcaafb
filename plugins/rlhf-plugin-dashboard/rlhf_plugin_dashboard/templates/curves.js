"use strict";
/* Figures that grow: one per metric, a line per run. Drawn when they come into view, by bokeh. */
const Curves = (() => {
  const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];
  const DARK = ["#6cc1ff", "#ff9a52", "#3fd6a8", "#f2a3cf", "#b9a6ff", "#ffd24d"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const DASHES = ["solid", "dashed", "dotted", "dotdash"];
  const OPEN = ["Reward", "KL, lengths and entropy", "Loss and gradient"]; // the groups that begin unfolded
  const data = new Map(); // run -> metric -> {x, y}
  const limits = new Map(); // run -> metric -> values at which a monitor speaks
  const charts = new Map(); // metric -> chart
  let shown = [];
  let smoothing = 0;

  const style = (slot) => ({ colour: (dark.matches ? DARK : LIGHT)[slot % LIGHT.length], dash: DASHES[Math.floor(slot / LIGHT.length) % DASHES.length] });
  const short = (value) => (Number.isInteger(value) && Math.abs(value) < 1e6 ? String(value) : Number(value).toPrecision(3));

  const smooth = (y) => {
    let mean = y[0];
    return y.map((value) => (mean = smoothing * mean + (1 - smoothing) * value));
  };

  const words = (metric) => {
    const ends = shown.filter(({ name }) => data.get(name)?.has(metric)).map(({ name }) => {
      const { x, y } = data.get(name).get(metric);
      return `${name}: ${metric} from ${short(y[0])} to ${short(y.at(-1))} at step ${x.at(-1)}`;
    });
    const at = limitsOf(metric);
    return ends.concat(at.length ? [`a monitor speaks at ${at.map(short).join(", ")}`] : []).join("; ");
  };
  const limitsOf = (metric) => [...new Set(shown.flatMap(({ name }) => limits.get(name)?.[metric] || []))];

  /** Text and lines in the page's colour for them, which light and dark differ in. */
  const paint = (plot) => {
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
    for (const axis of [plot.xaxis, plot.yaxis]) {
      for (const part of ["axis_label_text_color", "major_label_text_color", "axis_line_color", "major_tick_line_color", "minor_tick_line_color"]) axis[part] = ink;
    }
    plot.title.text_color = ink;
    for (const grid of [plot.xgrid, plot.ygrid]) Object.assign(grid, { grid_line_color: ink, grid_line_alpha: 0.15 });
  };
  dark.addEventListener("change", () => {
    for (const chart of charts.values()) {
      if (chart.plot) paint(chart.plot);
      for (const { slot, raw, main, dots } of chart.lines.values()) {
        const { colour } = style(slot);
        for (const { glyph } of [raw, main, dots]) glyph.line_color = { value: colour };
        dots.glyph.fill_color = { value: colour };
      }
    }
  });

  const figure = ({ metric, title }) => {
    const plot = Bokeh.Plotting.figure({ title, height: 196, sizing_mode: "stretch_width", tools: "pan,xwheel_zoom,reset", toolbar_location: null });
    plot.add_tools(new Bokeh.HoverTool({ tooltips: [["run", "$name"], ["step", "@x"], [metric, "@y{0.0000}"]] }));
    plot.xaxis.axis_label = "step";
    plot.background_fill_color = plot.border_fill_color = null;
    plot.outline_line_color = null;
    paint(plot);
    return plot;
  };

  const line = (chart, name, slot) => {
    const { colour, dash } = style(slot);
    const source = new Bokeh.ColumnDataSource({ data: { x: [], y: [], s: [] } });
    const field = (y) => [{ field: "x" }, { field: y }];
    const common = { source, color: colour, name };
    return {
      source,
      slot,
      raw: chart.plot.line(...field("y"), { ...common, line_width: 1, line_alpha: 0.35, line_dash: dash }),
      main: chart.plot.line(...field("s"), { ...common, line_width: 2, line_dash: dash }),
      dots: chart.plot.scatter(...field("s"), { ...common, size: 4 }),
    };
  };

  const draw = (chart) => {
    if (!chart.visible) return;
    const wanted = new Map(shown.filter(({ name }) => data.get(name)?.has(chart.metric)).map((run) => [run.name, run.slot]));
    if (!chart.plot && !wanted.size) return; // a figure without a point has no ranges
    chart.dirty = false;
    const first = !chart.plot;
    if (first) chart.plot = figure(chart);
    for (const [name, one] of chart.lines) {
      const stays = wanted.get(name) === one.slot;
      for (const part of ["raw", "main", "dots"]) one[part].visible = stays && (part !== "raw" || smoothing > 0);
      if (!stays) {
        one.source.data = { x: [], y: [], s: [] };
        if (wanted.has(name)) chart.lines.delete(name); // it has another colour by now
      }
    }
    for (const [name, slot] of wanted) {
      if (!chart.lines.has(name)) chart.lines.set(name, line(chart, name, slot));
      const one = chart.lines.get(name);
      const { x, y } = data.get(name).get(chart.metric);
      one.source.data = { x: x.slice(), y: y.slice(), s: smoothing > 0 ? smooth(y) : y.slice() };
      one.raw.visible = smoothing > 0;
      one.main.visible = true;
      one.dots.visible = x.length < 100;
    }
    for (const at of limitsOf(chart.metric)) {
      if (chart.limits.has(at)) continue;
      chart.limits.add(at);
      chart.plot.add_layout(new Bokeh.Span({ location: at, dimension: "width", line_color: "#c0392b", line_dash: "dashed" }));
    }
    chart.box.setAttribute("aria-label", words(chart.metric));
    if (first) Bokeh.Plotting.show(chart.plot, chart.place);
  };

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.get(entry.target.dataset.metric);
      chart.visible = entry.isIntersecting;
      if (chart.visible && chart.dirty) draw(chart);
    }
  }, { rootMargin: "200px" });

  const group = (title) => {
    const id = `group-${title.slice(0, 2)}`;
    const there = document.getElementById(id);
    if (there) return there;
    const made = document.createElement("details");
    made.id = id;
    made.open = OPEN.includes(title.slice(3));
    const summary = document.createElement("summary");
    summary.append(title.slice(3), " ", document.createElement("small"));
    const box = document.createElement("div");
    box.className = "charts";
    made.append(summary, box);
    const all = document.getElementById("groups");
    all.insertBefore(made, [...all.children].find((other) => other.id > id) || null);
    return made;
  };

  const chartOf = (metric, of, title) => {
    if (!charts.has(metric)) {
      const box = document.createElement("figure");
      box.setAttribute("role", "img");
      box.dataset.metric = metric;
      const place = document.createElement("div");
      box.append(place);
      const list = group(of).querySelector(".charts");
      list.insertBefore(box, [...list.children].find((other) => other.dataset.metric > metric) || null);
      charts.set(metric, { metric, title, box, place, lines: new Map(), limits: new Set(), dirty: true, visible: false });
      watcher.observe(box);
    }
    return charts.get(metric);
  };

  /** News of one run: points that come after those known, or all of them. */
  const add = (name, news, groups, words, thresholds) => {
    limits.set(name, thresholds);
    if (news.restarted || !data.has(name)) data.set(name, new Map());
    for (const [metric, [x, y]] of Object.entries(news.curves)) {
      const known = data.get(name).get(metric) || { x: [], y: [] };
      known.x.push(...x);
      known.y.push(...y);
      data.get(name).set(metric, known);
      chartOf(metric, groups[metric], words[metric]).dirty = true;
    }
    if (news.restarted) for (const chart of charts.values()) chart.dirty = true;
  };

  /** Draw what changed and is in view. */
  const refresh = () => {
    for (const chart of charts.values()) if (chart.dirty) draw(chart);
  };

  /** Which runs are drawn, and which metrics: those whose name or words hold `text`. */
  const show = (runs, text) => {
    const changed = JSON.stringify(runs) !== JSON.stringify(shown);
    shown = runs;
    for (const chart of charts.values()) {
      if (changed) chart.dirty = true;
      chart.box.hidden = !`${chart.metric} ${chart.title}`.toLowerCase().includes(text) || !runs.some(({ name }) => data.get(name)?.has(chart.metric));
    }
    for (const details of document.querySelectorAll("#groups > details")) {
      const count = details.querySelectorAll("figure:not([hidden])").length;
      details.hidden = !count;
      details.querySelector("small").textContent = `(${count})`;
      if (text && !details.hidden) details.open = true;
    }
    refresh();
  };

  const setSmoothing = (value) => {
    smoothing = value;
    for (const chart of charts.values()) chart.dirty = true;
    refresh();
  };

  const points = (name, metric) => data.get(name)?.get(metric)?.x.length || 0;
  return { add, show, refresh, setSmoothing, style, short, points };
})();
