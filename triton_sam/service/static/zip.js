// Writes ZIP files without compression, and reads its own files. The layout is that of PKWARE's APPNOTE.TXT.

const TABLE = Int32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});
const LOCAL = 0x04034b50;
const CENTRAL = 0x02014b50;
const END = 0x06054b50;
const UTF8 = 0x0800;
const YEAR_1980 = 0x0021; // the format's first date; the files need no date
const STORED = 0;
const HEAD = 30; // bytes before the name of a file

/** Return a ZIP as Blob. ``files``: [{name, content}] with content as Blob, bytes, or text. */
export async function zip(files) {
  const [parts, directory] = [[], []];
  let at = 0;
  for (const { name, content } of files) {
    const bytes = new Uint8Array(await new Blob([content]).arrayBuffer());
    const title = new TextEncoder().encode(name);
    const common = [short(20), short(UTF8), short(STORED), short(0), short(YEAR_1980), long(checksum(bytes))];
    common.push(long(bytes.length), long(bytes.length), short(title.length), short(0));
    const attributes = [short(0), short(0), short(0), long(0), long(at)];
    directory.push(long(CENTRAL), short(20), ...common, ...attributes, title);
    parts.push(long(LOCAL), ...common, title, bytes);
    at += HEAD + title.length + bytes.length;
  }
  if (at > 0xffffffff || files.length > 0xffff) throw new Error("more than 4 GB or 65535 files do not fit into one ZIP");
  const list = new Blob(directory);
  const count = short(files.length);
  const end = [long(END), short(0), short(0), count, count, long(list.size), long(at), short(0)];
  return new Blob([...parts, list, ...end], { type: "application/zip" });
}

/** Return the files of a ZIP that zip() wrote, as Map of name -> Blob. Any other ZIP is an error. */
export async function unzip(blob) {
  const part = (start, length) => blob.slice(start, start + length).arrayBuffer(); // a browser reads at most 2 GB at once
  const files = new Map();
  let at = 0;
  for (;;) {
    const head = new DataView(await part(at, HEAD));
    if (head.byteLength < HEAD || head.getUint32(0, true) !== LOCAL) break;
    const [length, title] = [head.getUint32(18, true), head.getUint16(26, true)];
    const start = at + HEAD + title + head.getUint16(28, true);
    const content = new Uint8Array(await part(start, length));
    const isWhole = content.length === length && checksum(content) === head.getUint32(14, true);
    if (head.getUint16(8, true) !== STORED || !isWhole) throw new Error("the file is damaged, or another program packed it");
    files.set(new TextDecoder().decode(await part(at + HEAD, title)), new Blob([content]));
    at = start + length;
  }
  const next = new DataView(await part(at, 4));
  if (next.byteLength < 4 || next.getUint32(0, true) !== CENTRAL) throw new Error("not a ZIP file, or incomplete");
  return files;
}

function short(value) {
  return new Uint8Array([value & 255, value >>> 8]);
}

function long(value) {
  return new Uint8Array([value & 255, (value >>> 8) & 255, (value >>> 16) & 255, value >>> 24]);
}

/** CRC-32 as in the appendix of the PNG specification; ZIP uses the same one. */
export function checksum(bytes) {
  let value = -1;
  for (const byte of bytes) value = (value >>> 8) ^ TABLE[(value ^ byte) & 255];
  return ~value >>> 0;
}
