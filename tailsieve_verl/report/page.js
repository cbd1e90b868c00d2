"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const drawing = byId("drawing"), slide = byId("slide"), pick = byId("pick"), hover = byId("hover");
  const SVG = "http://www.w3.org/2000/svg";
  const CUT = 4;
  let at = data.shown;

  function make(name, attributes, text) {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function seconds(value) { return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2); }

  /* Round steps of an axis: 1, 2 or 5 times a power of ten, at most `most` of them. */
  function spacing(largest, most) {
    const power = Math.pow(10, Math.floor(Math.log10(largest / most)));
    for (const factor of [1, 2, 5, 10]) if (largest / (factor * power) <= most) return factor * power;
    return 10 * power;
  }

  /* Requests of a lane into rows that do not overlap, the longest first. */
  function rowsOf(step) {
    const lanes = step.lanes.map(() => []);
    for (let i = 0; i < step.r[0].length; i++) lanes[step.r[0][i]].push(i);
    const where = new Array(step.r[0].length);
    const heights = lanes.map(function (ran) {
      const ends = [];
      ran.slice().sort((a, b) => step.r[1][a] - step.r[1][b] || step.r[2][b] - step.r[2][a]).forEach(function (i) {
        let row = ends.findIndex((end) => end <= step.r[1][i]);
        if (row < 0) row = ends.push(0) - 1;
        ends[row] = step.r[2][i];
        where[i] = row;
      });
      const rank = [];  // the row that ends last comes first
      ends.map((end, row) => [end, row]).sort((a, b) => b[0] - a[0]).forEach((pair, k) => { rank[pair[1]] = k; });
      ran.forEach((i) => { where[i] = rank[where[i]]; });
      return Math.max(1, ends.length);
    });
    return { where, heights };
  }

  function draw() {
    const step = data.steps[at];
    const width = Math.max(300, drawing.clientWidth), narrow = width < 560;
    const left = narrow ? 44 : 64, right = 10, top = 44, room = width - left - right;
    const packed = rowsOf(step);
    const rows = packed.heights.reduce((a, b) => a + b, 0);
    const row = Math.min(9, Math.max(1, (narrow ? 380 : 520) / rows));
    const least = narrow ? 9 : 14, between = step.lanes.length > 16 ? 2 : 4;
    const x = (tick) => left + (room * tick) / data.ticks;
    const xs = (time) => left + (room * time) / step.T;
    const svg = make("svg", { role: "img", "aria-label": "replicas of step " + step.s });
    const defs = make("defs", {}), hatch = make("pattern", { id: "cut", width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    hatch.append(make("rect", { width: 4, height: 4, fill: data.colours[CUT] }), make("rect", { width: 1, height: 4, fill: "#000" }));
    defs.append(hatch);
    svg.append(defs);
    let y = top, labelled = -99;
    const bodies = make("g", {});
    const tops = step.lanes.map(function (lane, k) {
      if (k && lane[1] !== step.lanes[k - 1][1]) y += 8;
      const height = Math.max(least, packed.heights[k] * row), here = y;
      svg.append(make("rect", { x: left, y: here, width: room, height, fill: lane[1] ? "#fdf1e7" : "#eef5fa" }));
      if (here + height / 2 - labelled >= 11) {
        svg.append(make("text", { x: left - 5, y: here + height / 2 + 3.5, "text-anchor": "end", "font-size": 10.5, fill: "#1b1f24" }, (narrow ? (lane[1] ? "t " : "b ") : lane[1] ? "tail " : "bulk ") + lane[0]));
        labelled = here + height / 2;
      }
      y += height + between;
      return { y: here, height };
    });
    for (let i = 0; i < packed.where.length; i++) {
      const lane = step.r[0][i], box = tops[lane], each = box.height / packed.heights[lane];
      bodies.append(make("rect", {
        x: x(step.r[1][i]).toFixed(1), y: (box.y + packed.where[i] * each).toFixed(2),
        width: Math.max(0.8, x(step.r[2][i]) - x(step.r[1][i])).toFixed(1),
        height: (each > 3 ? each * 0.86 : each + 0.1).toFixed(2),
        fill: step.r[3][i] === CUT ? "url(#cut)" : data.colours[step.r[3][i]], "data-i": i,
      }));
    }
    svg.append(bodies);
    step.lanes.forEach(function (lane, k) {
      if (!lane[2]) return;
      const cx = x(lane[3]), cy = tops[k].y + tops[k].height / 2, s = 4;
      svg.append(make("path", { d: "M" + (cx - s) + " " + cy + "l" + s + " -" + s + "l" + s + " " + s + "l-" + s + " " + s + "z", fill: "#000", stroke: "#fff", "stroke-width": 0.7 }));
    });
    const bottom = y, high = narrow ? 90 : 120, base = bottom + 34 + high;
    const most = Math.max(1, ...Object.values(step.c).flat()), unit = spacing(most, 3);
    for (let value = 0; value <= most * 1.02; value += unit) {
      const there = base - (high * value) / (most * 1.05);
      svg.append(make("line", { x1: left, x2: left + room, y1: there, y2: there, stroke: "#d0d7de", "stroke-width": value ? 0.6 : 1 }));
      svg.append(make("text", { x: left - 5, y: there + 3.5, "text-anchor": "end", "font-size": 10.5, fill: "#57606a" }, +value.toFixed(2)));
    }
    svg.append(make("text", { x: left, y: bottom + 24, "font-size": 11.5, fill: "#1b1f24" }, "requests running"));
    let key = left + 112;
    for (const pool in step.c) {
      const style = pool === "tail" ? { stroke: "#D55E00", "stroke-dasharray": "5 3" } : { stroke: "#0072B2" };
      const points = step.c[pool].map((value, k) => (left + (room * (k + 0.5)) / data.bins).toFixed(1) + "," + (base - (high * value) / (most * 1.05)).toFixed(1));
      svg.append(make("polyline", Object.assign({ points: points.join(" "), fill: "none", "stroke-width": 1.8 }, style)));
      svg.append(make("line", Object.assign({ x1: key, x2: key + 22, y1: bottom + 20, y2: bottom + 20, "stroke-width": 1.8 }, style)));
      svg.append(make("text", { x: key + 27, y: bottom + 24, "font-size": 11.5, fill: "#1b1f24" }, pool + " pool"));
      key += 92;
    }
    const tick = spacing(step.T, narrow ? 5 : 9);
    for (let time = 0; time <= step.T * 1.001; time += tick) {
      svg.append(make("text", { x: xs(time), y: base + 15, "text-anchor": "middle", "font-size": 10.5, fill: "#57606a" }, +time.toFixed(6) + (time + tick > step.T ? " s" : "")));
    }
    const dashes = { "tail done": "5 3", "bulk done": "2 2", cut: "" };
    let line = 0;
    for (const name in step.marks) {
      const here = xs(step.marks[name]), beyond = here > left + room * 0.6, up = 12 + 12 * line++;
      svg.append(make("line", { x1: here, x2: here, y1: up - 2, y2: base, stroke: "#000", "stroke-width": 1, "stroke-dasharray": dashes[name] || "none" }));
      svg.append(make("text", { x: here + (beyond ? -4 : 4), y: up + 3, "text-anchor": beyond ? "end" : "start", "font-size": 10.5, fill: "#1b1f24", stroke: "#fff", "stroke-width": 3, "paint-order": "stroke" }, name + " " + seconds(step.marks[name]) + " s"));
    }
    svg.setAttribute("viewBox", "0 0 " + width + " " + (base + 22));
    svg.setAttribute("height", base + 22);
    svg.addEventListener("pointerover", tell);
    svg.addEventListener("pointerdown", tell);
    drawing.replaceChildren(svg);
    say(step);
  }

  function say(step) {
    const parts = ["Step " + step.s + " ran " + step.split + "."];
    if (step.lanes.length < step.R) parts.push(step.lanes.length + " of " + step.R + " replicas are shown, evenly spaced by when they drained.");
    if (step.shown < step.total) parts.push(step.shown + " of " + step.total + " requests are shown.");
    parts.push((step.next ? "Then " + step.next : "Then the same") + (step.why ? ": " + step.why + "." : "."));
    byId("said").textContent = parts.join(" ");
  }

  function tell(event) {
    const i = event.target.getAttribute && event.target.getAttribute("data-i");
    if (i === null || i === undefined) return;
    const step = data.steps[at], scale = step.T / data.ticks;
    hover.textContent = "Prompt " + step.r[4][i] + " on replica " + step.lanes[step.r[0][i]][0] + ": " + seconds(step.r[1][i] * scale) + " to " +
      seconds(step.r[2][i] * scale) + " s, " + step.r[5][i] + " tokens, " + data.kinds[step.r[3][i]] + ".";
  }

  function go(index) {
    at = Math.min(data.steps.length - 1, Math.max(0, index));
    slide.value = at;
    pick.value = at;
    draw();
  }

  data.steps.forEach((step, i) => pick.append(new Option(step.s + (step.next ? " (moves)" : ""), i)));
  slide.max = data.steps.length - 1;
  slide.addEventListener("input", () => go(+slide.value));
  pick.addEventListener("change", () => go(+pick.value));
  byId("back").addEventListener("click", () => go(at - 1));
  byId("on").addEventListener("click", () => go(at + 1));
  document.querySelectorAll("a[data-step]").forEach((link) => link.addEventListener("click", () => go(data.steps.findIndex((step) => step.s === +link.dataset.step))));
  let waiting;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 120); });
  document.querySelector(".controls").hidden = false;
  go(at);
})();
