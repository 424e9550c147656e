/** One capsule: a slider for each dimension, and what the decoder draws. */

import { show } from "arcaps/picture.js";

const find = (id) => document.getElementById(id);
/** Dimensions that are shown at first: those that change the picture most. */
const FIRST = 16;

export class CapsulePanel {
  constructor(page) {
    this.page = page;
    const { card } = page;
    find("capsule").hidden = false;
    find("capsule-explain").textContent =
      `Its ${card.dim} numbers, the dimensions, describe how the picture is drawn, such as its slant or its thickness. ` +
      "Move one, and the decoder draws the change; those that change the picture most come first.";
    this.sliders = Array.from({ length: card.dim }, (_, dim) => this.makeSlider(dim));
    find("dims").append(...this.sliders.map(({ box }) => box));
    this.all = card.dim <= FIRST;
    find("more").hidden = this.all;
    find("more").addEventListener("click", () => {
      this.all = !this.all;
      this.order();
    });
    find("back").addEventListener("click", () => {
      page.moved.fill(0);
      page.refreshMoved();
    });
  }

  makeSlider(dim) {
    const { range } = this.page.card;
    const box = document.createElement("label");
    box.className = "dim";
    box.innerHTML = `<span title="dimension ${dim}">${dim}</span><input type="range" min="${-range}" max="${range}" step="${range / 150}" aria-label="dimension ${dim}"><output></output>`;
    const input = box.querySelector("input");
    input.addEventListener("input", () => {
      if (!this.page.answer) return;
      this.page.moved[dim] = Number(input.value) - this.page.capsule(this.page.label)[dim];
      this.page.refreshMoved();
    });
    box.addEventListener("dblclick", () => {
      this.page.moved[dim] = 0;
      this.page.refreshMoved();
    });
    return { box, input, output: box.querySelector("output") };
  }

  /** Put the sliders of this class in order of their effect. */
  order() {
    const { card, label } = this.page;
    const ranking = card.ranking[label];
    ranking.forEach((dim, place) => (this.sliders[dim].box.hidden = !this.all && place >= FIRST));
    find("dims").append(...ranking.map((dim) => this.sliders[dim].box)); // Tab follows the same order
    find("more").textContent = this.all ? `Show the first ${FIRST} only` : `Show all ${card.dim}`;
  }

  show() {
    const { page } = this;
    if (!page.answer) return;
    if (this.ordered !== page.label) this.order();
    this.ordered = page.label;
  }

  /** @param {Float32Array} picture */
  showMoved(picture) {
    const { page } = this, values = page.movedCapsule;
    this.sliders.forEach(({ box, input, output }, dim) => {
      input.value = String(values[dim]);
      output.textContent = values[dim].toFixed(2);
      box.classList.toggle("moved", Math.abs(page.moved[dim]) > 0.005);
    });
    find("back").disabled = page.moved.every((by) => by === 0);
    show(find("drawn"), picture, page.shape);
  }
}
