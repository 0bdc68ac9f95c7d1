// Draws the charts of a run from its data, draws them anew when a round arrives, and moves with j and k.
"use strict";

(() => {
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const dashOf = (at) => dashes[(at + Math.floor(at / 8)) % dashes.length]; // with eight colors: 32 different lines
  // The style of a legend's line that looks like the dash of its curve.
  const border = (dash) => ["solid", "dashed", "dotted", "double"][dashes.findIndex((one) => `${one}` === `${dash ?? ""}`)] ?? "solid";
  let drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    if (value == null) return "–";
    return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toString();
  };

  const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});
  const tick = (value) => (value && Math.abs(value) < 0.001 ? value.toExponential(0) : compact.format(value));

  const last = (values) => values.filter((value) => value != null).at(-1);

  // In a stack each series is drawn from the sum of those below it; the legend shows its own value.
  const stacked = (series) => {
    const sums = series[0].values.map(() => 0);
    return series.map((one) => one.values.map((value, at) => (sums[at] += value ?? 0)));
  };

  // A band behind the curves: the same limits everywhere, or those of each round.
  const band = (limits) => ({
    hooks: {
      drawClear: [(plot) => {
        const y = (value) => plot.valToPos(value, "y", true), {left, width} = plot.bbox;
        const fixed = !Array.isArray(limits[0]);
        const xs = fixed ? [left, left + width] : plot.data[0].map((round) => plot.valToPos(round, "x", true));
        const each = fixed ? [limits, limits] : limits;
        const points = each.map(([low, high], at) => [xs[at], y(low), y(high)]);
        const [first, last] = [points[0], points.at(-1)];
        const whole = [[left, first[1], first[2]], ...points, [left + width, last[1], last[2]]];
        plot.ctx.save();
        plot.ctx.globalAlpha = 0.16;
        plot.ctx.fillStyle = color("--c2");
        plot.ctx.beginPath();
        whole.forEach(([x, , high]) => plot.ctx.lineTo(x, high));
        whole.reverse().forEach(([x, low]) => plot.ctx.lineTo(x, low));
        plot.ctx.fill();
        plot.ctx.restore();
      }],
    },
  });

  // A line across the plot, such as a cap; nothing if the curve stays far below it.
  const limit = (value) => ({
    hooks: {
      draw: [(plot) => {
        const at = plot.valToPos(value, "y", true);
        if (at < plot.bbox.top) return;
        plot.ctx.save();
        plot.ctx.strokeStyle = color("--c1");
        plot.ctx.setLineDash([6, 4]);
        plot.ctx.strokeRect(plot.bbox.left, at, plot.bbox.width, 0);
        plot.ctx.restore();
      }],
    },
  });

  // A line from top to bottom where the environment changes.
  const shift = (round) => ({
    hooks: {
      draw: [(plot) => {
        const at = plot.valToPos(round, "x", true), {left, top, width, height} = plot.bbox;
        if (at < left || at > left + width) return;
        plot.ctx.save();
        plot.ctx.strokeStyle = color("--muted");
        plot.ctx.setLineDash([6, 4]);
        plot.ctx.strokeRect(at, top, 0, height);
        plot.ctx.restore();
      }],
    },
  });

  const told = (values) => (_, __, ___, at) => short(at == null ? last(values) : values[at]);

  // The curves of one run: a stack is painted from the highest sum down, noisy lines have their mean besides.
  const ofRun = (chart, rounds) => {
    const stack = chart.kind === "stack";
    const lines = chart.series.flatMap((one, at) => {
      const line = {label: one.name, stroke: color(`--c${at % 8}`), value: told(one.values), spanGaps: true, data: one.values};
      if (stack) return {...line, fill: line.stroke, width: 0, points: {show: false}};
      const shown = {...line, width: 2, dash: dashOf(at), points: {show: rounds.length < 60, size: 6}};
      if (!one.mean) return shown;
      const faint = {...line, class: "edge", width: 1, alpha: 0.3, points: {show: false}, value: () => ""};
      return [faint, {...shown, data: one.mean}];
    });
    if (!stack) return {xs: rounds, lines, bands: []};
    const sums = stacked(chart.series);
    lines.forEach((line, at) => {
      line.data = sums[at];
      if (rounds.length < 150) line.paths = uPlot.paths.bars({size: [0.8, 60]});
    });
    return {xs: rounds, lines: lines.reverse(), bands: []};
  };

  // The curves of several configurations: a mean and a band each, over places of its own.
  const ofGroups = (chart) => {
    const tables = chart.groups.map((one) => [one.x, one.mean, one.low, one.high]);
    const [xs, ...values] = uPlot.join(tables);
    const bands = [];
    const lines = chart.groups.flatMap((one, at) => {
      const look = one.place ?? at, stroke = color(`--c${look % 8}`);
      const edge = {class: "edge", width: 0, points: {show: false}, spanGaps: true, value: () => ""};
      bands.push({series: [3 * at + 3, 3 * at + 2], fill: `${stroke}2e`});
      const mean = {
        label: one.name.replace(/[/=+.,](?=\S)/g, "$&\u200b"), stroke, width: 2, dash: dashOf(look), spanGaps: true,
        points: {show: one.x.length < 40, size: 5}, value: told(values[3 * at]), data: values[3 * at],
      };
      return [mean, {...edge, data: values[3 * at + 1]}, {...edge, data: values[3 * at + 2]}];
    });
    return {xs, lines, bands};
  };

  // Shares are shown between 0 and 1, and closer where they are near to each other; other numbers from 0 on.
  // What is below 0 somewhere is shown with a margin, whatever its unit: a difference of shares can be too.
  const span = (chart, low, high) => {
    if (low < 0) {
      const margin = (high - low) * 0.08 || Math.abs(low) * 0.1;
      return [low - margin, high + margin];
    }
    if (!chart.share) return [0, high > 0 ? high * 1.08 : 1];
    if (chart.band) return [0, 1];
    const half = Math.max(0.1, (high - low) * 0.55), middle = Math.min(1 - half, Math.max(half, (low + high) / 2));
    return half >= 0.5 ? [0, 1] : [middle - half, middle + half];
  };

  const draw = (place, chart, rounds, tasks) => {
    const {xs, lines, bands} = chart.groups ? ofGroups(chart) : ofRun(chart, rounds);
    const axis = {stroke: color("--muted"), grid: {stroke: color("--grid"), width: 1}, ticks: {stroke: color("--grid")}};
    const whole = (_, found) => found.map((one) => (Number.isInteger(one) ? compact.format(one) : ""));
    const margin = rounds ? 0.5 : 0;
    const plot = new uPlot({
      width: Math.max(240, place.clientWidth),
      height: 190,
      legend: {live: true, markers: {width: 3, dash: (u, at) => border(u.series[at].dash)}},
      cursor: {y: false, drag: {x: false, y: false}},
      scales: {
        x: {time: false, range: (_, low, high) => [low - margin, (high > low ? high : low + 1) + margin]},
        y: {range: (_, low, high) => span(chart, low, high)},
      },
      axes: [{...axis, values: whole}, {...axis, size: 52, values: (_, found) => found.map(tick)}],
      plugins: [...(chart.band ? [band(chart.band)] : []), ...(chart.limit ? [limit(chart.limit)] : []),
        ...(chart.shift == null ? [] : [shift(chart.shift)])],
      bands,
      series: [{label: chart.axis ?? "round", value: (_, found) => (found == null ? "last" : short(found))}, ...lines],
    }, [xs, ...lines.map((line) => line.data)], place);
    if (rounds) walk(plot, place, chart, rounds, tasks);
    return plot;
  };

  // Rounds by mouse and by keyboard: a click or Enter opens what there is of the round under the cursor. In a
  // report there is nothing to open.
  const walk = (plot, place, chart, rounds, tasks) => {
    const open = () => {
      if (!tasks || plot.cursor.idx == null) return;
      const [page, part] = tasks.replace(/tasks$/, chart.opens ?? "tasks").split("#");
      location.href = `${page}?round=${rounds[plot.cursor.idx]}${part ? `#${part}` : ""}`;
    };
    plot.over.addEventListener("click", open);
    place.tabIndex = 0;
    place.setAttribute("role", "slider");
    place.setAttribute("aria-valuemin", rounds[0]);
    place.setAttribute("aria-valuemax", rounds.at(-1));
    place.setAttribute("aria-valuenow", rounds.at(-1));
    place.onkeydown = (event) => {
      if (event.key === "Enter") open();
      const step = {ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -1e9, End: 1e9}[event.key];
      if (!step) return;
      event.preventDefault();
      const from = plot.cursor.idx ?? (step < 0 ? rounds.length : -1);
      const at = Math.min(rounds.length - 1, Math.max(0, from + step));
      plot.setCursor({left: plot.valToPos(rounds[at], "x"), top: 1});
      place.setAttribute("aria-valuenow", rounds[at]);
      place.setAttribute("aria-valuetext", [`round ${rounds[at]}`,
        ...chart.series.map((one) => `${one.name} ${short(one.values[at])}`)].join(", "));
    };
  };

  const drawAll = async () => {
    const charts = document.querySelector("[data-curves]");
    if (!charts) return;
    const answer = await fetch(charts.dataset.curves);
    if (!answer.ok) return;
    const found = await answer.json();
    drawn.forEach((one) => one.plot.destroy());
    drawn = [];
    for (const place of charts.querySelectorAll(".chart")) {
      const chart = found.charts.find((one) => one.title === place.dataset.title);
      if (!chart) continue;
      place.replaceChildren(); // the words that stand for the picture where no script runs
      drawn.push({place, plot: draw(place, chart, found.rounds, charts.dataset.tasks)});
    }
  };

  // One stop of the tab key in each map of shares; the arrow keys move inside.
  const rove = () => {
    for (const map of document.querySelectorAll("table.heat")) {
      const links = [...map.querySelectorAll("a")];
      const held = links.find((one) => one === document.activeElement) ?? links.at(-1);
      links.forEach((one) => (one.tabIndex = one === held ? 0 : -1));
    }
  };
  const inMap = (event) => {
    const cell = event.target.closest?.("table.heat td, table.heat th");
    const [down, right] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key] ?? [0, 0];
    if (!cell || (!down && !right)) return;
    event.preventDefault();
    const rows = [...cell.closest("table").rows];
    let [row, column] = [rows.indexOf(cell.parentElement) + down, cell.cellIndex + right];
    while (rows[row]?.cells[column] && !rows[row].cells[column].querySelector("a")) [row, column] = [row + down, column + right];
    rows[row]?.cells[column]?.querySelector("a")?.focus();
    rove();
  };

  const done = () => document.querySelector("[data-done]")?.dataset.done;
  let known;
  const onSwap = () => {
    rove();
    if (done() === known) return;
    known = done();
    drawAll();
  };

  document.addEventListener("DOMContentLoaded", () => {
    known = done();
    drawAll();
    rove();
    document.addEventListener("keydown", inMap);
    document.body.addEventListener("htmx:after:swap", onSwap);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
    let waiting;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => drawn.forEach(({place, plot}) =>
        plot.setSize({width: Math.max(240, place.clientWidth), height: 190})), 150);
    });
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const link = {j: "next", k: "prev"}[event.key];
    if (link) document.querySelector(`a[rel="${link}"]`)?.click();
  });
})();
