/** The class capsules: the score of each, and what the decoder draws from it. */

import { show } from "arcaps/picture.js";

const find = (id) => document.getElementById(id);
/** The scores of the library: what the page calls them, and what a large one means. Others are called "score". */
const SCORES = {
  length: { word: "length", explain: "its length, as a part of the longest possible, is the score of the class" },
  presence: { word: "presence", explain: "the score is how probably the routing finds the class in the picture" },
  linear: { word: "probability", explain: "a linear map of it gives the probability of the class" },
  softmax: { word: "probability", explain: "" },
};

export class ClassesPanel {
  constructor(page) {
    this.page = page;
    const { card } = page;
    const { word, explain } = SCORES[card.score] ?? { word: "score", explain: "its score says how probable the class is" };
    this.word = word;
    find("classes-title").textContent = card.dim ? "Class capsules" : "Classes";
    find("classes-explain").textContent = card.dim
      ? `Each class has a capsule, a vector of ${card.dim} numbers; ${explain}. ` +
        (card.decoder ? "The small picture is what the decoder draws from that capsule alone; click a class to see its capsule." : "Click a class to see how its capsule changes.")
      : "The network gives each class a probability; they add up to 1. It has no capsules: its answer does not say how the picture is turned or drawn.";
    this.bars = card.class_names.map((name, label) => this.makeBar(name, label));
    find("bars").append(...this.bars.map((bar) => bar.button));
    find("bars").style.setProperty("--name", `${Math.min(12, Math.max(...card.class_names.map((name) => name.length)))}ch`);
  }

  makeBar(name, label) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "bar";
    button.innerHTML = `<span class="name"></span><span class="track"><i></i></span><span class="value"></span>`;
    button.querySelector(".name").textContent = button.title = name;
    const canvas = document.createElement("canvas");
    canvas.className = "pixels";
    if (this.page.card.decoder) button.append(canvas);
    button.addEventListener("click", () => this.page.choose(this.page.chosen === label ? null : label));
    if (!this.page.card.dim) button.disabled = true;
    return { button, canvas, fill: button.querySelector("i"), value: button.querySelector(".value") };
  }

  async show() {
    const { page } = this, { card } = page;
    find("answer").classList.toggle("empty", !page.answer);
    if (!page.answer) {
      find("answer").textContent = "Draw something, and the answer appears here.";
      for (const { button, fill, value } of this.bars) {
        fill.style.width = "0";
        value.textContent = "";
        button.classList.remove("first", "chosen");
      }
      return;
    }
    const scores = page.answer.scores.data, { best } = page;
    this.say(scores, best);
    const shown = page.shownLabels;
    if (shown.length < this.bars.length) find("bars").append(...shown.map((label) => this.bars[label].button));
    this.bars.forEach(({ button, fill, value }, label) => {
      button.hidden = !shown.includes(label);
      fill.style.width = `${(100 * scores[label]).toFixed(1)}%`;
      value.textContent = scores[label].toFixed(3);
      button.classList.toggle("first", label === best);
      button.classList.toggle("chosen", label === page.label);
      button.setAttribute("aria-pressed", String(label === page.label));
    });
    if (!card.decoder) return;
    const pictures = await page.network.decode(shown.map((label) => [label, page.capsule(label)]));
    shown.forEach((label, place) => show(this.bars[label].canvas, pictures[place], page.shape));
  }

  /** The answer in words. */
  say(scores, best) {
    const { card } = this.page, adds = this.word === "probability";
    const large = scores.filter((score) => score > 0.5).length;
    let doubt = "";
    if (scores[best] < 0.5) doubt = adds ? "not sure" : `no class has a large ${this.word}: not sure`;
    else if (large > 1) doubt = `${large} classes have a large ${this.word}`;
    find("answer").innerHTML = `<b></b><span>${this.word} ${scores[best].toFixed(3)}</span><em></em>`;
    find("answer").classList.toggle("long", card.class_names[best].length > 3);
    find("answer").querySelector("b").textContent = card.class_names[best];
    find("answer").querySelector("em").textContent = doubt;
  }
}
