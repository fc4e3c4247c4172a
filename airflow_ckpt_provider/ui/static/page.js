// What the pages do by themselves: draw the grid of splits, ask for what has changed, and lead out of the frame.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const STATES = { r: "recovered", w: "written", b: "begun", m: "missing" };
  const SIZES = [22, 18, 14, 11, 9, 7, 6, 5, 4];
  const TALLEST = 280;
  const WAITING = 5000;

  // -- links to Airflow's own pages: a sandboxed frame may not navigate its parent, which may navigate itself.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow]");
    if (!link || window.parent === window || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    const outside = window.parent.document.createElement("a");
    outside.href = link.href;
    window.parent.document.body.append(outside);
    outside.click();
    outside.remove();
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
  });

  // -- how long ago things were, as in the package's own words
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  window.setInterval(() => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const [unit, name] = UNITS.find(([length]) => seconds >= length) ?? [1, "s"];
      time.textContent = seconds < 5 ? "just now" : `${Math.floor(seconds / unit)} ${name} ago`;
    }
  }, 10000);

  // A button that was pressed once is not pressed again by impatience.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    for (const button of event.target.querySelectorAll("button")) window.setTimeout(() => { button.disabled = true; });
  });

  // -- a page that waits for its checkpoint
  if (document.querySelector("[data-wait]")) {
    window.setInterval(async () => {
      if (document.hidden) return;
      try {
        const address = new URL(window.location.href);
        address.searchParams.set("again", "true");
        const answer = await fetch(address, { credentials: "same-origin" });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (answer.ok && !page.querySelector("[data-wait]")) window.location.reload();
      } catch {
        // The next time it may answer.
      }
    }, WAITING);
  }

  const article = document.getElementById("checkpoint");
  if (!article) return;

  // -- the grid: one path for each state, however many splits there are
  const grid = document.getElementById("grid");
  const line = document.getElementById("split");
  const section = document.getElementById("splits");
  const made = (name, attributes) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const canvas = made("svg", { "aria-hidden": "true" });
  const paths = Object.fromEntries(Object.entries(STATES).map(([letter, state]) => [letter, made("path", { class: state })]));
  const cursor = made("rect", { class: "cursor", rx: 2, visibility: "hidden" });
  canvas.append(...Object.values(paths), cursor);
  grid.append(canvas);
  let letters = grid.dataset.letters;
  let layout = { size: 22, columns: 1 };
  let at = -1;
  let splits = null;

  const fit = (count, width) => {
    for (const size of SIZES) {
      const columns = Math.max(1, Math.floor(width / size));
      if (Math.ceil(count / columns) * size <= TALLEST || size === SIZES.at(-1)) return { size, columns };
    }
  };

  const draw = () => {
    section.hidden = !letters;
    if (!letters) return;
    layout = fit(letters.length, grid.clientWidth);
    const { size, columns } = layout;
    const gap = size >= 11 ? 2 : 1;
    const side = size - gap;
    const shapes = { r: [], w: [], b: [], m: [] };
    for (let index = 0; index < letters.length; index += 1) {
      const x = (index % columns) * size;
      const y = Math.floor(index / columns) * size;
      shapes[letters[index]].push(`M${x} ${y}h${side}v${side}h-${side}z`);
    }
    const width = Math.min(columns, letters.length) * size;
    const height = Math.ceil(letters.length / columns) * size;
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.setAttribute("width", width);
    canvas.setAttribute("height", height);
    for (const [letter, path] of Object.entries(paths)) path.setAttribute("d", shapes[letter].join(""));
    point(at < letters.length ? at : -1);
  };

  const bytes = (number) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    let value = number;
    while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
    return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
  };

  const learn = async () => {
    if (splits === null) {
      splits = [];
      try {
        const answer = await fetch(article.dataset.facts, { credentials: "same-origin" });
        if (answer.ok) splits = (await answer.json()).splits;
      } catch {
        splits = null;
      }
      say();
    }
  };

  const say = () => {
    if (at < 0) {
      line.textContent = line.dataset.idle;
      return;
    }
    const facts = splits && splits[at];
    const words = [`Split ${at + 1} of ${letters.length}: ${STATES[letters[at]]}`];
    if (facts) {
      words.push(facts.id);
      if (facts.input_bytes) words.push(`${bytes(facts.input_bytes)} of input`);
      if (facts.attempt) words.push(`staged by attempt ${facts.attempt}`);
    }
    line.textContent = words.join(" · ");
  };

  const point = (index) => {
    at = index;
    cursor.setAttribute("visibility", at < 0 ? "hidden" : "visible");
    if (at >= 0) {
      const { size, columns } = layout;
      const side = size - (size >= 11 ? 2 : 1);
      cursor.setAttribute("x", (at % columns) * size);
      cursor.setAttribute("y", Math.floor(at / columns) * size);
      cursor.setAttribute("width", side);
      cursor.setAttribute("height", side);
      learn();
    }
    say();
  };

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / layout.size);
    const index = Math.floor((event.clientY - box.top) / layout.size) * layout.columns + column;
    return column >= 0 && column < layout.columns && index >= 0 && index < letters.length ? index : -1;
  };

  grid.addEventListener("pointermove", (event) => point(under(event)));
  grid.addEventListener("pointerdown", (event) => point(under(event)));
  grid.addEventListener("pointerleave", () => { if (document.activeElement !== grid) point(-1); });
  grid.addEventListener("blur", () => point(-1));
  grid.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -layout.columns, ArrowDown: layout.columns };
    let to = null;
    if (event.key in steps) to = at < 0 ? 0 : at + steps[event.key];
    if (event.key === "Home") to = 0;
    if (event.key === "End") to = letters.length - 1;
    if (event.key === "Escape") to = -1;
    if (to === null) return;
    event.preventDefault();
    if (to < letters.length && (to >= 0 || event.key === "Escape")) point(to);
  });
  new ResizeObserver(draw).observe(grid.parentElement);
  draw();

  // -- what has changed
  const stale = document.getElementById("stale");
  let final = article.dataset.final === "true";
  let timer = 0;
  let pause = Number(article.dataset.pause);

  const shown = new Map();
  const status = document.getElementById("status");
  const state = () => article.querySelector(".badge")?.textContent;

  const show = (news) => {
    const before = state();
    for (const [name, html] of Object.entries(news.parts)) {
      if (shown.get(name) === html) continue;
      shown.set(name, html);
      const part = article.querySelector(`[data-part="${name}"]`);
      const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      // Made by this application's own templates, which escape what they show.
      part.innerHTML = html;
      if (focused !== null) part.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
    if (state() !== before) status.textContent = article.querySelector(".headline").textContent;
    if (news.letters !== letters) {
      letters = news.letters;
      splits = null;
      draw();
    }
    final = news.final;
    pause = news.pause;
  };

  const ask = async () => {
    window.clearTimeout(timer);
    if (final || document.hidden) return;
    const start = performance.now();
    try {
      const answer = await fetch(article.dataset.live, { credentials: "same-origin" });
      const news = await answer.json();
      if (!answer.ok) throw new Error(news.detail);
      show(news);
      stale.hidden = true;
    } catch (error) {
      stale.textContent = `This is not up to date: ${error.message}`;
      stale.hidden = false;
    }
    // A store that takes long to answer is asked less often.
    timer = window.setTimeout(ask, Math.max(pause, 4 * (performance.now() - start)));
  };

  document.addEventListener("visibilitychange", ask);
  timer = window.setTimeout(ask, pause);
})();
