/** Where to write the names of points so that they cover little else. */

/** @typedef {[number, number, number, number]} Box Left, top, right, bottom. */

const TURNS = [0, 0.25, -0.25, 0.5, -0.5, 0.75, -0.75, 1].map((part) => part * Math.PI);
const DISTANCES = [14, 24];

/** The area that two boxes share. @param {Box} a @param {Box} b */
function overlap(a, b) {
  return Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
}

/**
 * The box for a label near a point: the first, in the order of how well it continues the direction, that covers the least.
 * @param {[number, number]} point @param {number} direction In radians. @param {{width: number, height: number}} size
 * @param {Box[]} taken What should stay visible. @param {{width: number, height: number}} room
 * @returns {Box}
 */
export function placeLabel(point, direction, size, taken, room) {
  const candidates = DISTANCES.flatMap((distance) =>
    TURNS.map((turn) => {
      const far = distance + Math.abs(Math.cos(direction + turn)) * (size.width / 2 - 6);
      const left = point[0] + far * Math.cos(direction + turn) - size.width / 2;
      const top = point[1] + far * Math.sin(direction + turn) - size.height / 2;
      const x = Math.min(Math.max(left, 2), room.width - size.width - 2), y = Math.min(Math.max(top, 2), room.height - size.height - 2);
      return [x, y, x + size.width, y + size.height];
    }),
  );
  const cost = (box) => taken.reduce((sum, other) => sum + overlap(box, other), 0);
  return candidates.reduce((best, box) => (cost(box) < cost(best) ? box : best));
}
