/** The routing coefficients of every layer: for each pair of capsules a small map over the positions. */

const find = (id) => document.getElementById(id);
/** Colours from 0 to the largest coefficient, on light and on dark; a few routings have negative ones. */
const RAMPS = {
  light: [[243, 245, 251], [174, 192, 242], [79, 113, 216], [33, 53, 136], [14, 20, 58]],
  dark: [[28, 33, 46], [40, 62, 120], [70, 112, 214], [146, 181, 255], [240, 246, 255]],
};
const NEGATIVE = {
  light: [[243, 245, 251], [246, 190, 160], [217, 96, 42], [120, 45, 15]],
  dark: [[28, 33, 46], [110, 55, 30], [217, 96, 42], [255, 205, 175]],
};
/** With more columns than this they have no numbers, and with lower rows either: there is no room. */
const MOST_NUMBERS = 20, LEAST_HEIGHT = 16;

/** What the coefficients of a layer add up to. */
const SUMS = {
  inputs: "each row adds up to 1",
  outputs: "each column adds up to 1",
  less: "each column adds up to 1 or less",
  neither: "they do not add up to 1",
};

/** @param {number[][]} ramp @param {number} value From 0 to 1; what is not a number is shown as 0. */
function mix(ramp, value) {
  const t = Math.min(1, Math.max(0, value || 0)) * (ramp.length - 1), k = Math.min(ramp.length - 2, Math.floor(t));
  return ramp[k].map((c, i) => Math.round(c + (t - k) * (ramp[k + 1][i] - c)));
}

/** The colour of a value from -1 to 1, as red, green and blue. @param {"light" | "dark"} scheme @param {number} value */
function colour(scheme, value) {
  return value < 0 ? mix(NEGATIVE[scheme], -value) : mix(RAMPS[scheme], value);
}

function makeLabels(className, names) {
  const labels = document.createElement("div");
  labels.className = className;
  labels.ariaHidden = "true";
  setLabels(labels, names);
  return labels;
}

function setLabels(labels, names) {
  labels.replaceChildren(...names.map((name) => Object.assign(document.createElement("span"), { textContent: name, title: name })));
}

/** One layer: a row for each capsule above, a column for each capsule below. */
class Table {
  constructor(page, layer) {
    this.page = page;
    this.layer = layer;
    this.key = "coefficients." + layer.name;
    /** The outputs that have a row. */
    this.outs = Array.from({ length: layer.out }, (_, out) => out);
    this.cell = null;
    const maps = layer.height * layer.width > 1;
    // pixels of the canvas per cell, and per square with the gap after it
    this.unit = maps ? 1 : 5;
    this.across = layer.width * this.unit + 1;
    this.down = layer.height * this.unit + 1;
    this.make(maps);
  }

  make(maps) {
    const { layer } = this, inputs = layer.window > 1 ? "inputs" : "capsules";
    const window = layer.window > 1 ? ` (${layer.inp / layer.window} capsules at ${layer.window} places)` : "";
    this.where = maps ? `, at ${layer.height}×${layer.width} positions` : "";
    this.figure = document.createElement("figure");
    this.figure.innerHTML = `<figcaption><b>${layer.name}</b> ${layer.out} capsules (rows) from ${layer.inp} ${inputs}${window} of the layer below (columns)${this.where}; ${SUMS[layer.sums]}</figcaption>
      <div class="map-grid"><div class="map-box"><canvas tabindex="0" role="application"></canvas><i class="row-mark" hidden></i><i class="cell-mark" hidden></i></div></div>
      <div class="scale"><span></span><i></i><span></span></div><output class="caption"></output>`;
    const [canvas, row, mark, scale, output] = ["canvas", ".row-mark", ".cell-mark", ".scale", "output"].map((name) => this.figure.querySelector(name));
    Object.assign(this, { canvas, row, mark, scale, output });
    const columns = Array.from({ length: layer.inp <= MOST_NUMBERS ? layer.inp : 0 }, (_, inp) => String(inp));
    this.rows = makeLabels("map-rows", []);
    this.figure.querySelector(".map-grid").prepend(makeLabels("map-columns", columns), this.rows);
    canvas.setAttribute("aria-label", `Coefficients of ${layer.name}: arrow keys move from cell to cell`);
    canvas.width = layer.inp * this.across - 1;
    // 3 to 8 pixels of the screen for one of the canvas; on a narrow screen 2, and what is still too wide can be scrolled
    const zoom = Math.max(3, Math.min(8, Math.floor(600 / canvas.width)));
    Object.assign(canvas.style, { width: `calc(${canvas.width}px * min(${zoom}, var(--zoom)))`, minWidth: `${2 * canvas.width}px` });
    this.numbered = zoom * this.down >= LEAST_HEIGHT;
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      this.point(((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height);
    });
    canvas.addEventListener("pointerleave", () => this.point(-1, -1));
    canvas.addEventListener("keydown", (event) => this.step(event));
  }

  /** The cell at a place of the canvas; its `line` is a row of the table. */
  cellAt(x, y) {
    const { layer, unit, across, down } = this;
    const inp = Math.floor(x / across), line = Math.floor(y / down);
    const column = Math.min(layer.width - 1, Math.floor((x - inp * across) / unit));
    const row = Math.min(layer.height - 1, Math.floor((y - line * down) / unit));
    return { inp, line, row, column };
  }

  /** The coefficient of a pair at a position. */
  value({ row, column, line, inp }) {
    const { layer } = this, { data } = this.page.answer[this.key], out = this.outs[line];
    const position = row * layer.width + column;
    // where every position is an input of its own, the positions are a part of the inputs
    if (layer.positions) return data[(out * layer.height * layer.width + position) * layer.inp + inp];
    return data[(position * layer.out + out) * layer.inp + inp];
  }

  nameOf(line) {
    const out = this.outs[line];
    return this.layer.classes ? this.page.card.class_names[out] : String(out);
  }

  show() {
    const { layer, canvas, page, row, down } = this;
    if (page.answer && layer.classes) this.outs = page.shownLabels;
    canvas.height = this.outs.length * down - 1; // this also clears it
    setLabels(this.rows, this.numbered ? this.outs.map((_, line) => this.nameOf(line)) : []);
    row.hidden = !page.answer || !layer.classes;
    if (page.answer) this.paint();
    if (!row.hidden) {
      row.style.top = `${(100 * this.outs.indexOf(page.label) * down) / canvas.height}%`;
      row.style.height = `${(100 * (down - 1)) / canvas.height}%`;
    }
    this.tell();
  }

  paint() {
    const { canvas, across, down } = this, context = canvas.getContext("2d");
    const scheme = getComputedStyle(document.body).getPropertyValue("--scheme").trim();
    const { data } = this.page.answer[this.key];
    const [least, most] = data.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [0, 1e-9]);
    const largest = Math.max(most, -least);
    const image = context.createImageData(canvas.width, canvas.height);
    for (let y = 0; y < canvas.height; y++) {
      for (let x = 0; x < canvas.width; x++) {
        if (x % across === across - 1 || y % down === down - 1) continue;
        image.data.set([...colour(scheme, this.value(this.cellAt(x, y)) / largest), 255], 4 * (y * canvas.width + x));
      }
    }
    context.putImageData(image, 0, 0);
    this.paintScale(scheme, least < 0 ? -largest : 0, largest);
  }

  /** Which colour is which value. */
  paintScale(scheme, from, to) {
    const [low, bar, high] = this.scale.children;
    low.textContent = from ? from.toFixed(2) : "0";
    high.textContent = to.toFixed(2);
    const stops = Array.from({ length: 9 }, (_, k) => `rgb(${colour(scheme, (from + ((to - from) * k) / 8) / to).join(" ")})`);
    bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  }

  /** Choose the cell at a place of the canvas. */
  point(x, y) {
    const { canvas } = this;
    this.cell = x >= 0 && y >= 0 && x < canvas.width && y < canvas.height ? this.cellAt(x, y) : null;
    this.tell();
  }

  step(event) {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const { height, width, inp } = this.layer, cell = this.cell ?? { inp: 0, line: 0, row: 0, column: 0 };
    const x = Math.min(inp * width - 1, Math.max(0, cell.inp * width + cell.column + by[0]));
    const y = Math.min(this.outs.length * height - 1, Math.max(0, cell.line * height + cell.row + by[1]));
    this.cell = { inp: Math.floor(x / width), column: x % width, line: Math.floor(y / height), row: y % height };
    this.tell();
  }

  /** Say the value of the chosen cell. */
  tell() {
    const { layer, canvas, cell, mark, output, unit, across, down } = this;
    mark.hidden = !cell || cell.line >= this.outs.length || !this.page.answer;
    if (mark.hidden) {
      output.textContent = "Point at a cell to read its value.";
      return;
    }
    const { inp, line, row, column } = cell;
    const where = this.where ? ` at row ${row + 1}, column ${column + 1}` : "";
    output.textContent = `${layer.classes ? "class" : "capsule"} ${this.nameOf(line)} from ${layer.window > 1 ? "input" : "capsule"} ${inp}${where}: ${this.value(cell).toFixed(3)}`;
    Object.assign(mark.style, {
      left: `${(100 * (inp * across + column * unit)) / canvas.width}%`,
      top: `${(100 * (line * down + row * unit)) / canvas.height}%`,
      width: `${(100 * unit) / canvas.width}%`,
      height: `${(100 * unit) / canvas.height}%`,
    });
  }
}

export class RoutingPanel {
  constructor(page) {
    const { layers } = page.card, maps = layers.some(({ height, width }) => height * width > 1);
    find("routing").hidden = false;
    find("routing-explain").textContent =
      "Each capsule is a sum of votes from the capsules of the layer below; the routing coefficients say how much each vote counts. " +
      (maps ? "Each square is one pair of capsules, and shows the coefficient at every position of the image." : "Each square is one pair of capsules.");
    this.tables = layers.map((layer) => new Table(page, layer));
    find("maps").append(...this.tables.map(({ figure }) => figure));
  }

  show() {
    for (const table of this.tables) table.show();
  }

  recolour() {
    this.show();
  }
}
