/* Charts, drawn by bokeh when they come into view, in the colours of the theme. */
const Charts = (() => {
  let colours = [];
  let dashes = [];
  let items = {};
  const style = (n) => ({ line_color: colours[n % colours.length], line_dash: dashes[Math.floor(n / colours.length) % dashes.length] });
  const finite = (values) => values.map((value) => (value === null ? NaN : value));
  const short = (text) => (text.length > 46 ? `${text.slice(0, 45)}…` : text);
  const figure = (item) => {
    const soft = colourOf("--soft");
    const plot = Bokeh.Plotting.figure({ height: 196, sizing_mode: "stretch_width", title: short(item.title), tools: "pan,xwheel_zoom,reset", toolbar_location: null });
    plot.xaxis.axis_label = item.x;
    plot.background_fill_color = plot.border_fill_color = null;
    plot.outline_line_color = null;
    for (const axis of [plot.xaxis, plot.yaxis]) {
      for (const part of ["axis_label_text_color", "major_label_text_color", "axis_line_color", "major_tick_line_color", "minor_tick_line_color"]) axis[part] = soft;
    }
    plot.title.text_color = soft;
    plot.xgrid.grid_line_color = plot.ygrid.grid_line_color = colourOf("--line");
    plot.xgrid.grid_line_alpha = plot.ygrid.grid_line_alpha = 0.4;
    return plot;
  };
  const source = (data) => new Bokeh.ColumnDataSource({ data });
  const hover = (plot, tooltips, renderers) => plot.add_tools(new Bokeh.HoverTool({ tooltips, ...(renderers ? { renderers } : {}) }));
  const KINDS = {
    lines: (plot, item) => {
      for (const { name, n, x, y } of item.series) {
        const data = source({ x, y: finite(y), run: x.map(() => name) });
        plot.line({ field: "x" }, { field: "y" }, { source: data, line_width: 2, ...style(n) });
        plot.scatter({ field: "x" }, { field: "y" }, { source: data, size: x.length < 100 ? 4 : 2, color: colours[n % colours.length] });
      }
      hover(plot, [["run", "@run"], ["step", "@x"], [item.y, "@y{0.0000}"]]);
    },
    bands: (plot, item) => {
      for (const { n, step, q10, q25, q50, q75, q90 } of item.series) {
        const data = source({ step, q10, q25, q50, q75, q90 });
        const colour = colours[n % colours.length];
        for (const [low, high, alpha] of [["q10", "q90", 0.18], ["q25", "q75", 0.3]]) {
          plot.varea({ field: "step" }, { field: low }, { field: high }, { source: data, fill_color: colour, fill_alpha: alpha });
        }
        plot.line({ field: "step" }, { field: "q50" }, { source: data, line_width: 2, line_color: colour });
        const dots = plot.scatter({ field: "step" }, { field: "q50" }, { source: data, size: step.length < 100 ? 4 : 2, color: colour });
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
  /* Blue for the first step, orange for the last. */
  const mix = (share) => `rgb(${[0, 114, 178].map((from, i) => Math.round(from + share * ([213, 94, 0][i] - from))).join(",")})`;
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
      draw(target.firstElementChild);
    }
  }, { rootMargin: "300px" });
  const load = async () => field("library") && Unpack.script("library");
  const start = (data) => {
    ({ colours, dashes, items } = data);
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
