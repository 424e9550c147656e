/** The path: the same capsule as the picture turns and moves, in the plane where it moves most. */

import { placeLabel } from "arcaps/labels.js";
import { makePoses } from "arcaps/panels/draw.js";
import { STRAIGHT, show, warp } from "arcaps/picture.js";
import { principalPlane } from "arcaps/plane.js";

const find = (id) => document.getElementById(id);
/** Points of a curve, images that the network is asked for at once, and milliseconds of rest before it is asked. */
const STEPS = 17, CHUNK = 4, DELAY = 140;
/** Side and margin of the small picture in the corner, in pixels. */
const THERE = 68, MARGIN = 8;

export class PathPanel {
  constructor(page) {
    this.page = page;
    this.canvas = find("plane");
    /** One for each kind of movement, and those that the visitor has switched off, by number. */
    this.curves = [];
    this.off = new Set();
    this.walk = 0;
    /** The picture, the class and the size whose path this is. */
    this.of = [];
    find("path").hidden = false;
    find("there-box").hidden = !page.card.decoder;
    find("path-explain").textContent =
      "Each dot is this capsule after the picture was turned or moved a little further, in the plane in which the capsule changes most. " +
      (page.card.decoder ? "Drag the ring, and the decoder draws the capsule at that point." : "The ring is the picture as it is now.");
    this.poses = makePoses(page.card.reach).filter((pose) => pose.reach > 0);
    find("legend").append(...this.poses.map((pose, n) => this.makeSwitch(pose, n)));
    new ResizeObserver(() => this.paint()).observe(this.canvas);
    if (page.card.decoder) this.listen();
  }

  /** A button that shows or hides a curve; the last one that is shown stays. */
  makeSwitch(pose, number) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: `curve-${number}`, textContent: pose.curve });
    button.ariaPressed = "true";
    button.addEventListener("click", () => {
      if (!this.off.delete(number) && this.off.size < this.poses.length - 1) this.off.add(number);
      button.ariaPressed = String(!this.off.has(number));
      if (this.plane) this.project();
    });
    return button;
  }

  /** The curves that are shown. */
  get shown() {
    return this.curves.filter((_, number) => !this.off.has(number));
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.plane || !this.page.answer) return;
      canvas.setPointerCapture(event.pointerId);
      this.dragging = true;
      this.drag(event);
    });
    canvas.addEventListener("pointermove", (event) => this.dragging && this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (this.dragging = false));
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!by || !this.plane || !this.page.answer) return;
      event.preventDefault();
      const [x, y] = this.plane.place(this.page.movedCapsule), step = Math.max(this.view.wide, this.view.high) / 40;
      this.moveTo(x + step * by[0], y + step * by[1]);
    });
  }

  drag(event) {
    const box = this.canvas.getBoundingClientRect(), { x, y } = this.view, scale = this.scale(box);
    this.moveTo(x + (event.clientX - box.left - box.width / 2) / scale, y - (event.clientY - box.top - box.height / 2) / scale);
  }

  /** Move the shown capsule within the plane; what lies across the plane stays. */
  moveTo(x, y) {
    const { page } = this, [ownX, ownY] = this.plane.place(page.capsule(page.label));
    page.moved.set(this.plane.along(x - ownX, y - ownY));
    page.refreshMoved();
  }

  /** While the picture is only turned or moved, the path stays, and the ring runs along it. */
  show() {
    const { page } = this, of = page.answer ? [page.drawing, page.label, page.pose.size] : [];
    if (page.answer && of.every((part, k) => part === this.of[k])) return this.paint();
    this.of = of;
    this.canvas.classList.toggle("stale", true);
    clearTimeout(this.later);
    this.walk++;
    if (!page.answer) {
      this.curves = [];
      this.plane = null;
      return this.paint();
    }
    this.later = setTimeout(() => this.compute(), DELAY);
    this.paint();
  }

  /** Follow the capsule of the shown class along every curve. A newer picture ends it. */
  async compute() {
    const { page } = this, mine = ++this.walk, { label } = page, { size } = page.pose;
    const curves = [];
    for (const [number, pose] of this.poses.entries()) {
      const curve = { number, ends: pose.ends, points: [], lengths: [] };
      for (let start = 0; start < STEPS; start += CHUNK) {
        const count = Math.min(CHUNK, STEPS - start), images = new Float32Array(count * page.size);
        for (let k = 0; k < count; k++) {
          const value = pose.reach * ((2 * (start + k)) / (STEPS - 1) - 1);
          warp(page.drawing, page.shape, { ...STRAIGHT, size, [pose.name]: value }, images, k * page.size);
        }
        const answer = await page.network.encode(images, count, false);
        if (mine !== this.walk) return;
        const { dim, class_names } = page.card;
        for (let k = 0; k < count; k++) {
          const at = k * class_names.length + label;
          curve.points.push(answer.capsules.data.slice(at * dim, (at + 1) * dim));
          curve.lengths.push(answer.scores.data[at]);
        }
      }
      curves.push(curve);
    }
    this.curves = curves;
    this.project();
    this.canvas.classList.remove("stale");
    document.body.dataset.path = String(this.walk);
  }

  /** Find the plane of the curves that are shown, and draw them in it. */
  project() {
    this.plane = principalPlane(this.shown.flatMap((curve) => curve.points));
    for (const curve of this.curves) curve.places = curve.points.map((point) => this.plane.place(point));
    this.frame();
    this.paint();
    find("plane-share").textContent = `${Math.round(100 * this.plane.share)} % of the change lies in this plane. A larger dot is a larger score.`;
  }

  /** Choose the part of the plane that is shown: all curves, and some room. */
  frame() {
    const all = this.shown.flatMap((curve) => curve.places);
    const [left, right, low, top] = [0, 1].flatMap((axis) => {
      const values = all.map((place) => place[axis]);
      return [Math.min(...values), Math.max(...values)];
    });
    const wide = Math.max(right - left, 1e-6) * 1.3, high = Math.max(top - low, 1e-6) * 1.4;
    this.view = { x: (left + right) / 2, y: (low + top) / 2, wide, high };
  }

  /** Pixels per unit. */
  scale(box) {
    return Math.min(box.width / this.view.wide, box.height / this.view.high);
  }

  /** Put the small picture into the corner where it hides the least. */
  placeThere(at, box) {
    const places = [...this.shown.flatMap((curve) => curve.places), this.plane.place(this.page.capsule(this.page.label))].map(at);
    const near = THERE + 4 * MARGIN, far = MARGIN + THERE;
    const hidden = ([left, top]) =>
      places.filter(([x, y]) => x > left - near + far && x < left + near && y > top - near + far && y < top + near).length;
    const right = box.width - far, bottom = box.height - far;
    const corners = [[right, MARGIN], [MARGIN, MARGIN], [right, bottom], [MARGIN, bottom]];
    this.there = corners.reduce((best, corner) => (hidden(corner) < hidden(best) ? corner : best));
    Object.assign(find("there-box").style, { left: `${this.there[0]}px`, top: `${this.there[1]}px` });
  }

  recolour() {
    this.paint();
  }

  /** @param {Float32Array | null} picture What the decoder draws at the ring. */
  showMoved(picture) {
    if (picture) show(find("there"), picture, this.page.shape);
    this.paint();
  }

  paint() {
    const { page } = this, box = this.canvas.getBoundingClientRect();
    if (!box.width) return;
    const context = this.wipe(box);
    if (!this.plane || !page.answer) return;
    const style = getComputedStyle(document.body), scale = this.scale(box);
    const [ink, paper, warm, sunk] = ["--ink", "--paper", "--warm", "--sunk"].map((name) => style.getPropertyValue(name));
    const colour = ({ number }) => style.getPropertyValue(`--curve-${number}`);
    const at = ([x, y]) => [box.width / 2 + (x - this.view.x) * scale, box.height / 2 - (y - this.view.y) * scale];
    const within = ([x, y]) => [Math.min(Math.max(x, 12), box.width - 12), Math.min(Math.max(y, 12), box.height - 12)];
    const own = within(at(this.plane.place(page.capsule(page.label)))), moved = within(at(this.plane.place(page.movedCapsule)));
    if (!this.dragging) this.placeThere(at, box);
    for (const curve of this.shown) drawCurve(context, curve, at, colour(curve));
    if (Math.hypot(own[0] - moved[0], own[1] - moved[1]) > 2) {
      context.setLineDash([3, 4]);
      line(context, [own, moved], ink, 1.5);
      context.setLineDash([]);
      ring(context, own, 4, paper, ink, 2);
    }
    ring(context, moved, 9, paper, warm, 4);
    const taken = [around(own, 12)];
    if (page.card.decoder) taken.push([...this.there, this.there[0] + THERE, this.there[1] + THERE]);
    const dots = this.shown.flatMap((curve) => curve.places.map((place) => around(at(place), 3)));
    for (const curve of this.shown) writeEnds(context, curve, at, [colour(curve), sunk], taken, dots, box);
  }

  /** An empty canvas of this size, in the pixels of the screen. */
  wipe(box) {
    const { canvas } = this, ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
    const width = Math.round(box.width * ratio), height = Math.round(box.height * ratio);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, box.width, box.height);
    return context;
  }
}

/** The square around a point. @returns {import("arcaps/labels.js").Box} */
function around([x, y], radius) {
  return [x - radius, y - radius, x + radius, y + radius];
}

function line(context, points, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.beginPath();
  points.forEach((point, k) => context[k ? "lineTo" : "moveTo"](...point));
  context.stroke();
}

function ring(context, [x, y], radius, fill, colour, width) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.fillStyle = fill;
  context.fill();
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.stroke();
}

function drawCurve(context, { places, lengths }, at, colour) {
  line(context, places.map(at), colour, 2);
  context.fillStyle = colour;
  places.forEach((place, k) => {
    context.beginPath();
    context.arc(...at(place), 1 + 4 * lengths[k], 0, 7);
    context.fill();
  });
}

/** Write the names of both ends of a curve, and add their boxes to those that are `taken`. */
function writeEnds(context, { places, ends }, at, [colour, halo], taken, dots, room) {
  Object.assign(context, { font: "600 12px system-ui, sans-serif", textBaseline: "middle", lineWidth: 4, lineJoin: "round" });
  [[places[0], places[1], ends[0]], [places.at(-1), places.at(-2), ends[1]]].forEach(([end, before, label]) => {
    const [x, y] = at(end), [fromX, fromY] = at(before);
    const size = { width: context.measureText(label).width, height: 14 };
    const box = placeLabel([x, y], Math.atan2(y - fromY, x - fromX), size, [...taken, ...dots], room);
    taken.push(box);
    context.strokeStyle = halo;
    context.strokeText(label, box[0], box[1] + 7);
    context.fillStyle = colour;
    context.fillText(label, box[0], box[1] + 7);
  });
}
