/** The picture: drawn, opened or chosen from the examples; then turned, moved and scaled. */

import { asset } from "arcaps/assets.js";
import { STRAIGHT, centre, fromBytes, isBlank, place, resize, show } from "arcaps/picture.js";

const find = (id) => document.getElementById(id);

export class DrawPanel {
  constructor(page) {
    this.page = page;
    const { card } = page;
    this.pad = find("pad");
    /** What stays where it is while the pad turns in it. */
    this.paper = find("paper");
    this.pen = this.pad.getContext("2d", { willReadFrequently: true });
    this.pad.height = Math.round((this.pad.width * card.height) / card.width);
    this.pad.style.aspectRatio = `${card.width} / ${card.height}`;
    this.canDraw = card.channels === 1;
    this.opened = null;
    this.last = null;
    find("draw-explain").textContent = this.canDraw
      ? "Draw with the mouse or a finger, choose an example, or drop an image here; then turn, move or scale it. The network sees only the small picture."
      : "Choose an example or drop an image here; then turn, move or scale it. The network sees only the small picture.";
    find("centre-box").hidden = !card.box;
    find("clear").hidden = !this.canDraw;
    find("draw").classList.toggle("no-pen", !this.canDraw);
    this.poses = makePoses(card.reach);
    find("pose").append(...this.poses.map((pose) => this.makeSlider(pose)));
    this.listen();
  }

  makeSlider(pose) {
    const row = document.createElement("label");
    row.className = "slider";
    row.innerHTML = `<span>${pose.label}</span><input type="range" id="pose-${pose.name}" min="${pose.from}" max="${pose.to}" step="${pose.step}"><output></output>`;
    [, pose.input, pose.output] = row.children;
    pose.input.addEventListener("input", () => {
      this.stop();
      this.page.pose[pose.name] = Number(pose.input.value);
      this.page.refresh();
    });
    return row;
  }

  listen() {
    const { paper, page } = this;
    paper.addEventListener("pointerdown", (event) => this.begin(event));
    paper.addEventListener("pointermove", (event) => this.draw(event));
    for (const name of ["pointerup", "pointercancel"]) paper.addEventListener(name, () => (this.last = null));
    find("clear").addEventListener("click", () => {
      this.stop();
      page.pose = { ...STRAIGHT };
      page.setPicture(new Float32Array(page.size));
      this.showPad();
    });
    find("straight").addEventListener("click", () => {
      this.stop();
      page.pose = { ...STRAIGHT };
      page.refresh();
    });
    find("play").addEventListener("click", () => (this.playing ? this.stop() : this.play()));
    find("open").addEventListener("click", () => find("file").click());
    find("file").addEventListener("change", () => this.open(find("file").files[0]));
    find("centre").addEventListener("change", () => (this.opened ? this.takeOpened() : this.readPad()));
    find("invert").addEventListener("change", () => this.takeOpened());
    const box = find("draw");
    for (const name of ["dragenter", "dragover"]) box.addEventListener(name, (event) => event.preventDefault());
    box.addEventListener("drop", (event) => {
      event.preventDefault();
      this.open(event.dataTransfer.files[0]);
    });
    addEventListener("paste", (event) => this.open(event.clipboardData.files[0]));
  }

  // examples

  /** The examples and the mistakes, as small pictures to choose from. */
  async load() {
    const { page } = this, { card } = page;
    this.examples = new Map();
    if (!card.examples.length && !card.mistakes.length) return;
    find("mistakes").classList.toggle("wide", Math.max(...card.class_names.map((name) => name.length)) > 2);
    const bytes = new Uint8Array(await asset("examples.bin.gz"));
    [["e", card.examples, "examples"], ["m", card.mistakes, "mistakes"]].forEach(([letter, list, id], part) => {
      find(`${id}-box`).hidden = !list.length;
      list.forEach(({ label, answer }, number) => {
        const start = (number + (part ? card.examples.length : 0)) * page.size;
        const pixels = Float32Array.from(bytes.subarray(start, start + page.size), (value) => value / card.divide_by);
        const key = letter + number;
        this.examples.set(key, pixels);
        find(id).append(this.makeExample(key, pixels, card.class_names[label], part ? card.class_names[answer] : null));
      });
    });
  }

  makeExample(key, pixels, name, answer) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "example";
    button.dataset.key = key;
    button.title = answer === null ? name : `${name}, answered ${answer}`;
    button.setAttribute("aria-label", button.title);
    const canvas = document.createElement("canvas");
    canvas.className = "pixels";
    show(canvas, pixels, this.page.shape);
    button.append(canvas);
    if (answer !== null) {
      const caption = document.createElement("span");
      const [was, said] = [name, answer].map((word) => Object.assign(document.createElement("bdi"), { textContent: word }));
      caption.append(was, " → ", said); // bdi: names that are written from right to left stay on their side of the arrow
      button.append(caption);
    }
    button.addEventListener("click", () => {
      this.stop();
      this.page.pose = { ...STRAIGHT };
      this.take(key);
      this.showPad();
      this.page.setPicture(this.page.drawing, key);
    });
    return button;
  }

  hasExample(key) {
    return this.examples.has(key);
  }

  /** Make an example the picture. */
  take(key) {
    this.forget();
    this.page.drawing = this.examples.get(key).slice();
    this.page.example = key;
  }

  // the pen

  /** Where on the pad the pointer is; the pad may be turned. */
  at(event) {
    const { pad, paper } = this, box = paper.getBoundingClientRect();
    const back = new DOMMatrix(getComputedStyle(pad).transform).inverse();
    const { x, y } = back.transformPoint({ x: event.clientX - box.left - box.width / 2, y: event.clientY - box.top - box.height / 2 });
    return [(x / box.width + 0.5) * pad.width, (y / box.height + 0.5) * pad.height];
  }

  begin(event) {
    if (!this.canDraw || event.button > 0) return;
    event.preventDefault();
    this.stop();
    if (this.page.example || this.opened || !this.own) {
      this.wipe();
      this.page.pose = { ...STRAIGHT };
    }
    this.forget();
    this.own = true;
    this.turnPad();
    this.paper.setPointerCapture(event.pointerId);
    this.last = this.at(event);
    this.stroke(this.last);
    this.readPad();
  }

  draw(event) {
    if (!this.last) return;
    for (const part of event.getCoalescedEvents?.() ?? []) this.stroke(this.at(part));
    this.stroke(this.at(event));
    this.readPad();
  }

  stroke(to) {
    const { pen } = this;
    pen.strokeStyle = "#fff";
    pen.lineWidth = this.pad.width * 0.075;
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    pen.moveTo(...this.last);
    pen.lineTo(...to);
    pen.stroke();
    this.last = to;
  }

  wipe() {
    this.pen.fillStyle = "#000";
    this.pen.fillRect(0, 0, this.pad.width, this.pad.height);
  }

  forget() {
    this.opened = null;
    this.own = false;
    find("invert-box").hidden = true;
  }

  /** Make what is on the pad the picture. */
  readPad() {
    if (!this.own) return;
    const { page, pad } = this, { height, width } = pad;
    const pixels = fromBytes(this.pen.getImageData(0, 0, width, height).data, height * width, 1);
    page.setPicture(this.fit(pixels, height, width));
  }

  /** A large grey picture in the model's size. */
  fit(pixels, height, width) {
    const { card, shape } = this.page;
    if (card.box && find("centre").checked) return centre(pixels, height, width, shape, card.box);
    return resize(pixels, { channels: 1, height, width }, shape.height, shape.width);
  }

  // image files

  async open(file) {
    if (!file) return;
    try {
      const image = await createImageBitmap(file);
      const small = Math.min(1, 1024 / Math.max(image.width, image.height));
      const width = Math.max(1, Math.round(image.width * small)), height = Math.max(1, Math.round(image.height * small));
      const canvas = Object.assign(document.createElement("canvas"), { width, height });
      const context = canvas.getContext("2d");
      context.fillRect(0, 0, width, height);
      context.drawImage(image, 0, 0, width, height);
      const { channels } = this.page.shape;
      const pixels = fromBytes(context.getImageData(0, 0, width, height).data, height * width, channels);
      this.stop();
      this.forget();
      this.opened = { pixels, height, width, channels };
      find("invert-box").hidden = !this.page.card.box;
      find("invert").checked = Boolean(this.page.card.box) && edge(pixels, height, width) > 0.5;
      this.page.pose = { ...STRAIGHT };
      this.takeOpened();
    } catch {
      find("problem").hidden = false;
      find("problem").textContent = `${file.name} is not an image that this browser can read.`;
      return;
    }
    find("problem").hidden = true;
  }

  /** Make the image that was opened the picture. */
  takeOpened() {
    if (!this.opened) return;
    const { card, shape } = this.page, { height, width, channels } = this.opened;
    const swap = card.box ? find("invert").checked : card.invert;
    const pixels = swap ? this.opened.pixels.map((value) => 1 - value) : this.opened.pixels;
    const small = height === shape.height && width === shape.width;
    if (card.box && find("centre").checked && !small) {
      const clear = pixels.map((value) => Math.max(0, (value - 0.25) / 0.75));
      this.page.setPicture(this.fit(clear, height, width));
    } else {
      this.page.setPicture(place(pixels, { channels, height, width }, shape, card.fit));
    }
    this.showPad();
  }

  // what is shown

  /** Show the picture, large, on the pad. */
  showPad() {
    const { page, pad, pen } = this;
    this.wipe();
    this.own = false;
    const small = document.createElement("canvas");
    show(small, page.drawing, page.shape);
    pen.imageSmoothingEnabled = page.card.width > 20;
    pen.drawImage(small, 0, 0, pad.width, pad.height);
  }

  /** Turn, move and scale the pad as the picture is. */
  turnPad() {
    const { pose, shape } = this.page;
    const move = `translate(${(100 * pose.right) / shape.width}%, ${(100 * pose.down) / shape.height}%)`;
    this.pad.style.transform = `${move} rotate(${-pose.angle}deg) scale(${pose.size})`;
  }

  show() {
    const { page } = this;
    show(find("seen"), page.seen, page.shape);
    this.turnPad();
    find("pad-hint").hidden = !(this.canDraw && isBlank(page.drawing));
    for (const pose of this.poses) {
      pose.input.value = String(page.pose[pose.name]);
      pose.output.textContent = pose.write(page.pose[pose.name]);
    }
    for (const button of document.querySelectorAll(".example")) {
      button.setAttribute("aria-pressed", String(button.dataset.key === page.example));
    }
  }

  /** Turn the picture to the left and to the right until `stop`. */
  play() {
    const began = performance.now(), { page } = this, most = 1.4 * page.card.reach.angle;
    const tick = (now) => {
      page.pose.angle = Math.round(10 * most * Math.sin((now - began) / 700)) / 10;
      page.refresh();
      this.playing = requestAnimationFrame(tick);
    };
    this.playing = requestAnimationFrame(tick);
    find("play").textContent = "■ Stop";
    find("play").setAttribute("aria-pressed", "true");
  }

  stop() {
    cancelAnimationFrame(this.playing);
    this.playing = 0;
    find("play").textContent = "▶ Animate";
    find("play").setAttribute("aria-pressed", "false");
  }
}

/** The four ways to change the pose, and how far the path goes. */
export function makePoses(reach) {
  const shift = Math.ceil(2 * reach.shift), pixels = (value) => `${Math.abs(value)} px`;
  return [
    {
      name: "angle", label: "turn", from: -90, to: 90, step: 1, reach: reach.angle, ends: [`${reach.angle}° ↻`, `${reach.angle}° ↺`], curve: "turned",
      write: (value) => `${Math.abs(value)}°${value > 0 ? " ↺" : value < 0 ? " ↻" : ""}`,
    },
    {
      name: "right", label: "sideways", from: -shift, to: shift, step: 0.25, reach: reach.shift, ends: ["left", "right"], curve: "moved sideways",
      write: (value) => pixels(value) + (value > 0 ? " →" : value < 0 ? " ←" : ""),
    },
    {
      name: "down", label: "up, down", from: -shift, to: shift, step: 0.25, reach: reach.shift, ends: ["up", "down"], curve: "moved up and down",
      write: (value) => pixels(value) + (value > 0 ? " ↓" : value < 0 ? " ↑" : ""),
    },
    { name: "size", label: "size", from: 0.5, to: 1.5, step: 0.02, reach: 0, write: (value) => `${value.toFixed(2)} ×` },
  ];
}

/** How bright the edge of a grey picture is. */
function edge(pixels, height, width) {
  let sum = 0;
  for (let x = 0; x < width; x++) sum += pixels[x] + pixels[(height - 1) * width + x];
  for (let y = 0; y < height; y++) sum += pixels[y * width] + pixels[y * width + width - 1];
  return sum / (2 * (width + height));
}
