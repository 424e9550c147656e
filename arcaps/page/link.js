/** The state of the page as the part of its address after #, so that a link shows what its sender saw. */

import { STRAIGHT } from "arcaps/picture.js";

/** Pictures with more values than this are left out of the address, unless they are examples. */
export const LONGEST = 4096;

/**
 * @typedef {Object} Shared
 * @property {string} [example] "e3": the fourth example; "m0": the first mistake.
 * @property {Uint8Array} [image]
 * @property {import("arcaps/picture.js").Pose} pose
 * @property {number | null} chosen
 * @property {Map<number, number>} moved What was added to which dimension.
 */

/** @param {Uint8Array} bytes */
function toBase64(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @param {string} text */
function fromBase64(text) {
  return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
}

/** @param {Shared} shared @returns {string} */
export function write({ example, image, pose, chosen, moved }) {
  const fields = new URLSearchParams();
  if (example) fields.set("show", example);
  else if (image && image.length <= LONGEST) fields.set("image", toBase64(image));
  for (const [name, value] of Object.entries(STRAIGHT)) if (pose[name] !== value) fields.set(name, String(pose[name]));
  if (chosen !== null) fields.set("class", String(chosen));
  if (moved.size) fields.set("moved", [...moved].map(([dim, by]) => `${dim}:${by.toFixed(3)}`).join("_"));
  return fields.toString();
}

/**
 * What an address says; what it does not say, or says wrongly, is left out.
 * @param {string} text @param {{classes: number, dim: number, size: number}} limits @returns {Shared}
 */
export function read(text, { classes, dim, size }) {
  const fields = new URLSearchParams(text);
  const number = (name, otherwise) => {
    const value = Number(fields.get(name) ?? NaN);
    return Number.isFinite(value) ? value : otherwise;
  };
  const pose = Object.fromEntries(Object.entries(STRAIGHT).map(([name, value]) => [name, number(name, value)]));
  if (!(pose.size > 0)) pose.size = 1;
  const shared = { pose, chosen: null, moved: new Map() };
  const label = number("class", -1);
  if (Number.isInteger(label) && label >= 0 && label < classes) shared.chosen = label;
  for (const part of (fields.get("moved") ?? "").split("_")) {
    const [which, by] = part.split(":").map(Number);
    if (part && Number.isInteger(which) && which >= 0 && which < dim && Number.isFinite(by)) shared.moved.set(which, by);
  }
  if (/^[em]\d+$/.test(fields.get("show") ?? "")) shared.example = fields.get("show");
  try {
    const image = fromBase64(fields.get("image") ?? "");
    if (image.length === size) shared.image = image;
  } catch {
    // not base64: an address that was cut off
  }
  return shared;
}
