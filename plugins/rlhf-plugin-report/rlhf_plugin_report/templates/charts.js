/* Charts, drawn by bokeh when they come into view, in the colours of the theme. */
const Charts = (() => {
  const DASHES = ["solid", "dashed", "dotdash", "dotted"];
  const COUNT = 6; // colours of the style sheet, told apart by people who do not see all; runs beyond them differ by dash
  const UNITS = [[7200, 3600, "hours"], [180, 60, "minutes"], [0, 1, "seconds"]];
  let items = {};
  let axes = []; // of each run: its steps, and the seconds and tokens up to each
  let places = [];
  const colour = (n) => colourOf(`--c${n % COUNT}`);
  const style = (n) => ({ line_color: colour(n), line_dash: DASHES[Math.floor(n / COUNT) % DASHES.length] });
  const axis = () => field("axis")?.value ?? "step";
  const unit = () => UNITS.find(([least]) => Math.max(0, ...axes.map(({ seconds }) => seconds.at(-1) ?? 0)) >= least);
  /* Where steps of a run stand on the chosen axis, and what that axis is called. */
  const across = (n, steps) => {
    if (axis() === "step") return steps;
    const divisor = axis() === "seconds" ? unit()[1] : 1;
    return steps.map((step) => axes[n][axis()][places[n].get(step)] / divisor);
  };
  const label = () => ({ step: "step", seconds: `${unit()[2]} of training`, tokens: "tokens of training" })[axis()];
  const values = ({ series }) => series.flatMap(({ y, q10 }) => y ?? q10).filter((value) => value !== null);
  const isLog = (item) => item.kind !== "scatter" && Boolean(field("log")?.checked) && values(item).every((value) => value > 0);
  const finite = (values) => values.map((value) => (value === null ? NaN : value));
  const figure = (item) => {
    const soft = colourOf("--soft");
    const plot = Bokeh.Plotting.figure({ height: 196, sizing_mode: "stretch_width", tools: "pan,xwheel_zoom,reset", toolbar_location: null, y_axis_type: isLog(item) ? "log" : "linear" });
    plot.xaxis.axis_label = item.kind === "scatter" ? item.x : label();
    if (field("log")?.checked && item.kind !== "scatter" && !isLog(item)) plot.yaxis.axis_label = "not log: some are ≤ 0";
    plot.background_fill_color = plot.border_fill_color = null;
    plot.outline_line_color = null;
    for (const axis of [plot.xaxis, plot.yaxis]) {
      for (const part of ["axis_label_text_color", "major_label_text_color", "axis_line_color", "major_tick_line_color", "minor_tick_line_color"]) axis[part] = soft;
    }
    plot.xgrid.grid_line_color = plot.ygrid.grid_line_color = colourOf("--line");
    plot.xgrid.grid_line_alpha = plot.ygrid.grid_line_alpha = 0.4;
    return plot;
  };
  const source = (data) => new Bokeh.ColumnDataSource({ data });
  const hover = (plot, tooltips, renderers) => plot.add_tools(new Bokeh.HoverTool({ tooltips, ...(renderers ? { renderers } : {}) }));
  const KINDS = {
    lines: (plot, item) => {
      for (const { name, n, x, y } of item.series) {
        const data = source({ x: across(n, x), y: finite(y), step: x, run: x.map(() => name) });
        plot.line({ field: "x" }, { field: "y" }, { source: data, line_width: 2, ...style(n) });
        plot.scatter({ field: "x" }, { field: "y" }, { source: data, size: x.length < 100 ? 4 : 2, color: colour(n) });
      }
      for (const at of item.limits) plot.add_layout(new Bokeh.Span({ location: at, dimension: "width", line_color: colourOf("--bad"), line_dash: "dashed" }));
      hover(plot, [["run", "@run"], ["step", "@step"], [item.y, "@y{0.0000}"]]);
    },
    bands: (plot, item) => {
      for (const { n, step, q10, q25, q50, q75, q90 } of item.series) {
        const data = source({ x: across(n, step), step, q10, q25, q50, q75, q90 });
        for (const [low, high, alpha] of [["q10", "q90", 0.18], ["q25", "q75", 0.3]]) {
          plot.varea({ field: "x" }, { field: low }, { field: high }, { source: data, fill_color: colour(n), fill_alpha: alpha });
        }
        plot.line({ field: "x" }, { field: "q50" }, { source: data, line_width: 2, line_color: colour(n) });
        const dots = plot.scatter({ field: "x" }, { field: "q50" }, { source: data, size: step.length < 100 ? 4 : 2, color: colour(n) });
        hover(plot, [["step", "@step"], ["10 %", "@q10{0.000}"], ["25 %", "@q25{0.000}"], ["median", "@q50{0.000}"], ["75 %", "@q75{0.000}"], ["90 %", "@q90{0.000}"]], [dots]);
      }
    },
    scatter: (plot, item) => {
      for (const { x, y, step } of item.series) {
        const first = Math.min(...step);
        const span = Math.max(1, Math.max(...step) - first);
        const fill = step.map((value) => mix((value - first) / span));
        plot.scatter({ field: "x" }, { field: "y" }, { source: source({ x, y: finite(y), step, fill }), size: 5, fill_alpha: 0.6, line_color: null, fill_color: { field: "fill" } });
      }
      hover(plot, [[item.x, "@x"], [item.y, "@y{0.000}"], ["step", "@step"]]);
    },
  };
  /* The first colour for the first step, the second for the last. */
  const parts = (n) => [1, 3, 5].map((at) => parseInt(colour(n).slice(at, at + 2), 16));
  const mix = (share) => `rgb(${parts(0).map((from, i) => Math.round(from + share * (parts(1)[i] - from))).join(",")})`;
  const draw = (place) => {
    const item = items[place.id];
    if (!item || place.childElementCount) return;
    const plot = figure(item);
    KINDS[item.kind](plot, item);
    Bokeh.Plotting.show(plot, place);
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(target.querySelector("div"));
    }
  }, { rootMargin: "300px" });
  const load = async () => field("library") && Unpack.script("library");
  const start = (data) => {
    ({ axes, items } = data);
    places = axes.map(({ step }) => new Map(step.map((value, at) => [value, at])));
    for (const name of ["axis", "log"]) field(name)?.addEventListener("input", redraw);
    watch();
  };
  const watch = () => {
    for (const frame of document.querySelectorAll("figure")) seen.observe(frame);
  };
  const redraw = () => {
    if (!window.Bokeh) return; // not unpacked yet
    for (const place of document.querySelectorAll("figure > div")) place.replaceChildren();
    for (const frame of document.querySelectorAll("figure")) seen.unobserve(frame);
    watch();
  };
  return { load, start, redraw };
})();
