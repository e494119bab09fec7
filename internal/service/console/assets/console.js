"use strict";
// The page fetches its newer state and takes over what differs, and draws its charts. Without this script all works by
// reloading, and tables have the figures of charts.
addEventListener("DOMContentLoaded", () => {
  // short writes a number in the unit in which it has up to three digits, as format.Count does.
  const short = (v, ...units) => {
    let i = 0;
    for (; v >= 1000 && i < units.length - 1; i++) v /= 1000;
    return v.toFixed(i && v < 10 ? 2 : i && v < 100 ? 1 : 0) + units[i];
  };
  const count = v => v > 0 && v < 10 ? String(+v.toPrecision(2)) : short(v, "", "k", "M", "G");
  const bytes = v => short(v, " B", " kB", " MB", " GB", " TB");
  const units = {
    count, bytes, "bytes/s": v => bytes(v) + "/s", percent: v => count(v) + "%",
    seconds: v => v < 10 ? v.toFixed(1) + " s" : v < 120 ? v.toFixed(0) + " s" : v < 7200 ? (v / 60).toFixed(0) + " min" :
      v < 172800 ? (v / 3600).toFixed(1) + " h" : (v / 86400).toFixed(1) + " d",
  };
  // Steps of an axis of seconds, so that minutes and hours are whole.
  const times = [.1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
    172800, 432000, 864000];
  const whole = text => text.replace(/\.(\d*?)0+(?!\d)/, (_, digits) => digits ? "." + digits : "");
  const colours = ["--link", "--slow", "--good", "--bad", "--violet", "--teal", "--pink", "--quiet"];
  const dashes = [[], [5, 3], [2, 3], [8, 3, 2, 3], [12, 4], [1, 2], [6, 2, 2, 2], [3, 6]];
  const height = 170, drawn = new Map();

  const at = t => new Date(t * 1000).toISOString().replace("T", " "), long = data => data.to - data.from > 172800;

  // rows are the values of a chart, and its series as uPlot has them.
  const rows = (data, colour) => {
    const text = units[data.unit], values = [data.at], series = [{ label: "UTC", value: (_, t) => t == null ? "–" : long(data) ? at(t).slice(5, 16) : at(t).slice(11, 19) }];
    const bands = [];
    data.series.forEach((s, i) => {
      const stroke = colour(colours[i % colours.length]);
      values.push(s.mean);
      series.push({ label: s.name, stroke, dash: dashes[i % dashes.length], width: 2, value: (_, v) => v == null ? "–" : text(v) });
      if (!s.most) return;
      bands.push({ series: [values.length, values.length + 1], fill: stroke + "30" });
      values.push(s.most, s.least);
      const band = { class: "band", points: { show: false } };
      series.push(band, { ...band });
    });
    return { values, series, bands };
  };
  const draw = figure => {
    const now = drawn.get(figure), data = JSON.parse(figure.dataset.chart), style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim(), { values, series, bands } = rows(data, colour);
    const key = JSON.stringify(series);
    if (now && now.key === key) {
      Object.assign(now, { text: figure.dataset.chart, data });
      now.plot.setData(values);
      return;
    }
    now?.plot.destroy();
    const box = figure.querySelector(".plot"), one = { key, text: figure.dataset.chart, data };
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--pico-muted-border-color"), width: 1 },
      ticks: { stroke: colour("--pico-muted-border-color"), width: 1 }, font: "11px system-ui, sans-serif" };
    one.plot = new uPlot({
      width: box.clientWidth, height, series, bands, tzDate: t => uPlot.tzDate(new Date(t * 1000), "Etc/UTC"),
      cursor: { sync: { key: "job" }, y: false, drag: { x: false, y: false } },
      scales: { x: { range: () => [one.data.from, one.data.to] }, y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 10] } },
      axes: [
        { ...axis, space: 60, values: (_, list) => list.map(t => long(one.data) ? at(t).slice(5, 10) : at(t).slice(11, 16)) },
        { ...axis, size: 66, values: (_, list) => list.map(v => whole(units[data.unit](v))), ...(data.unit === "seconds" && { incrs: times }) },
      ],
    }, values, box);
    drawn.set(figure, one);
  };
  const charts = again => {
    if (typeof uPlot === "undefined") return;
    for (const [figure, one] of drawn) if (!figure.isConnected) { one.plot.destroy(); drawn.delete(figure); }
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      if (again || drawn.get(figure)?.text !== figure.dataset.chart) draw(figure);
    }
  };
  charts();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts(true));
  addEventListener("resize", () => drawn.forEach((one, figure) =>
    one.plot.setSize({ width: figure.clientWidth, height })));

  const address = document.body.dataset.live;
  if (!address) return;
  const every = 3000, most = 60;
  const said = document.getElementById("said"), lost = document.getElementById("lost");
  const near = new Set();
  const watch = new IntersectionObserver(list => {
    for (const e of list) e.isIntersecting ? near.add(e.target) : near.delete(e.target);
  }, { rootMargin: "200px" });
  document.querySelectorAll("tr[data-job]").forEach(row => watch.observe(row));

  // patch brings a node to what another is, and leaves what somebody works in, and plots.
  const patch = (now, then) => {
    if (now.className === "plot" || now.isEqualNode(then)) return;
    const busy = now.contains(document.activeElement);
    if (now.nodeType !== then.nodeType || now.nodeName !== then.nodeName) {
      if (!busy) now.replaceWith(then.cloneNode(true));
      return;
    }
    if (now.nodeType !== Node.ELEMENT_NODE) { now.nodeValue = then.nodeValue; return; }
    for (const a of [...now.attributes]) if (!then.hasAttribute(a.name) && a.name !== "open") now.removeAttribute(a.name);
    for (const a of then.attributes) if (now.getAttribute(a.name) !== a.value) now.setAttribute(a.name, a.value);
    if (now.childNodes.length === then.childNodes.length) {
      const to = [...then.childNodes];
      [...now.childNodes].forEach((child, i) => patch(child, to[i]));
    } else if (!busy) now.replaceChildren(...[...then.childNodes].map(n => n.cloneNode(true)));
  };
  const word = e => e.querySelector(".state")?.textContent;
  const take = page => {
    const told = [];
    for (const row of near) {
      const then = page.querySelector(`tr[data-job="${CSS.escape(row.dataset.job)}"]`);
      if (!then) continue;
      if (word(row) !== word(then)) told.push(row.dataset.job + ": " + word(then));
      patch(row, then);
    }
    for (const id of ["counts", "now", "actions", "facts", "curves", "log", "collections", "workers", "present", "past"]) {
      const now = document.getElementById(id), then = page.getElementById(id);
      if (!now || !then) continue;
      if (id === "now" && word(now) !== word(then)) told.push("now " + word(then));
      patch(now, then);
    }
    charts();
    const at = document.querySelector("#jobs > caption time"), newer = page.querySelector("#jobs > caption time");
    if (at && newer) patch(at, newer);
    if (told.length) said.textContent = told.length > 3 ? told.length + " jobs changed their state" : told.join(", ");
  };
  const look = async () => {
    try {
      if (document.hidden) return;
      const to = new URL(address, location.href);
      for (const row of [...near].slice(0, most)) to.searchParams.append("n", row.dataset.job);
      const reply = await fetch(to, { headers: { "X-Live": "1" } });
      if (reply.status === 401) { location.reload(); return; }
      lost.hidden = reply.ok;
      if (reply.ok) take(new DOMParser().parseFromString(await reply.text(), "text/html"));
    } catch { lost.hidden = false; } finally { setTimeout(look, every); }
  };
  setTimeout(look, every);
});
