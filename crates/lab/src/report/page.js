// Draws the charts of the page with plotly.js, in the reader's colours, and makes files of its tables. Fetches nothing.
"use strict";
(() => {
  const charts = [...document.querySelectorAll(".chart")];
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isCoarse = matchMedia("(pointer: coarse)").matches;
  const NARROW = 600; // pixels
  const TEXT = 12, LINE = 16; // size of the letters, and height of a line of them, in pixels
  const PAPER = "640px"; // what fits between the margins of A4 and of Letter
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon"];

  // Plotly reads a few tags in texts, and a record may contain anything.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const slot = (number) => colour(`--s${number % 8}`);
  const isNarrow = (element) => element.clientWidth < NARROW;

  // A name on as many lines as it needs where a line has room for so many pixels; a word that is longer than a line is broken.
  const pen = document.createElement("canvas").getContext("2d");
  function folded(name, room) {
    pen.font = `${TEXT}px system-ui, sans-serif`;
    const fits = (line) => pen.measureText(line).width <= room;
    const all = [];
    let line = "";
    for (const word of name.split(" ")) {
      const longer = line ? `${line} ${word}` : word;
      if (fits(longer)) { line = longer; continue; }
      if (line) all.push(line);
      line = "";
      for (const letter of word) {
        if (line && !fits(line + letter)) { all.push(line); line = ""; }
        line += letter;
      }
    }
    return [...all, line].map(plain);
  }

  // A number with a prefix for thousands, and its unit: 500 ns, 1.5 GB/s.
  function withUnit(value, suffix) {
    if (value === 0) return `0${suffix}`;
    if (suffix === "×" || suffix === " %" || suffix === "") return `${+value.toPrecision(3)}${suffix}`;
    const power = Math.max(-4, Math.min(4, Math.floor(Math.log10(Math.abs(value)) / 3 + 1e-9)));
    return `${+(value / 1000 ** power).toPrecision(3)} ${["p", "n", "µ", "m", "", "k", "M", "G", "T"][power + 4]}${suffix}`;
  }

  // Least and greatest of what is drawn along one axis. Nothing of 0 or less has a place on a logarithmic one.
  function span(series, isLog, of) {
    const has = (value) => Number.isFinite(value) && (value > 0 || !isLog);
    const values = series.flatMap((it) => it.points.flatMap(of)).filter(has);
    return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  }

  // Round values between two others: powers of ten, with twice and five times them where these are few.
  function roundValues(low, high) {
    const decades = Math.log10(high / low);
    const digits = decades < 2.2 ? [1, 2, 5] : decades < 4 ? [1, 3] : [1];
    const all = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const digit of digits) all.push(digit * 10 ** power);
    return all.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  }

  function axis(data, values, isLog, room) {
    const base = {
      title: { text: plain(data.title), standoff: 8 }, type: isLog ? "log" : "linear", automargin: true,
      gridcolor: colour("--grid"), zerolinecolor: colour("--rule"), linecolor: colour("--rule"),
    };
    const scaled = values.map((value) => value * data.scale);
    if (data.ticks.length) {
      const [low, high] = isLog ? values.map(Math.log) : values;
      let last = -Infinity;
      const shown = data.ticks.filter(([value]) => value > 0 || !isLog).filter(([value]) => {
        const at = (((isLog ? Math.log(value) : value) - low) / (high - low || 1)) * room;
        if (at - last < 56) return false;
        last = at;
        return true;
      });
      Object.assign(base, { tickvals: shown.map(([value]) => value), ticktext: shown.map(([, words]) => words) });
    } else if (isLog) {
      const ticks = roundValues(...scaled);
      Object.assign(base, { tickvals: ticks, ticktext: ticks.map((value) => withUnit(value, data.suffix)) });
    } else {
      Object.assign(base, { tickformat: ["×", " %", ""].includes(data.suffix) ? "~g" : "~s", ticksuffix: data.suffix });
    }
    if (isLog) base.range = [Math.log10(scaled[0]) - 0.06, Math.log10(scaled[1]) + 0.06];
    return base;
  }

  function trace(element, series, x, y) {
    const points = series.points;
    const isPublished = series.role === "published";
    const isLine = series.role !== "target";
    const ends = points.map((point) => [point.low ?? point.y, point.high ?? point.y]);
    return {
      type: "scatter", name: legendName(element, series.name).join("<br>"), mode: isLine ? "lines+markers" : "markers",
      x: points.map((point) => point.x * x.scale), y: points.map((point) => point.y * y.scale),
      text: points.map((point) => plain(point.text)), hovertemplate: `%{text}<extra>${plain(series.name)}</extra>`,
      line: {
        color: slot(series.colour), width: isPublished ? 1.5 : 2,
        dash: { published: "dot", baseline: "dash" }[series.role] ?? "solid",
      },
      marker: {
        color: slot(series.colour), size: isPublished ? 9 : 6,
        symbol: isPublished ? `${SYMBOLS[series.colour % 8]}-open` : SYMBOLS[series.colour % 8],
      },
      error_y: {
        type: "data", symmetric: false, visible: points.some((point) => point.low !== null), thickness: 1, width: 2,
        array: ends.map(([, high], at) => (high - points[at].y) * y.scale),
        arrayminus: ends.map(([low], at) => (points[at].y - low) * y.scale),
      },
    };
  }

  const legendName = (element, name) => folded(name, element.clientWidth - 70);

  // Plotly gives each name the room of the longest.
  function legendHeight(element, data) {
    const names = data.series.map((series) => legendName(element, series.name));
    const widest = Math.max(...names.flat().map((line) => line.length)) * 7.2 + 48;
    const columns = Math.max(1, Math.floor((element.clientWidth - 20) / widest));
    const row = (at) => Math.max(...names.slice(at, at + columns).map((lines) => lines.length)) * LINE + 3.5;
    let height = 0;
    for (let at = 0; at < names.length; at += columns) height += row(at);
    return height;
  }

  function lines(element, data, isLog) {
    const room = element.clientWidth - 110;
    const x = { ...data.x, log: data.x.log && isLog }, y = { ...data.y, log: data.y.log && isLog };
    const layout = {
      xaxis: axis(x, span(data.series, x.log, (point) => point.x), x.log, room),
      yaxis: axis(y, span(data.series, y.log, (point) => [point.low ?? point.y, point.high ?? point.y, point.y]), y.log, room),
      height: (isNarrow(element) ? 300 : 380) + legendHeight(element, data), legendBelow: 60,
    };
    return [data.series.map((series) => trace(element, series, x, y)), layout];
  }

  // Rows of names: beside the rows where there is room, above each otherwise.
  function rowLayout(element, data) {
    const narrow = isNarrow(element);
    const names = data.rows.map((name) => folded(name, element.clientWidth * (narrow ? 1 : 0.4) - 24));
    const tallest = Math.max(...names.map((lines) => lines.length)) * LINE;
    const each = narrow ? tallest + 28 : Math.max(28, tallest + 8);
    const texts = names.map((lines) => lines.join("<br>"));
    const layout = {
      yaxis: {
        // Above the first row its name needs as much room as above the others.
        range: [data.rows.length - 0.5, narrow ? -(tallest + 6) / each : -0.5], tickvals: data.rows.map((_, row) => row), ticktext: texts,
        showticklabels: !narrow, automargin: true, gridcolor: colour("--grid"), zeroline: false,
      },
      annotations: !narrow ? [] : texts.map((text, row) => ({
        xref: "paper", x: 0, xanchor: "left", y: row, yanchor: "bottom", yshift: 6, text, showarrow: false, align: "left",
        font: { size: TEXT },
      })),
      height: data.rows.length * each + 130, legendBelow: 56,
    };
    return layout;
  }

  function dots(element, data, isLog) {
    const layout = rowLayout(element, data);
    const log = data.x.log && isLog;
    const ends = span(data.series, log, (point) => [point.low ?? point.x, point.high ?? point.x, point.x]);
    const reach = data.even === null ? ends : [Math.min(ends[0], data.even), Math.max(ends[1], data.even)];
    layout.xaxis = axis(data.x, reach, log, 0);
    if (data.even !== null)
      layout.shapes = [{
        type: "line", layer: "below", yref: "paper", y0: 0, y1: 1, x0: data.even, x1: data.even, line: { color: colour("--quiet"), width: 1.5 },
      }];
    const traces = data.series.map((series) => {
      const isTarget = series.role === "target";
      const points = series.points;
      return {
        type: "scatter", mode: "markers", name: legendName(element, series.name).join("<br>"),
        x: points.map((point) => point.x * data.x.scale), y: points.map((point) => point.y),
        text: points.map((point) => `${plain(data.rows[point.y])}<br>${plain(point.text)}`),
        hovertemplate: "%{text}<extra></extra>",
        marker: {
          color: isTarget ? colour("--ink") : slot(series.colour), size: isTarget ? 14 : 9,
          symbol: isTarget ? "line-ns" : "circle", line: { width: isTarget ? 2 : 0, color: colour("--ink") },
        },
        error_x: {
          type: "data", symmetric: false, visible: points.some((point) => point.low !== null), thickness: 1.5, width: 3,
          array: points.map((point) => ((point.high ?? point.x) - point.x) * data.x.scale),
          arrayminus: points.map((point) => (point.x - (point.low ?? point.x)) * data.x.scale),
        },
      };
    });
    return [traces, layout];
  }

  function stack(element, data) {
    const layout = { ...rowLayout(element, data), barmode: "relative", bargap: isNarrow(element) ? 0.55 : 0.25 };
    const sums = data.rows.map((_, row) => data.series.flatMap((series) => series.points)
      .filter((point) => point.y === row).reduce((sum, point) => sum + point.x, 0));
    layout.xaxis = axis(data.x, [0, Math.max(...sums)], false, 0);
    layout.annotations.forEach((annotation) => { annotation.yshift = 9; });
    const traces = data.series.map((series) => ({
      type: "bar", orientation: "h", name: legendName(element, series.name).join("<br>"),
      x: series.points.map((point) => point.x * data.x.scale), y: series.points.map((point) => point.y),
      text: series.points.map((point) => plain(point.text)), textposition: "none",
      hovertemplate: `%{text}<extra>${plain(series.name)}</extra>`,
      marker: { color: slot(series.colour), line: { color: colour("--card"), width: 1 } },
    }));
    return [traces, layout];
  }

  // Names of columns lie across where there is room, and stand upright otherwise, on as many lines as a column is wide.
  function columnNames(names, width, narrow) {
    let room = narrow ? 80 : width - 12;
    const fold = () => names.map((name) => folded(name, room));
    let all = fold();
    for (; narrow && room < 400 && all.some((lines) => lines.length * LINE > width); all = fold()) room += 20;
    return all;
  }

  function heat(element, data) {
    const narrow = isNarrow(element);
    const beside = element.clientWidth * 0.2;
    const width = (element.clientWidth - beside - (narrow ? 30 : 60)) / data.columns.length;
    const columns = columnNames(data.columns, width, narrow), rows = data.rows.map((name) => folded(name, beside));
    const lines = (all) => Math.max(...all.map((it) => it.length)) * LINE;
    const widest = (all) => Math.max(...all.flat().map((line) => pen.measureText(line).width));
    const below = narrow ? widest(columns) : lines(columns);
    const size = narrow ? 10 : TEXT;
    const hasRoom = (widest(data.texts) * size) / TEXT <= width - 2;
    const named = (title, names, folds) => ({
      title: { text: plain(title), standoff: 14 }, type: "category", automargin: true,
      tickvals: names.map(plain), ticktext: folds.map((it) => it.join("<br>")),
    });
    const layout = {
      xaxis: { ...named(data.x_title, data.columns, columns), side: "bottom", tickangle: narrow ? -90 : 0, showgrid: false },
      yaxis: { ...named(narrow ? "" : data.y_title, data.rows, rows), autorange: "reversed", showgrid: false },
      height: data.rows.length * Math.max(56, lines(rows) + 8) + 110 + below, legendBelow: 0,
    };
    const traces = [{
      type: "heatmap", x: data.columns.map(plain), y: data.rows.map(plain), z: data.values,
      text: data.texts.map((row) => row.map(plain)), texttemplate: hasRoom ? "%{text}" : "", textfont: { size },
      customdata: data.hovers.map((row) => row.map(plain)), hovertemplate: "%{customdata}<extra></extra>",
      colorscale: [[0, colour("--heat0")], [1, colour("--heat1")]], showscale: false, xgap: 2, ygap: 2,
    }];
    return [traces, layout];
  }

  const DRAW = { lines, dots, stack, heat };

  function draw(chart) {
    const { element, data } = chart;
    const [traces, own] = DRAW[data.kind](element, data, chart.isLog);
    const { legendBelow, ...layout } = own;
    const common = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", separators: ".,", hovermode: "closest",
      dragmode: isCoarse ? false : "zoom", margin: { l: 8, r: 12, t: 12, b: 8, pad: 2 },
      font: { family: "system-ui, sans-serif", size: 12, color: colour("--ink") },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--rule"), font: { color: colour("--ink"), size: 13 }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--quiet"), activecolor: colour("--accent") },
      showlegend: data.kind !== "heat" && traces.length > 1,
      legend: {
        orientation: "h", x: 0, xanchor: "left", xref: "container", yref: "container", y: 0, yanchor: "bottom",
        itemclick: "toggle", font: { size: 12 },
      },
    };
    const below = common.showlegend ? legendHeight(element, data) : 0;
    common.margin.b = 44 + below;
    const config = {
      displaylogo: false, responsive: false, displayModeBar: isNarrow(element) || isCoarse ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], scrollZoom: false,
    };
    chart.width = element.clientWidth;
    return Plotly.react(element, traces, { ...common, ...layout, width: chart.width }, config);
  }

  const button = (words, act) => {
    const it = document.createElement("button");
    it.type = "button";
    it.textContent = words;
    it.addEventListener("click", act);
    return it;
  };

  // Keys go from point to point, and say aloud what is there.
  function follow(chart) {
    const { element, data } = chart;
    let [curve, point] = [0, -1];
    const many = () => (data.kind === "heat" ? data.columns.length * data.rows.length : data.series[curve].points.length);
    const show = () => {
      let said;
      if (data.kind === "heat") {
        const [row, column] = [Math.floor(point / data.columns.length), point % data.columns.length];
        Plotly.Fx.hover(element, [{ curveNumber: 0, pointNumber: [row, column] }]);
        said = data.hovers[row][column];
      } else {
        Plotly.Fx.hover(element, [{ curveNumber: curve, pointNumber: point }]);
        const { x, y, text } = data.series[curve].points[point];
        const place = data.rows ? data.rows[y] : (data.x.ticks.find(([value]) => value === x) ?? [0, x])[1];
        said = `${data.series[curve].name}, ${place}: ${text}`;
      }
      document.getElementById("told").textContent = said;
    };
    const step = (by) => { point = Math.max(0, Math.min(many() - 1, point + by)); show(); };
    const change = (by) => {
      const all = data.kind === "heat" ? 1 : data.series.length;
      curve = (curve + by + all) % all;
      point = Math.max(0, Math.min(many() - 1, point));
      show();
    };
    const keys = {
      ArrowRight: () => step(1), ArrowLeft: () => step(-1),
      ArrowDown: () => (data.kind === "heat" ? step(data.columns.length) : change(1)),
      ArrowUp: () => (data.kind === "heat" ? step(-data.columns.length) : change(-1)),
      Home: () => step(-Infinity), End: () => step(Infinity),
      l: chart.toggle, L: chart.toggle,
      Escape: () => { Plotly.Fx.unhover(element); element.blur(); },
    };
    element.addEventListener("keydown", (event) => {
      if (event.target !== element || event.ctrlKey || event.altKey || event.metaKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  // A table as a file: numbers in full, with unit and interval beside them; words as they are, but none that a spreadsheet would
  // take for a formula.
  function csv(table) {
    const field = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const tame = (text) => (/^[=+\-@\t\r]/.test(text) ? `'${text}` : text);
    const words = (cell) => cell.querySelector("data")?.value ?? tame((cell.firstChild?.textContent ?? "").trim());
    const rows = [...table.rows].map((row) => [...row.cells]);
    const beside = (cell, name) => cell?.querySelector("data")?.dataset[name] ?? "";
    const names = rows[0].map((_, column) => ["unit", "low", "high"].filter((name) => rows.some((row) => beside(row[column], name))));
    const line = (row, number) => row.flatMap((cell, column) => {
      const more = names[column].map((name) => (number ? beside(cell, name) : `${words(cell)} (${name})`));
      return [words(cell), ...more];
    });
    return `${rows.map((row, number) => line(row, number).map(field).join(",")).join("\n")}\n`;
  }

  function addFiles() {
    document.querySelectorAll("table").forEach((table, number) => {
      const name = table.caption.textContent.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60).replace(/^-+|-+$/g, "");
      const save = button("CSV", () => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
        link.download = `${name || `table-${number + 1}`}.csv`;
        link.click();
        URL.revokeObjectURL(link.href);
      });
      save.className = "csv";
      save.setAttribute("aria-label", `Save as CSV: ${table.caption.textContent}`);
      table.parentElement.before(save);
    });
  }

  // Drawn as it comes near: a page may have a hundred charts.
  const all = charts.map((element) => {
    const data = JSON.parse(element.nextElementSibling.textContent);
    const chart = { element, data, isLog: true, width: 0, isDrawn: false };
    const hasLog = (data.y?.log ?? false) || (data.kind === "dots" && data.x.log);
    chart.toggle = () => {
      if (!hasLog) return;
      chart.isLog = !chart.isLog;
      chart.switch.textContent = chart.isLog ? "Linear axes" : "Logarithmic axes";
      draw(chart);
    };
    if (hasLog) {
      chart.switch = button("Linear axes", chart.toggle);
      chart.switch.className = "switch";
      element.before(chart.switch);
    }
    follow(chart);
    return chart;
  });
  const show = (chart) => { chart.isDrawn = true; draw(chart); };
  const redraw = () => all.filter((chart) => chart.isDrawn).forEach(draw);
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = all.find((it) => it.element === entry.target);
      if (entry.isIntersecting && !chart.isDrawn) show(chart);
    }
  }, { rootMargin: "800px" });
  all.forEach((chart) => near.observe(chart.element));
  new ResizeObserver(() => all.filter((it) => it.isDrawn && it.element.clientWidth !== it.width).forEach(draw))
    .observe(document.getElementById("content"));

  const theme = document.getElementById("theme");
  const isDark = () => (document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  });
  prefersDark.addEventListener("change", () => { name(); redraw(); });
  name();

  // Paper is white, and what was not drawn yet is printed too.
  let before;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    all.forEach((chart) => { chart.element.style.width = PAPER; });
    all.forEach(show);
  });
  addEventListener("afterprint", () => {
    if (before === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = before;
    all.forEach((chart) => { chart.element.style.width = ""; });
    redraw();
  });
  addFiles();
})();
