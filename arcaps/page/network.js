/** The network in its worker, and the order in which it is asked. */

import { asset, text } from "arcaps/assets.js";

/**
 * @typedef {{data: Float32Array, dims: number[]}} Values
 * @typedef {{outputs: Object<string, Values>, milliseconds: number}} Answer
 * @typedef {{name: string, height: number, width: number, out: number, inp: number, window: number, sums: string, positions: boolean, classes: boolean}} Layer
 * @typedef {Object} Card What the page knows of the model: model.json, written by arcaps.
 * @property {string} title
 * @property {string[]} class_names
 * @property {number} channels
 * @property {number} height
 * @property {number} width
 * @property {number} dim Dimension of the class capsules; 0 for a CNN.
 * @property {number} range How far a dimension can be moved.
 * @property {boolean} decoder
 * @property {Layer[]} layers
 */

/** Asks the worker one question at a time; urgent questions first. */
export class Network {
  /** @param {Worker} worker @param {Card} card */
  constructor(worker, card) {
    this.worker = worker;
    this.card = card;
    this.waiting = [];
    this.current = null;
    this.count = 0;
    /** Milliseconds of the last single images. */
    this.times = [];
    worker.onmessage = ({ data }) => this.settle(data);
    worker.onerror = (event) => this.settle({ id: this.current?.message.id, error: event.message ?? "the worker stopped" });
  }

  /** Milliseconds per image: the median of the last ones. */
  get milliseconds() {
    return [...this.times].sort((a, b) => a - b)[this.times.length >> 1];
  }

  /** Load the model that belongs to this page. */
  static async load() {
    const card = JSON.parse(await text("model.json"));
    const models = { encoder: asset("encoder.onnx.gz") };
    if (card.decoder) models.decoder = asset("decoder.onnx.gz");
    const [code, runtime, wasm, ...bytes] = await Promise.all([
      text("worker.js"),
      text("runtime/ort.wasm.bundle.min.mjs.gz"),
      asset("runtime/ort-wasm-simd-threaded.wasm.gz"),
      ...Object.values(models),
    ]);
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const network = new Network(new Worker(address), card);
    const loaded = Object.fromEntries(Object.keys(models).map((name, place) => [name, bytes[place]]));
    await network.ask({ runtime, wasm, models: loaded }, true, [wasm, ...bytes]);
    return network;
  }

  /**
   * @param {Object} message @param {boolean} urgent @param {Transferable[]} transfer
   * @returns {Promise<any>}
   */
  ask(message, urgent, transfer = []) {
    return new Promise((resolve, reject) => {
      const question = { message: { ...message, id: ++this.count }, transfer, urgent, resolve, reject };
      const place = urgent ? this.waiting.findIndex((other) => !other.urgent) : -1;
      this.waiting.splice(place < 0 ? this.waiting.length : place, 0, question);
      this.next();
    });
  }

  next() {
    if (this.current || !this.waiting.length) return;
    this.current = this.waiting.shift();
    this.worker.postMessage(this.current.message, this.current.transfer);
  }

  settle({ id, answer, error }) {
    const question = this.current;
    if (!question || question.message.id !== id) return;
    this.current = null;
    if (error === undefined) question.resolve(answer);
    else question.reject(new Error(error));
    this.next();
  }

  /**
   * What the network answers for `count` images in one array.
   * @param {Float32Array} images @param {number} count @param {boolean} urgent
   * @returns {Promise<Object<string, Values>>}
   */
  async encode(images, count = 1, urgent = true) {
    const { channels, height, width } = this.card;
    const dims = [count, channels, height, width];
    const answer = await this.ask({ model: "encoder", input: "images", data: images, dims }, urgent);
    if (count === 1) this.times = [...this.times.slice(-20), answer.milliseconds];
    return answer.outputs;
  }

  /**
   * One picture for each capsule, drawn by the decoder from that capsule alone.
   * @param {[number, ArrayLike<number>][]} capsules The class and the values of each.
   * @returns {Promise<Float32Array[]>}
   */
  async decode(capsules) {
    const { class_names, dim, channels, height, width } = this.card;
    const classes = class_names.length;
    const data = new Float32Array(capsules.length * classes * dim);
    capsules.forEach(([label, values], row) => data.set(values, (row * classes + label) * dim));
    const dims = [capsules.length, classes, dim];
    const { outputs } = await this.ask({ model: "decoder", input: "capsules", data, dims }, true);
    const size = channels * height * width;
    return capsules.map((_, row) => outputs.reconstruction.data.subarray(row * size, (row + 1) * size));
  }
}
