/* The inverse of pack.py: gzip, then rows whose texts are put together from words when they are looked at. */
const Unpack = (() => {
  const bytesOf = async (id) => {
    const letters = field(id).textContent;
    const zipped = Uint8Array.fromBase64?.(letters) ?? Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
    const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };
  const text = (bytes) => new TextDecoder().decode(bytes);
  /* A number at a place, and the place behind it. */
  const read = (bytes, at) => {
    const first = bytes[at];
    if (first < 192) return [first, at + 1];
    if (first < 255) return [192 + ((first - 192) << 8) + bytes[at + 1], at + 2];
    return [(bytes[at + 1] << 16) + (bytes[at + 2] << 8) + bytes[at + 3], at + 4];
  };
  const textsOf = (words, count, bytes) => {
    const places = new Uint32Array(count);
    let at = 0;
    for (let n = 0; n < count; n += 1) {
      places[n] = at;
      let [left, next] = read(bytes, at);
      while (left--) next += bytes[next] < 192 ? 1 : bytes[next] < 255 ? 2 : 4;
      at = next;
    }
    const known = new Array(count);
    return (n) => {
      if (known[n] === undefined) {
        let [left, next] = read(bytes, places[n]);
        let made = "";
        while (left--) {
          const [word, behind] = read(bytes, next);
          made += words[word];
          next = behind;
        }
        known[n] = made;
      }
      return known[n];
    };
  };
  /* Everything beside the rows as it is; of each row an object that reads a value when it is asked for. */
  const data = async () => {
    const bytes = await bytesOf("data");
    const length = new DataView(bytes.buffer).getUint32(0);
    const { words, texts, values, shapes, kinds, rows, ...beside } = JSON.parse(text(bytes.subarray(4, 4 + length)));
    const textAt = textsOf(words, texts, bytes.subarray(4 + length));
    const readers = {};
    for (const key of kinds.texts) readers[key] = textAt;
    for (const key of kinds.pieces) readers[key] = (list) => list.map(textAt);
    for (const key of kinds.values) readers[key] = (n) => values[n];
    for (const key of kinds.mappings) readers[key] = (list) => Object.fromEntries(shapes[list[0]].map((name, i) => [name, list[i + 1]]));
    for (const key of kinds.textMappings) readers[key] = (list) => Object.fromEntries(shapes[list[0]].map((name, i) => [name, textAt(list[i + 1])]));
    const kindsOfRows = shapes.map((keys) => {
      const made = {};
      keys.forEach((key, i) => {
        const reader = readers[key];
        const get = reader ? function () { return reader(this.packed[i + 1]); } : function () { return this.packed[i + 1]; };
        Object.defineProperty(made, key, { get, enumerable: true });
      });
      return made;
    });
    const rowOf = (packed) => Object.create(kindsOfRows[packed[0]], { packed: { value: packed } });
    return { ...beside, rows: rows.map(rowOf) };
  };
  const script = async (id) => {
    const made = document.createElement("script");
    made.textContent = text(await bytesOf(id));
    document.head.append(made);
  };
  return { data, script };
})();
