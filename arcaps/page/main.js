/** The page: one state, five panels that show it, and one loop that asks the network. */

import { text } from "arcaps/assets.js";
import { read, write } from "arcaps/link.js";
import { Network } from "arcaps/network.js";
import { STRAIGHT, isBlank, warp } from "arcaps/picture.js";
import { CapsulePanel } from "arcaps/panels/capsule.js";
import { ClassesPanel } from "arcaps/panels/classes.js";
import { DrawPanel } from "arcaps/panels/draw.js";
import { PathPanel } from "arcaps/panels/path.js";
import { RoutingPanel } from "arcaps/panels/routing.js";

const find = (id) => document.getElementById(id);
/** With more classes than this, only the best are shown. */
const MOST_CLASSES = 12;

/** What all panels share. A panel has `show()` for a new answer and, if it shows the moved capsule, `showMoved()`. */
class Page {
  /** @param {Network} network */
  constructor(network) {
    this.network = network;
    this.card = network.card;
    const { channels, height, width } = this.card;
    this.shape = { channels, height, width };
    this.size = channels * height * width;
    /** The picture before its pose. */
    this.drawing = new Float32Array(this.size);
    /** Which example it is: "e3", "m0"; null for a picture of the visitor's own. */
    this.example = null;
    this.pose = { ...STRAIGHT };
    /** The class that was clicked; null: the longest. */
    this.chosen = null;
    /** What was added to the dimensions of the shown capsule. */
    this.moved = new Float32Array(this.card.dim);
    /** What the network answers; null for an empty picture. */
    this.answer = null;
    this.panels = [];
    this.busy = false;
    this.again = false;
  }

  /** The class that is shown. */
  get label() {
    return this.chosen ?? this.best;
  }

  /** The class with the greatest score. */
  get best() {
    const scores = this.answer.scores.data;
    return scores.indexOf(Math.max(...scores));
  }

  /** The classes that are shown: all of them, or the best and the chosen one, best first. */
  get shownLabels() {
    const scores = this.answer.scores.data, labels = [...scores.keys()];
    if (labels.length <= MOST_CLASSES) return labels;
    const best = labels.sort((a, b) => scores[b] - scores[a]).slice(0, MOST_CLASSES);
    return best.includes(this.label) ? best : [...best, this.label];
  }

  /** @param {number} label */
  capsule(label) {
    const { dim } = this.card;
    return this.answer.capsules.data.subarray(label * dim, (label + 1) * dim);
  }

  /** The shown capsule with what was added to it. */
  get movedCapsule() {
    return Float32Array.from(this.capsule(this.label), (value, dim) => value + this.moved[dim]);
  }

  /** Set another picture. */
  setPicture(pixels, example = null) {
    this.drawing = pixels;
    this.example = example;
    this.chosen = null;
    this.moved.fill(0);
    return this.refresh();
  }

  /** Choose a class; null: the longest. */
  choose(label) {
    this.chosen = label;
    this.moved.fill(0);
    return this.refresh();
  }

  /** Ask the network and show the answer. While it computes, further calls become one: the latest state wins. */
  async refresh() {
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    try {
      do {
        this.again = false;
        const seen = warp(this.drawing, this.shape, this.pose);
        const blank = isBlank(seen);
        const answer = blank ? null : await this.network.encode(seen);
        this.seen = seen;
        this.answer = answer;
        document.body.classList.toggle("blank", blank);
        const which = blank ? "…" : this.card.class_names[this.label];
        for (const name of document.querySelectorAll(".which")) name.textContent = which;
        await Promise.all(this.panels.map((panel) => panel.show()));
        if (!blank) await this.refreshMoved();
        this.remember();
      } while (this.again);
    } catch (error) {
      fail(error);
    } finally {
      this.busy = false;
    }
    find("facts").textContent = facts(this);
  }

  /** Show the capsule after one of its dimensions was moved. */
  async refreshMoved() {
    if (!this.card.decoder || !this.answer) return this.panels.forEach((panel) => panel.showMoved?.(null));
    const mine = (this.drawingOrder = (this.drawingOrder ?? 0) + 1);
    const [picture] = await this.network.decode([[this.label, this.movedCapsule]]);
    if (mine === this.drawingOrder && this.answer) this.panels.forEach((panel) => panel.showMoved?.(picture));
    this.remember();
  }

  /** Put the state into the address, at most three times a second: browsers refuse more. */
  remember() {
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => {
      const moved = new Map([...this.moved].flatMap((by, dim) => (Math.abs(by) > 1e-3 ? [[dim, by]] : [])));
      const image = isBlank(this.drawing) ? undefined : Uint8Array.from(this.drawing, (value) => Math.round(255 * value));
      const address = write({ example: this.example, image, pose: this.pose, chosen: this.chosen, moved });
      history.replaceState(null, "", "#" + address);
      document.body.dataset.remembered = address;
    }, 350);
  }

  /** Take the state from the address; without one, show the first example. */
  async restore() {
    const limits = { classes: this.card.class_names.length, dim: this.card.dim, size: this.size };
    const shared = read(location.hash.slice(1), limits);
    const draw = this.panels[0];
    if (shared.image) this.drawing = Float32Array.from(shared.image, (value) => value / 255);
    else if (draw.hasExample(shared.example)) draw.take(shared.example);
    else if (!location.hash.slice(1) && draw.hasExample("e0")) draw.take(`e${this.card.first}`);
    this.pose = shared.pose;
    this.chosen = shared.chosen;
    this.moved.fill(0);
    for (const [dim, by] of shared.moved) this.moved[dim] = by;
    draw.showPad();
    await this.refresh();
  }
}

/** What is below the title. */
function facts({ card, network }) {
  const parts = [`${card.title}, ${card.parameters.toLocaleString("en")} parameters`];
  if (card.accuracy !== null) parts.push(`accuracy ${(100 * card.accuracy).toFixed(1)} % on ${card.tested.toLocaleString("en")} test images`);
  parts.push(network.times.length ? `runs in this page, ${network.milliseconds.toFixed(1)} ms per image` : "runs in this page");
  return parts.join(" · ");
}

/** What to do here. */
function lead({ dim, channels }) {
  const start = channels === 1 ? "Draw something" : "Choose a picture";
  return dim ? `${start}, turn it, and watch its capsule move.` : `${start}, and see what the network answers.`;
}

/** Say what went wrong. */
function fail(error) {
  console.error(error);
  find("problem").hidden = false;
  find("problem").textContent = `This browser could not run the network: ${error.message}. A current Chrome, Edge, Firefox or Safari should.`;
  find("facts").textContent = "";
}

function startTheme(page) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const redraw = () => page.panels.forEach((panel) => panel.recolour?.());
  find("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
}

/** On a screen with two columns the picture stays in sight: a high panel scrolls until its end is seen, then stops. */
function startStick() {
  const panel = find("draw");
  const stick = () => panel.style.setProperty("--stick", `${Math.min(12, innerHeight - panel.offsetHeight - 12)}px`);
  new ResizeObserver(stick).observe(panel);
  addEventListener("resize", stick);
}

function startLink() {
  find("link").addEventListener("click", async () => {
    const button = find("link");
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copy the address bar";
    }
    setTimeout(() => (button.textContent = "Copy link"), 1800);
  });
}

function startAbout({ card }) {
  const rows = {
    Network: card.title,
    Parameters: card.parameters.toLocaleString("en"),
    "Numbers stored as": card.precision,
    ...(card.accuracy === null ? {} : { Accuracy: `${(100 * card.accuracy).toFixed(2)} % of ${card.tested.toLocaleString("en")} images of ${card.data}` }),
    "Made by": `arcaps ${card.arcaps}`,
  };
  for (const [name, value] of Object.entries(rows)) {
    const term = document.createElement("dt"), details = document.createElement("dd");
    term.textContent = name;
    details.textContent = value;
    find("about-facts").append(term, details);
  }
  find("notice").hidden = !card.notice;
  find("notice").textContent = card.notice ?? "";
  find("about-open").addEventListener("click", async () => {
    find("about").showModal();
    find("licence").textContent ||= await text("runtime/LICENSE");
    find("notices").textContent ||= await text("runtime/ThirdPartyNotices.txt.gz");
  });
}

async function start() {
  const page = new Page(await Network.load());
  const { card } = page;
  if (!card.dim) find("title").textContent = document.title = "What does this network see?";
  find("lead").textContent = lead(card);
  page.panels.push(new DrawPanel(page), new ClassesPanel(page));
  if (card.decoder) page.panels.push(new CapsulePanel(page));
  if (card.dim) page.panels.push(new PathPanel(page));
  if (card.layers.length) page.panels.push(new RoutingPanel(page));
  document.body.classList.toggle("flat", !card.dim);
  document.body.classList.toggle("no-decoder", !card.decoder);
  await page.panels[0].load();
  startTheme(page);
  startStick();
  startLink();
  startAbout(page);
  window.arcaps = page;
  addEventListener("hashchange", () => page.restore());
  await page.restore();
  document.body.dataset.ready = "yes";
}

start().catch(fail);
