/** The routing coefficients of every layer: for each pair of capsules a small map over the positions. */

const find = (id) => document.getElementById(id);
/** Colours from 0 to the greatest coefficient, on light and on dark. */
const RAMPS = {
  light: [[243, 245, 251], [174, 192, 242], [79, 113, 216], [33, 53, 136], [14, 20, 58]],
  dark: [[28, 33, 46], [40, 62, 120], [70, 112, 214], [146, 181, 255], [240, 246, 255]],
};

/** @param {number[][]} ramp @param {number} value From 0 to 1. */
function colour(ramp, value) {
  const t = Math.min(1, Math.max(0, value)) * (ramp.length - 1), k = Math.min(ramp.length - 2, Math.floor(t));
  return ramp[k].map((c, i) => c + (t - k) * (ramp[k + 1][i] - c));
}

/** What the coefficients of a layer add up to. */
const SUMS = {
  inputs: "each row adds up to 1",
  outputs: "each column adds up to 1: a capsule divides itself among those above",
  neither: "they need not add up to 1",
};

/** The cell at a place of the canvas. */
function cellAt({ layer, unit, across, down }, x, y) {
  const inp = Math.floor(x / across), out = Math.floor(y / down);
  const column = Math.min(layer.width - 1, Math.floor((x - inp * across) / unit));
  const row = Math.min(layer.height - 1, Math.floor((y - out * down) / unit));
  return { inp, out, row, column };
}

export class RoutingPanel {
  constructor(page) {
    this.page = page;
    const { layers } = page.card;
    find("routing").hidden = false;
    find("routing-explain").textContent =
      "Each capsule (a row) listens to the capsules of the layer below (the columns); the stronger the colour, the more it listens. " +
      "Each small square is one pair, at every position of the image.";
    this.tables = layers.map((layer) => this.makeTable(layer));
    find("maps").append(...this.tables.map(({ figure }) => figure));
  }

  makeTable(layer) {
    const figure = document.createElement("figure");
    const where = layer.height * layer.width > 1 ? `, at ${layer.height}×${layer.width} positions` : "";
    figure.innerHTML = `<figcaption><b>${layer.name}</b> ${layer.out} capsules listen to ${layer.inp}${where}; ${SUMS[layer.divides]}</figcaption>
      <div class="map-box"><canvas tabindex="0" role="application"></canvas><i class="row-mark" hidden></i><i class="cell-mark" hidden></i></div><output class="caption">&nbsp;</output>`;
    const canvas = figure.querySelector("canvas");
    canvas.setAttribute("aria-label", `Coefficients of ${layer.name}: arrow keys move from cell to cell`);
    // pixels of the canvas per cell, and per square with the gap after it
    const unit = layer.height * layer.width > 1 ? 1 : 5;
    const across = layer.width * unit + 1, down = layer.height * unit + 1;
    canvas.width = layer.inp * across - 1;
    canvas.height = layer.out * down - 1;
    const scale = Math.max(3, Math.min(6, Math.floor(600 / canvas.width)));
    canvas.style.width = `${canvas.width * scale}px`;
    const table = { layer, figure, canvas, unit, across, down, cell: null, row: figure.querySelector(".row-mark"), mark: figure.querySelector(".cell-mark"), output: figure.querySelector("output") };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      this.point(table, ((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height);
    });
    canvas.addEventListener("pointerleave", () => this.point(table, -1, -1));
    canvas.addEventListener("keydown", (event) => this.step(table, event));
    return table;
  }

  /** The coefficient of a pair at a position. */
  value({ layer }, { row, column, out, inp }) {
    const { data } = this.page.answer["coefficients." + layer.name];
    const position = row * layer.width + column;
    // where every input capsule has a matrix of its own, the positions are a part of the inputs
    if (layer.positions) return data[(out * layer.height * layer.width + position) * layer.inp + inp];
    return data[(position * layer.out + out) * layer.inp + inp];
  }

  show() {
    for (const table of this.tables) this.paint(table);
  }

  recolour() {
    this.show();
  }

  paint(table) {
    const { layer, canvas } = table, { page } = this, context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    table.row.hidden = true;
    if (!page.answer) return;
    const ramp = RAMPS[getComputedStyle(document.body).getPropertyValue("--scheme").trim()] ?? RAMPS.light;
    const largest = page.answer["coefficients." + layer.name].data.reduce((most, value) => Math.max(most, value), 1e-9);
    const image = context.createImageData(canvas.width, canvas.height), { across, down } = table;
    for (let y = 0; y < canvas.height; y++) {
      for (let x = 0; x < canvas.width; x++) {
        const cell = cellAt(table, x, y);
        if (x % across === across - 1 || y % down === down - 1) continue;
        image.data.set([...colour(ramp, this.value(table, cell) / largest), 255], 4 * (y * canvas.width + x));
      }
    }
    context.putImageData(image, 0, 0);
    if (layer.classes) {
      table.row.hidden = false;
      table.row.style.top = `${(100 * page.label * down) / canvas.height}%`;
      table.row.style.height = `${(100 * (down - 1)) / canvas.height}%`;
    }
    this.tell(table);
  }

  /** Choose the cell at a place of the canvas. */
  point(table, x, y) {
    const { canvas } = table;
    table.cell = x >= 0 && y >= 0 && x < canvas.width && y < canvas.height ? cellAt(table, x, y) : null;
    this.tell(table);
  }

  step(table, event) {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const { layer } = table, cell = table.cell ?? { inp: 0, out: 0, row: 0, column: 0 };
    const across = Math.min(layer.inp * layer.width - 1, Math.max(0, cell.inp * layer.width + cell.column + by[0]));
    const down = Math.min(layer.out * layer.height - 1, Math.max(0, cell.out * layer.height + cell.row + by[1]));
    table.cell = {
      inp: Math.floor(across / layer.width),
      column: across % layer.width,
      out: Math.floor(down / layer.height),
      row: down % layer.height,
    };
    this.tell(table);
  }

  /** Say the value of the chosen cell. */
  tell(table) {
    const { layer, canvas, cell, mark, output } = table;
    mark.hidden = !cell || !this.page.answer;
    if (mark.hidden) {
      output.textContent = "point at a cell to read its value";
      return;
    }
    const { inp, out, row, column } = cell;
    const name = layer.classes ? `class ${this.page.card.class_names[out] ?? out}` : `capsule ${out}`;
    const where = layer.height * layer.width > 1 ? ` at row ${row + 1}, column ${column + 1}` : "";
    output.textContent = `${name} listens to capsule ${inp}${where}: ${this.value(table, cell).toFixed(3)}`;
    const { unit, across, down } = table, x = inp * across + column * unit, y = out * down + row * unit;
    Object.assign(mark.style, {
      left: `${(100 * x) / canvas.width}%`,
      top: `${(100 * y) / canvas.height}%`,
      width: `${(100 * unit) / canvas.width}%`,
      height: `${(100 * unit) / canvas.height}%`,
    });
  }
}
