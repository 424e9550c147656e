/**
 * Pictures as arrays of floats from 0 to 1, channel by channel, row by row: `(channels, height, width)`.
 *
 * `warp` follows the conventions of arcaps.warp, `resize` those of Pillow's bilinear filter, so that the page sees the same
 * pixels as the Python library. Nothing here depends on a browser, except `show`.
 */

/**
 * @typedef {{channels: number, height: number, width: number}} Shape
 * @typedef {{angle: number, right: number, down: number, size: number}} Pose
 */

/** The pose of a picture that is left as it is. @type {Pose} */
export const STRAIGHT = Object.freeze({ angle: 0, right: 0, down: 0, size: 1 });

/**
 * A picture scaled by `size`, turned counter-clockwise by `angle` degrees, then moved, in pixels. Outside lies black.
 * @param {ArrayLike<number>} pixels @param {Shape} shape @param {Pose} pose
 * @param {Float32Array} out @param {number} offset Where in `out` the picture begins.
 */
export function warp(pixels, { channels, height, width }, pose, out = new Float32Array(channels * height * width), offset = 0) {
  const turn = (pose.angle * Math.PI) / 180;
  const cosine = Math.cos(turn) / pose.size, sine = Math.sin(turn) / pose.size;
  const middleX = (width - 1) / 2, middleY = (height - 1) / 2, area = height * width;
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const x = column - middleX - pose.right, y = row - middleY - pose.down;
      const fromX = cosine * x - sine * y + middleX, fromY = sine * x + cosine * y + middleY;
      const left = Math.floor(fromX), top = Math.floor(fromY), dx = fromX - left, dy = fromY - top;
      for (let channel = 0; channel < channels; channel++) {
        const at = (i, j) => (i < 0 || j < 0 || i >= width || j >= height ? 0 : pixels[channel * area + j * width + i]);
        const upper = (1 - dx) * at(left, top) + dx * at(left + 1, top);
        const lower = (1 - dx) * at(left, top + 1) + dx * at(left + 1, top + 1);
        out[offset + channel * area + row * width + column] = (1 - dy) * upper + dy * lower;
      }
    }
  }
  return out;
}

/**
 * For each new pixel along one axis: the first old pixel that it sees, and the weights of those it sees.
 * @param {number} old @param {number} size @returns {[number, number[]][]}
 */
function triangles(old, size) {
  const step = old / size, reach = Math.max(step, 1);
  return Array.from({ length: size }, (_, place) => {
    const centre = (place + 0.5) * step;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5)), last = Math.min(old, Math.trunc(centre + reach + 0.5));
    const weights = [];
    for (let k = first; k < last; k++) weights.push(Math.max(0, 1 - Math.abs((k + 0.5 - centre) / reach)));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return [first, weights.map((weight) => weight / total)];
  });
}

/**
 * A picture in another size, by a triangle filter that widens as the picture shrinks: every old pixel counts.
 * @param {ArrayLike<number>} pixels @param {Shape} shape @param {number} height @param {number} width
 */
export function resize(pixels, shape, height, width) {
  const { channels } = shape, across = triangles(shape.width, width), along = triangles(shape.height, height);
  const narrow = new Float32Array(channels * shape.height * width), out = new Float32Array(channels * height * width);
  for (let line = 0; line < channels * shape.height; line++) {
    across.forEach(([first, weights], column) => {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * pixels[line * shape.width + first + k];
      narrow[line * width + column] = sum;
    });
  }
  for (let channel = 0; channel < channels; channel++) {
    along.forEach(([first, weights], row) => {
      for (let column = 0; column < width; column++) {
        let sum = 0;
        for (let k = 0; k < weights.length; k++) sum += weights[k] * narrow[(channel * shape.height + first + k) * width + column];
        out[(channel * height + row) * width + column] = sum;
      }
    });
  }
  return out;
}

/**
 * A picture of any size in the model's size, its aspect ratio kept, in the middle of black: Preprocessing.place.
 * @param {ArrayLike<number>} pixels @param {Shape} shape @param {Shape} wanted @param {"pad" | "scale"} fit
 */
export function place(pixels, shape, wanted, fit) {
  let factor = Math.min(wanted.height / shape.height, wanted.width / shape.width);
  if (fit === "pad") factor = Math.min(factor, 1);
  const inner = (size, most) => Math.max(1, Math.min(most, Math.round(factor * size)));
  const height = inner(shape.height, wanted.height), width = inner(shape.width, wanted.width);
  const scaled = height === shape.height && width === shape.width ? pixels : resize(pixels, shape, height, width);
  const top = Math.floor((wanted.height - height) / 2), left = Math.floor((wanted.width - width) / 2);
  const out = new Float32Array(shape.channels * wanted.height * wanted.width);
  for (let channel = 0; channel < shape.channels; channel++) {
    for (let row = 0; row < height; row++) {
      for (let column = 0; column < width; column++) {
        out[(channel * wanted.height + top + row) * wanted.width + left + column] = scaled[(channel * height + row) * width + column];
      }
    }
  }
  return out;
}

/**
 * A large grey drawing as MNIST made its digits: its box is scaled to fit `box` pixels, and its centre of mass is put into the
 * middle. Every pixel is the mean of the area that it covers.
 * @param {ArrayLike<number>} pixels @param {number} height @param {number} width @param {Shape} wanted @param {number} box
 */
export function centre(pixels, height, width, wanted, box) {
  const out = new Float32Array(wanted.height * wanted.width);
  const ink = measure(pixels, height, width);
  if (ink.mass === 0) return out;
  const step = (Math.max(ink.right - ink.left, ink.bottom - ink.top) + 1) / box;
  const fine = Math.max(2, Math.ceil(step)), middleX = (wanted.width - 1) / 2, middleY = (wanted.height - 1) / 2;
  for (let row = 0; row < wanted.height; row++) {
    for (let column = 0; column < wanted.width; column++) {
      let sum = 0;
      for (let b = 0; b < fine; b++) {
        for (let a = 0; a < fine; a++) {
          const x = Math.round((column - middleX + (a + 0.5) / fine - 0.5) * step + ink.x);
          const y = Math.round((row - middleY + (b + 0.5) / fine - 0.5) * step + ink.y);
          if (x >= 0 && y >= 0 && x < width && y < height) sum += pixels[y * width + x];
        }
      }
      out[row * wanted.width + column] = sum / (fine * fine);
    }
  }
  return out;
}

/** The box, the mass and the centre of mass of a grey drawing. */
function measure(pixels, height, width) {
  const ink = { left: width, right: -1, top: height, bottom: -1, mass: 0, x: 0, y: 0 };
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const value = pixels[y * width + x];
      if (value <= 0.02) continue;
      ink.left = Math.min(ink.left, x);
      ink.right = Math.max(ink.right, x);
      ink.top = Math.min(ink.top, y);
      ink.bottom = Math.max(ink.bottom, y);
      ink.mass += value;
      ink.x += value * x;
      ink.y += value * y;
    }
  }
  ink.x /= ink.mass || 1;
  ink.y /= ink.mass || 1;
  return ink;
}

/**
 * Canvas bytes (red, green, blue, opacity) as a picture; grey by Pillow's weights.
 * @param {ArrayLike<number>} bytes @param {number} count Pixels. @param {number} channels
 */
export function fromBytes(bytes, count, channels) {
  const out = new Float32Array(channels * count);
  for (let k = 0; k < count; k++) {
    const [red, green, blue] = [bytes[4 * k], bytes[4 * k + 1], bytes[4 * k + 2]];
    if (channels === 1) out[k] = ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16) / 255;
    else [out[k], out[count + k], out[2 * count + k]] = [red / 255, green / 255, blue / 255];
  }
  return out;
}

/** Whether there is nothing on a picture. @param {ArrayLike<number>} pixels */
export function isBlank(pixels) {
  for (let k = 0; k < pixels.length; k++) if (pixels[k] > 0.05) return false;
  return true;
}

/**
 * Draw a picture on a canvas, pixel for pixel.
 * @param {HTMLCanvasElement} canvas @param {ArrayLike<number>} pixels @param {Shape} shape
 */
export function show(canvas, pixels, { channels, height, width }) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), area = height * width;
  for (let k = 0; k < area; k++) {
    for (let c = 0; c < 3; c++) image.data[4 * k + c] = Math.round(255 * pixels[(channels === 1 ? 0 : c) * area + k]);
    image.data[4 * k + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
