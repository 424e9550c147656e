/** The class capsules: how long each is, and what the decoder draws from it. */

import { show } from "arcaps/picture.js";

const find = (id) => document.getElementById(id);
/** With more classes than this, only the best are shown. */
const MOST = 12;

export class ClassesPanel {
  constructor(page) {
    this.page = page;
    const { card } = page;
    const numbers = card.dim ? `a list of ${card.dim} numbers` : "";
    find("classes-title").textContent = card.dim ? "Class capsules" : "Classes";
    find("classes-explain").textContent = card.dim
      ? `Each class has a capsule, ${numbers}; its length says how surely the class is there. ` +
        (card.decoder ? "The small picture is what the decoder draws from that capsule alone." : "Click a class to look into its capsule.")
      : "The network gives each class a probability, and they add up to 1. It has no capsules: nothing in its answer says how the picture is turned or drawn.";
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
    const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]);
    const shown = new Set(card.class_names.length > MOST ? [...order.slice(0, MOST), page.label] : order);
    if (card.class_names.length > MOST) find("bars").append(...order.map((label) => this.bars[label].button));
    this.bars.forEach(({ button, fill, value }, label) => {
      button.hidden = !shown.has(label);
      fill.style.width = `${(100 * scores[label]).toFixed(1)}%`;
      value.textContent = scores[label].toFixed(3);
      button.classList.toggle("first", label === best);
      button.classList.toggle("chosen", label === page.label);
      button.setAttribute("aria-pressed", String(label === page.label));
    });
    if (!card.decoder) return;
    const drawn = [...shown];
    const pictures = await page.network.decode(drawn.map((label) => [label, page.capsule(label)]));
    drawn.forEach((label, place) => show(this.bars[label].canvas, pictures[place], page.shape));
  }

  /** The answer in words. */
  say(scores, best) {
    const { card } = this.page, word = card.dim ? "length" : "probability";
    const second = Math.max(...scores.filter((_, label) => label !== best), 0);
    let doubt = "";
    if (scores[best] < 0.5) doubt = card.dim ? "no capsule is long: it is not sure" : "it is not sure";
    else if (card.dim && second > 0.5) doubt = "two capsules are long: it sees two things";
    find("answer").innerHTML = `<b></b><span>${word} ${scores[best].toFixed(3)}</span><em></em>`;
    find("answer").querySelector("b").textContent = card.class_names[best];
    find("answer").querySelector("em").textContent = doubt;
  }
}
