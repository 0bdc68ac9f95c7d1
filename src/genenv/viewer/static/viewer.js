// Draws the charts of a run from its data, draws them anew when a round arrives, and moves with j and k.
"use strict";

(() => {
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  let drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => (value == null ? "–" : Number(value.toPrecision(4)).toString());

  const last = (values) => values.filter((value) => value != null).at(-1);

  // In a stack each series is drawn from the sum of those below it; the legend shows its own value.
  const stacked = (series) => {
    const sums = series[0].values.map(() => 0);
    return series.map((one) => one.values.map((value, at) => (sums[at] += value ?? 0)));
  };

  const band = (limits) => ({
    hooks: {
      drawClear: [(plot) => {
        const [bottom, top] = limits.map((value) => plot.valToPos(value, "y", true));
        plot.ctx.save();
        plot.ctx.globalAlpha = 0.16;
        plot.ctx.fillStyle = color("--c2");
        plot.ctx.fillRect(plot.bbox.left, top, plot.bbox.width, bottom - top);
        plot.ctx.restore();
      }],
    },
  });

  const draw = (place, chart, rounds, tasks) => {
    const stack = chart.kind === "stack";
    const data = stack ? stacked(chart.series) : chart.series.map((one) => one.values);
    const order = stack ? [...data.keys()].reverse() : [...data.keys()]; // the highest sum is painted first
    const axis = {stroke: color("--muted"), grid: {stroke: color("--grid"), width: 1}, ticks: {stroke: color("--grid")}};
    const whole = {...axis, values: (_, found) => found.map((one) => (Number.isInteger(one) ? one : ""))};
    const bars = stack ? {paths: uPlot.paths.bars({size: [0.8, 60]})} : {};
    const plot = new uPlot({
      width: Math.max(240, place.clientWidth),
      height: 190,
      legend: {live: true},
      cursor: {y: false, drag: {x: false, y: false}},
      scales: {
        x: {time: false, range: (_, low, high) => [low - 0.5, high + 0.5]},
        y: {range: (_, low, high) => chart.range ?? [Math.min(0, low), high > 0 ? high * 1.08 : 1]},
      },
      axes: [whole, {...axis, size: 52}],
      plugins: chart.band ? [band(chart.band)] : [],
      series: [{label: "round", value: (_, found) => found ?? "last"}, ...order.map((at) => ({
        label: chart.series[at].name,
        stroke: color(`--c${at % 8}`),
        fill: stack ? color(`--c${at % 8}`) : undefined,
        width: stack ? 0 : 2,
        dash: stack ? undefined : dashes[at % dashes.length],
        points: {show: !stack && rounds.length < 60, size: 6},
        spanGaps: true,
        value: (_, __, ___, index) => short(index == null ? last(chart.series[at].values) : chart.series[at].values[index]),
        ...bars,
      }))],
    }, [rounds, ...order.map((at) => data[at])], place);
    plot.over.addEventListener("click", () => {
      if (plot.cursor.idx != null) location.href = `${tasks}?round=${rounds[plot.cursor.idx]}`;
    });
    return plot;
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
      if (chart) drawn.push({place, plot: draw(place, chart, found.rounds, charts.dataset.tasks)});
    }
    if (found.charts.length > drawn.length && drawn.length === 0) location.reload(); // the first round is there
  };

  const done = () => document.querySelector("[data-done]")?.dataset.done;
  let known;
  const onSwap = () => {
    if (done() === known) return;
    known = done();
    drawAll();
  };

  document.addEventListener("DOMContentLoaded", () => {
    known = done();
    drawAll();
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
