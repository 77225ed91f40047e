// Keeps a page current: replaces what the relay sends each second, and draws the charts.
// Every text reaches the document through templates that escape it, or as textContent.

const CHARTS_EVERY_MS = 10_000;
const NOT_READ_MS = 5_000; // without a message: the relay does not answer

// ---- the main part

const main = document.getElementById("main");
const freshness = document.getElementById("freshness");

/** Make the children of `from` those of `to`, and keep elements that stay: they may have the focus. */
function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.children) {
    if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  }
  const used = new Set();
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = wanted.dataset?.key;
    const found = key === undefined ? firstAlike(at, wanted) : keyed.get(key);
    used.add(found ?? wanted);
    if (!found) {
      from.insertBefore(wanted, at);
    } else {
      if (key === undefined || found === at) at = found.nextSibling;
      else from.insertBefore(found, at);
      morph(found, wanted);
    }
  }
  for (const child of [...from.childNodes]) {
    if (!used.has(child)) child.remove();
  }
}

/** The first sibling from `at` on that can become `wanted`; text only if it is at that place. */
function firstAlike(at, wanted) {
  if (wanted.nodeType !== Node.ELEMENT_NODE) return at?.nodeType === wanted.nodeType ? at : null;
  for (let each = at; each; each = each.nextSibling) {
    const isFree = each.dataset?.key === undefined;
    if (isFree && each.nodeName === wanted.nodeName && each.id === wanted.id) return each;
  }
  return null;
}

function morph(from, to) {
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE || "keep" in from.dataset) return;
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
  }
  morphChildren(from, to);
}

function show(html) {
  const template = document.createElement("template");
  template.innerHTML = html; // rendered by the relay, with every value escaped
  morphChildren(main, template.content);
}

// ---- from the relay, each second

let source = null;
let heardMs = 0;

function listen() {
  const path = document.body.dataset.live;
  if (!path || source) return;
  heardMs = Date.now();
  source = new EventSource(path);
  source.onmessage = (event) => {
    heardMs = Date.now();
    freshness.hidden = true;
    const html = JSON.parse(event.data);
    if (html) show(html);
  };
  source.onerror = () => {
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      say("No longer current: load the page again, or log in again.");
    }
  };
}

function say(text) {
  freshness.textContent = text;
  freshness.hidden = false;
}

function rest() {
  source?.close();
  source = null;
}

setInterval(() => {
  if (source && Date.now() - heardMs > NOT_READ_MS) {
    say(`The relay does not answer. This is how it was at ${new Date(heardMs).toLocaleTimeString()}.`);
  }
}, 1000);

document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
window.addEventListener("pagehide", rest); // browsers open few connections to one host

// ---- charts

const LABELS = { delivered: "delivered", deferred: "deferred", bounced: "bounced", accepted: "accepted", queued: "queued" };
const COLOURS = {
  delivered: "--in-flight", deferred: "--deferred", bounced: "--unreachable", accepted: "--accepted", queued: "--waiting",
};
const plots = new Map();
let minutes = 30;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const compact = new Intl.NumberFormat("en", { notation: "compact" });

function clockTime(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

function options(figure, columns) {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const isFilled = columns.length === 1;
  return {
    width: figure.querySelector(".plot").clientWidth,
    height: 170,
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [{ ...axis, values: (_, times) => times.map(clockTime), size: 28 }, { ...axis, values: (_, all) => all.map(compact.format), size: 48 }],
    series: [
      { label: "time", value: (_, time) => (time ? clockTime(time) : "–") },
      ...columns.map((name) => ({
        label: LABELS[name],
        stroke: colour(COLOURS[name]),
        fill: isFilled ? `${colour(COLOURS[name])}33` : undefined,
        width: 2,
        dash: name === "accepted" ? [4, 4] : undefined,
        points: { show: false },
        value: (_, value) => (value === null || value === undefined ? "–" : value.toLocaleString("en")),
      })),
    ],
  };
}

function draw(figure, answer) {
  const columns = figure.dataset.columns.split(" ");
  const place = figure.querySelector(".plot");
  if (answer.time_s.length < 2) {
    place.textContent = "";
    const text = document.createElement("p");
    text.textContent = "The first points come within half a minute of the start.";
    place.append(text);
    plots.delete(figure);
    return;
  }
  const data = [answer.time_s, ...columns.map((name) => answer[name])];
  const plot = plots.get(figure);
  if (plot) {
    plot.setData(data);
    return;
  }
  place.textContent = "";
  plots.set(figure, new uPlot(options(figure, columns), data, place));
}

async function loadCharts() {
  const figures = [...document.querySelectorAll(".chart")];
  if (!figures.length || document.hidden) return;
  const query = new URLSearchParams({ zone: figures[0].dataset.zone, minutes });
  try {
    const response = await fetch(`/series?${query}`);
    if (!response.ok) return;
    const answer = await response.json();
    for (const figure of figures) draw(figure, answer);
  } catch {
    // the relay does not answer, which the page says
  }
}

function drawAgain() {
  for (const plot of plots.values()) plot.destroy();
  plots.clear();
  loadCharts();
}

for (const button of document.querySelectorAll("[data-minutes]")) {
  button.addEventListener("click", () => {
    minutes = Number(button.dataset.minutes);
    for (const each of document.querySelectorAll("[data-minutes]")) {
      each.setAttribute("aria-pressed", String(each === button));
    }
    loadCharts();
  });
}
setInterval(loadCharts, CHARTS_EVERY_MS);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
let width = innerWidth;
window.addEventListener("resize", () => {
  if (innerWidth === width) return; // on phones the height changes while scrolling
  width = innerWidth;
  for (const [figure, plot] of plots) plot.setSize({ width: figure.querySelector(".plot").clientWidth, height: 170 });
});

// ---- keys

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("q").focus();
  }
});

listen();
loadCharts();
