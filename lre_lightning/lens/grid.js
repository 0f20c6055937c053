// A grid of layers by tokens, from the data of `grid_of` in grid.py: the one component of the lens page, the explorer
// and the notebook. Everything that comes from a text becomes text, never markup.

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export function add(parent, name, text = "", attributes = {}) {
  const element = parent.appendChild(document.createElement(name));
  element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

const button = (parent, text, run, attributes = {}) => {
  const made = add(parent, "button", text, { type: "button", ...attributes });
  made.addEventListener("click", run);
  return made;
};

export const percent = (value) => `${Number((100 * value).toPrecision(3))} %`;

export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = add(document.body, "a", "", { href: url, download: name });
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function toCsv(grid) {
  const rows = [["layer", "position", "token", "place", "answer", grid.unit || "probability"]];
  grid.top.forEach((row, y) => row.forEach((cell, x) => cell.forEach((word, k) =>
    rows.push([grid.layers[y], x + 1, grid.tokens[x], k + 1, grid.words[word], grid.values[y][x][k]]))));
  return rows.map((row) => row.map((cell) => `"${String(cell).replaceAll('"', '""')}"`).join(",")).join("\n") + "\n";
}

// The table as it stands on the page, in colours as they are there.
export function toSvg(table, heading) {
  const NAME = "http://www.w3.org/2000/svg";
  const put = (parent, name, attributes, text = "") => {
    const made = parent.appendChild(document.createElementNS(NAME, name));
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };
  const sum = (all, size) => [...all].reduce((total, one) => total + one[size], 0);
  const width = sum(table.rows[0].cells, "offsetWidth"), height = sum(table.rows, "offsetHeight"), top = 18 * heading.length + 8;
  const ink = getComputedStyle(table.closest(".lens"));
  const size = { width, height: height + top, viewBox: `0 0 ${width} ${height + top}` };
  const svg = put(document.createDocumentFragment(), "svg", { ...size, "font-family": "system-ui, sans-serif", "font-size": 12 });
  put(svg, "rect", { width, height: height + top, fill: ink.backgroundColor });
  heading.forEach((line, i) => put(svg, "text", { x: 4, y: 18 * (i + 1) - 4, fill: ink.color }, line));
  let y = top;
  for (const row of table.rows) {
    let x = 0;
    for (const cell of row.cells) {
      const look = getComputedStyle(cell), wide = cell.offsetWidth, high = row.offsetHeight;
      const box = put(svg, "svg", { x, y, width: wide, height: high }); // cuts off what is too long
      put(box, "rect", { width: wide, height: high, fill: look.backgroundColor, stroke: ink.backgroundColor });
      if (cell.classList.contains("row")) put(box, "path", { d: `M0 1H${wide}M0 ${high - 1}H${wide}`, stroke: "#0096d6" });
      if (cell.classList.contains("column")) put(box, "path", { d: `M1 0V${high}M${wide - 1} 0V${high}`, stroke: "#0096d6" });
      const fits = wide < cell.scrollWidth ? { x: 3 } : { x: wide / 2, "text-anchor": "middle" };
      put(box, "text", { ...fits, y: high - 5, fill: look.color, "font-weight": look.fontWeight }, cell.textContent);
      x += wide;
    }
    y += row.offsetHeight;
  }
  return new XMLSerializer().serializeToString(svg);
}

// Draws `grid` into `host` and returns what can be done with it: update(grid) for another grid of the same shape.
// hooks.pin(word, id) is told which token is to be pinned, or null; without it only the tokens of a cell can be found.
// hooks.cell(y, x) is told which cell was chosen, and hooks.actions() is what cells offer, [[label(y, x), run(y, x)]].
export function drawGrid(host, grid, hooks = {}) {
  host.classList.add("lens");
  host.replaceChildren();
  const title = add(host, "h3"), tools = add(host, "div", "", { class: "tools" });
  const frame = add(host, "div", "", { class: "frame" });
  const table = add(frame, "table", "", { class: "grid", role: "grid" });
  const tip = add(host, "div", "", { class: "tip", role: "group", hidden: "" });
  tip.id = `tip${Math.random().toString(36).slice(2)}`;
  const body = add(table, "tbody"), rows = grid.layers.length, cells = [];
  for (let y = rows - 1; y >= 0; y--) {
    const row = add(body, "tr");
    add(row, "th", grid.layers[y], { scope: "row" });
    cells[y] = grid.tokens.map(() => add(row, "td", "", { dir: "auto", tabindex: -1 }));
  }
  const foot = add(add(table, "tfoot"), "tr");
  add(foot, "th", "layer", { scope: "col" });
  for (const token of grid.tokens) add(foot, "th", token, { scope: "col", dir: "auto", title: token });
  let stop = cells[rows - 1][0], shown = null, pinned = grid.pinned;
  stop.tabIndex = 0;

  const place = (cell) => [rows - 1 - cell.parentElement.rowIndex, cell.cellIndex - 1];
  const unit = () => grid.unit || "probability";
  const amount = (value) => (unit() === "probability" ? percent(value) : value.toFixed(2));

  function paint() {
    title.textContent = grid.title;
    table.setAttribute("aria-label", `${grid.title}: ${grid.text}`);
    cells.forEach((row, y) => row.forEach((cell, x) => {
      const found = pinned ? [pinned.values[y][x], pinned.ranks[y][x]] : [grid.values[y][x][0]];
      const nothing = !pinned && grid.silent?.[y][x];
      cell.textContent = nothing ? "·" : pinned ? found[1] ?? "–" : grid.words[grid.top[y][x][0]];
      const marks = [grid.layer === grid.layers[y] && "row", grid.marked.includes(x) && "column", found[1] === 1 && "first"];
      const step = Math.round(100 * Math.min(1, Math.max(0, found[0] ?? 0)));
      cell.className = [nothing ? "silent" : `p${step}`, ...marks.filter(Boolean)].join(" ");
    }));
    for (const [y, row] of [...body.rows].entries()) row.cells[0].classList.toggle("own", grid.layers[rows - 1 - y] === grid.layer);
    grid.tokens.forEach((_, x) => foot.cells[x + 1].classList.toggle("own", grid.marked.includes(x)));
    tools.replaceChildren();
    add(tools, "span", "0");
    add(tools, "span", "", { class: "scale", role: "img", "aria-label": "scale of colours" });
    add(tools, "span", `1 ${unit()}${pinned ? ` of ${pinned.word}, and its rank` : ""}`);
    if (pinned) button(tools, `unpin ${pinned.word}`, () => pin(null));
    const name = grid.title.replace(/[^\p{L}\p{N}]+/gu, "_");
    button(tools, "SVG", () => save(`${name}.svg`, "image/svg+xml", toSvg(table, [grid.text, grid.title])), { "aria-label": "save the picture, SVG" });
    button(tools, "CSV", () => save(`${name}.csv`, "text/csv", toCsv(grid)), { "aria-label": "save the data, CSV" });
    button(tools, "JSON", () => save(`${name}.json`, "application/json", JSON.stringify(grid)), { "aria-label": "save the data, JSON" });
  }

  function pin(word) {
    if (hooks.pin) return hooks.pin(word === null ? null : grid.words[word], word === null ? null : grid.ids[word]);
    const at = (cell) => (word === null ? -1 : cell.indexOf(word));
    const table = (pick) => grid.top.map((row, y) => row.map((cell, x) => (at(cell) < 0 ? null : pick(y, x, at(cell)))));
    pinned = word === null ? null : {
      word: grid.words[word], values: table((y, x, k) => grid.values[y][x][k]), ranks: table((y, x, k) => k + 1),
    };
    paint();
    if (shown) show(shown);
  }

  function hide() {
    tip.hidden = true;
    shown?.classList.remove("shown");
    shown?.removeAttribute("aria-describedby");
    shown = null;
  }

  function show(cell) {
    const [y, x] = place(cell), inside = [...tip.querySelectorAll("button")].indexOf(document.activeElement);
    const held = cell === document.activeElement || inside >= 0;
    hide();
    tip.replaceChildren();
    tip.classList.toggle("held", held);
    const head = add(tip, "p", `layer ${grid.layers[y]}, token ${x + 1}: `);
    add(head, "bdi", grid.tokens[x]);
    if (grid.silent?.[y][x]) add(tip, "p", "says nothing: not like the relation's subjects");
    if (pinned) {
      const value = pinned.values[y][x];
      const line = add(tip, "p", "pinned ");
      add(line, "bdi", pinned.word);
      line.append(value === null ? ": not among these" : `: rank ${pinned.ranks[y][x]}, ${amount(value)}`);
    }
    const lines = add(tip, "table", "", { role: "presentation" });
    grid.top[y][x].forEach((word, k) => {
      const line = add(lines, "tr"), name = grid.words[word], on = pinned?.word === name;
      const one = button(add(line, "td"), "", () => pin(on ? null : word), { "aria-pressed": on, title: "pin it: its rank in every cell" });
      add(one, "bdi", name);
      add(line, "td", amount(grid.values[y][x][k]));
    });
    for (const [label, run] of hooks.actions?.() ?? []) button(tip, label(y, x), () => run(y, x));
    tip.hidden = false;
    tip.querySelectorAll("button")[inside]?.focus();
    const box = cell.getBoundingClientRect(), own = tip.getBoundingClientRect(), around = host.getBoundingClientRect();
    const below = box.bottom + 2 + own.height <= innerHeight || box.top - own.height < 0;
    tip.style.left = `${Math.max(0, Math.min(box.left, Math.min(innerWidth, around.right) - own.width) - around.left)}px`;
    tip.style.top = `${(below ? box.bottom + 2 : box.top - own.height - 2) - around.top}px`;
    cell.classList.add("shown");
    cell.setAttribute("aria-describedby", tip.id);
    shown = cell;
  }

  function go(cell) {
    stop.tabIndex = -1;
    stop = cell;
    stop.tabIndex = 0;
    stop.focus({ preventScroll: true });
    const box = cell.getBoundingClientRect(), view = frame.getBoundingClientRect();
    const left = view.left + body.rows[0].cells[0].offsetWidth, bottom = view.top + frame.clientHeight - foot.offsetHeight;
    frame.scrollBy(Math.min(0, box.left - left) || Math.max(0, box.right - view.left - frame.clientWidth),
      Math.min(0, box.top - view.top) || Math.max(0, box.bottom - bottom));
    cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(cell);
    hooks.cell?.(...place(cell));
  }

  const cellOf = (event) => event.target.closest?.("td");
  const focused = () => (table.contains(document.activeElement) ? document.activeElement : null);
  const rest = () => (focused() && shown ? show(focused()) : !tip.contains(document.activeElement) && hide());
  table.addEventListener("pointerover", (event) => cellOf(event) && show(cellOf(event)));
  table.addEventListener("pointerleave", rest);
  table.addEventListener("focusin", (event) => cellOf(event) && show(cellOf(event)));
  host.addEventListener("focusout", (event) => !host.contains(event.relatedTarget) && hide());
  table.addEventListener("click", (event) => cellOf(event) && go(cellOf(event)));
  host.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !tip.hidden) {
      if (tip.contains(document.activeElement)) stop.focus();
      hide();
    }
    if (!table.contains(event.target)) return;
    const [y, x] = place(stop), ends = { Home: cells[y][0], End: cells[y].at(-1) };
    const [down, right] = STEPS[event.key] ?? [0, 0];
    const next = ends[event.key] ?? (down || right ? cells[y - down]?.[x + right] : null);
    if (event.key in ends || event.key in STEPS) event.preventDefault();
    if (next) go(next);
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const word = grid.top[y][x][0];
      pin(pinned?.word === grid.words[word] ? null : word);
    }
  });
  frame.addEventListener("scroll", () => shown !== document.activeElement && hide());
  paint();

  return {
    table,
    fits: (other) => String([other.layers, other.tokens]) === String([grid.layers, grid.tokens]),
    update(other) {
      grid = other;
      pinned = grid.pinned;
      paint();
      if (shown) show(shown);
    },
  };
}

// Draws the grids of a static page, whose data are in its elements of this class.
export function drawAll() {
  for (const host of document.querySelectorAll(".lens")) drawGrid(host, JSON.parse(host.firstChild.textContent));
}

// A widget of anywidget: `lenses` is a list of grids, and `cell` the last that was chosen, [lens, layer, token].
function render({ model, el }) {
  const draw = () => {
    el.replaceChildren();
    model.get("grids").forEach((grid, i) => {
      const cell = (y, x) => {
        model.set("cell", [i, y, x]);
        model.save_changes();
      };
      drawGrid(add(el, "div"), grid, { cell });
    });
  };
  model.on("change:grids", draw);
  draw();
}

export default { render };
