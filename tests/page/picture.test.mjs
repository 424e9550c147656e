// What picture.js, plane.js, labels.js and link.js promise by themselves. The numbers of the Python library are in test_javascript.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import { placeLabel } from "../../arcaps/page/labels.js";
import { read, write } from "../../arcaps/page/link.js";
import { STRAIGHT, centre, isBlank, place, resize, warp } from "../../arcaps/page/picture.js";
import { eigen, principalPlane } from "../../arcaps/page/plane.js";

const grey = { channels: 1, height: 28, width: 28 };

test("a straight pose changes nothing", () => {
  const pixels = Float32Array.from({ length: 784 }, (_, k) => (k % 17) / 17);
  assert.deepEqual(warp(pixels, grey, STRAIGHT), pixels);
});

test("a positive angle turns counter-clockwise, right and down are right and down", () => {
  const shape = { channels: 1, height: 5, width: 5 }, dot = (row, column) => 5 * row + column;
  const pixels = new Float32Array(25);
  pixels[dot(2, 4)] = 1; // at the right
  assert.ok(warp(pixels, shape, { ...STRAIGHT, angle: 90 })[dot(0, 2)] > 0.99); // now at the top
  pixels.fill(0)[dot(2, 2)] = 1;
  assert.ok(warp(pixels, shape, { ...STRAIGHT, right: 1, down: 2 })[dot(4, 3)] > 0.99);
});

test("colours stay apart", () => {
  const shape = { channels: 3, height: 4, width: 4 }, pixels = new Float32Array(48);
  pixels.fill(1, 16, 32);
  assert.deepEqual(warp(pixels, shape, STRAIGHT), pixels);
  assert.deepEqual(resize(pixels, shape, 2, 2), Float32Array.from([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]));
});

test("a drawing is centred by its mass and fits the box", () => {
  const drawing = new Float32Array(280 * 280);
  for (let y = 20; y < 120; y++) for (let x = 10; x < 40; x++) drawing[280 * y + x] = 1;
  const seen = centre(drawing, 280, 280, grey, 20);
  let mass = 0, x = 0, y = 0;
  const rows = new Set();
  seen.forEach((value, k) => {
    mass += value;
    x += value * (k % 28);
    y += value * Math.floor(k / 28);
    if (value > 0.5) rows.add(Math.floor(k / 28));
  });
  assert.ok(Math.abs(x / mass - 13.5) < 0.2 && Math.abs(y / mass - 13.5) < 0.2);
  assert.equal(rows.size, 20);
  assert.ok(isBlank(centre(new Float32Array(100), 10, 10, grey, 20)));
});

test("a small picture is padded, not scaled, where the model was trained so", () => {
  const shape = { channels: 1, height: 2, width: 2 };
  const padded = place([1, 1, 1, 1], shape, { channels: 1, height: 4, width: 4 }, "pad");
  assert.deepEqual([...padded], [0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
  assert.ok(place([1, 1, 1, 1], shape, { channels: 1, height: 4, width: 4 }, "scale").every((value) => value === 1));
});

test("eigenvalues come in order, for flat and single points too", () => {
  assert.deepEqual(eigen([[1, 0], [0, 3]]).values, [3, 1]);
  assert.equal(principalPlane([[1, 2, 3], [1, 2, 3]]).share, 1);
  assert.equal(principalPlane([[0, 0, 0], [1, 0, 0]]).share, 1);
});

test("an address gives back what was written into it", () => {
  const image = Uint8Array.from({ length: 784 }, (_, k) => k % 256);
  const limits = { classes: 10, dim: 16, size: 784 };
  const shared = { image, pose: { ...STRAIGHT, angle: -30, size: 1.2 }, chosen: 4, moved: new Map([[3, 0.5], [15, -1.25]]) };
  assert.deepEqual(read(write(shared), limits), shared);
  const example = { example: "m2", pose: { ...STRAIGHT }, chosen: null, moved: new Map() };
  assert.deepEqual(read(write(example), limits), example);
});

test("a damaged address is read as far as it makes sense", () => {
  const limits = { classes: 10, dim: 16, size: 784 };
  const empty = { pose: { ...STRAIGHT }, chosen: null, moved: new Map() };
  for (const text of ["", "image=%%%", "image=abc", "class=12", "class=x", "moved=99:1_2:x", "angle=north", "size=0", "show=<b>"]) {
    assert.deepEqual(read(text, limits), empty, text);
  }
});

test("a label stays in the picture and covers as little as possible", () => {
  const size = { width: 30, height: 14 }, room = { width: 200, height: 100 };
  const inside = ([left, top, right, bottom]) => left >= 0 && top >= 0 && right <= room.width && bottom <= room.height;
  const free = placeLabel([100, 50], 0, size, [], room);
  assert.ok(free[0] > 100 && free[1] < 50 && free[3] > 50); // it continues the direction
  const moved = placeLabel([100, 50], 0, size, [free], room);
  assert.ok(moved[0] >= free[2] || moved[2] <= free[0] || moved[1] >= free[3] || moved[3] <= free[1]);
  for (const corner of [[0, 0], [200, 0], [0, 100], [200, 100]]) assert.ok(inside(placeLabel(corner, 1, size, [], room)));
});
