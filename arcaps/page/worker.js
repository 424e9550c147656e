/**
 * The network, off the main thread: drawing stays smooth while it computes.
 *
 * This is a classic worker, started from a blob: the only kind that browsers allow on a page opened from a file. Its first
 * message brings the runtime and the models; every other one is a run: {id, model, input, data, dims}.
 */
"use strict";

const sessions = {};
let ort;

async function start({ runtime, wasm, models }) {
  const address = URL.createObjectURL(new Blob([runtime], { type: "text/javascript" }));
  ort = await import(address);
  URL.revokeObjectURL(address);
  ort.env.wasm.wasmBinary = wasm;
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  for (const [name, bytes] of Object.entries(models)) {
    sessions[name] = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"], graphOptimizationLevel: "all" });
  }
}

async function run({ model, input, data, dims }) {
  const began = performance.now();
  const answer = await sessions[model].run({ [input]: new ort.Tensor("float32", data, dims) });
  const outputs = {};
  for (const [name, tensor] of Object.entries(answer)) outputs[name] = { data: tensor.data, dims: [...tensor.dims] };
  return { outputs, milliseconds: performance.now() - began };
}

self.onmessage = async ({ data: message }) => {
  try {
    const answer = message.models ? await start(message) : await run(message);
    self.postMessage({ id: message.id, answer });
  } catch (error) {
    self.postMessage({ id: message.id, error: String(error?.message ?? error) });
  }
};
