// Dropped files and folders.

/** Return all dropped files, including those in folders, which are sorted by name. */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files];
  return (await Promise.all(entries.map(filesOf))).flat();
}

async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const entries = [];
  for (let some = [0]; some.length; ) {
    some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // at most 100 at once
    entries.push(...some);
  }
  entries.sort((a, b) => a.name.localeCompare(b.name));
  return (await Promise.all(entries.map(filesOf))).flat();
}
