/** The files that belong to the page: inside it when the page is one file, otherwise beside it. */

/**
 * The bytes of a file, unpacked if they are gzip.
 * @param {string} name
 * @returns {Promise<ArrayBuffer>}
 */
export async function asset(name) {
  const inside = document.getElementById("asset:" + name);
  const address = inside ? "data:application/octet-stream;base64," + inside.textContent.trim() : name;
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${name} could not be loaded (${answer.status})`);
  const bytes = await answer.arrayBuffer();
  const [first, second] = new Uint8Array(bytes, 0, Math.min(2, bytes.byteLength));
  if (first !== 0x1f || second !== 0x8b) return bytes;
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).arrayBuffer();
}

/**
 * A text file.
 * @param {string} name
 * @returns {Promise<string>}
 */
export async function text(name) {
  return new TextDecoder().decode(await asset(name));
}
