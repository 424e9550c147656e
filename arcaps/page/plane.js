/** The plane in which points of many dimensions lie widest: their first two principal axes. */

/** @param {ArrayLike<number>} a @param {ArrayLike<number>} b */
export function dot(a, b) {
  let sum = 0;
  for (let k = 0; k < a.length; k++) sum += a[k] * b[k];
  return sum;
}

/**
 * Eigenvalues and eigenvectors of a symmetric matrix, the largest first, by Jacobi rotations.
 * @param {number[][]} matrix @returns {{values: number[], vectors: number[][]}}
 */
export function eigen(matrix) {
  const size = matrix.length, a = matrix.map((row) => [...row]);
  const vectors = a.map((_, i) => a.map((_, j) => (i === j ? 1 : 0)));
  const scale = Math.max(...a.flat().map(Math.abs), 1e-300);
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        off = Math.max(off, Math.abs(a[p][q]));
        if (Math.abs(a[p][q]) < 1e-300) continue;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = Math.sign(theta || 1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1), s = t * c;
        for (let k = 0; k < size; k++) [a[k][p], a[k][q]] = [c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]];
        for (let k = 0; k < size; k++) [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
        for (let k = 0; k < size; k++) {
          [vectors[k][p], vectors[k][q]] = [c * vectors[k][p] - s * vectors[k][q], s * vectors[k][p] + c * vectors[k][q]];
        }
      }
    }
    if (off < 1e-14 * scale) break;
  }
  const order = a.map((_, k) => k).sort((p, q) => a[q][q] - a[p][p]);
  return { values: order.map((k) => a[k][k]), vectors: order.map((k) => vectors.map((row) => row[k])) };
}

/**
 * @typedef {Object} Plane
 * @property {number[]} mean
 * @property {number[][]} axes Two directions of length 1.
 * @property {number} share The part of the squared distances from the mean that lies in the plane.
 * @property {(point: ArrayLike<number>) => [number, number]} place Where a point is in the plane.
 * @property {(dx: number, dy: number) => number[]} along The step in all dimensions that is this step in the plane.
 */

/**
 * The plane in which the points lie widest. The sign of each axis is fixed: its largest element is positive.
 * @param {ArrayLike<number>[]} points @returns {Plane}
 */
export function principalPlane(points) {
  const dim = points[0].length, mean = new Array(dim).fill(0);
  for (const point of points) for (let k = 0; k < dim; k++) mean[k] += point[k] / points.length;
  const spread = mean.map(() => new Array(dim).fill(0));
  for (const point of points) {
    for (let i = 0; i < dim; i++) for (let j = 0; j < dim; j++) spread[i][j] += (point[i] - mean[i]) * (point[j] - mean[j]);
  }
  const { values, vectors } = eigen(spread);
  const axes = [0, 1].map((n) => {
    const axis = vectors[n] ?? new Array(dim).fill(0);
    const largest = axis.reduce((best, value) => (Math.abs(value) > Math.abs(best) ? value : best), 0);
    return largest < 0 ? axis.map((value) => -value) : axis;
  });
  const total = values.reduce((sum, value) => sum + Math.max(0, value), 0);
  return {
    mean,
    axes,
    share: total > 0 ? (values[0] + (values[1] ?? 0)) / total : 1,
    place: (point) => axes.map((axis) => dot(axis, point) - dot(axis, mean)),
    along: (dx, dy) => axes[0].map((value, k) => dx * value + dy * axes[1][k]),
  };
}
