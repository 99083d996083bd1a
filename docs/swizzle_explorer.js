// The numbers are those of tvm_layout_ext.layout: tests/test_swizzle_explorer.py compares them.
"use strict";
const BANKS = 32, BANK_BYTES = 4, LANES = 32;

/** Where element (row, column) of a tile lies, counted in elements. */
function offset(swizzle, columns, row, column) {
  const [vec, perPhase, maxPhase] = swizzle;
  return row * columns + (column ^ (vec * (Math.floor(row / perPhase) % maxPhase) % columns));
}

/** The element at which each lane's access begins, or null for a lane that has none. */
function lanesOf(access, rows, columns, width) {
  const across = columns / width, lanes = [];
  for (let lane = 0; lane < LANES; ++lane) {
    const at = access === "along rows" ? [Math.floor(lane / across), lane % across * width]
      : access === "down a column" ? [lane % rows, Math.floor(lane / rows) * width]
      : [lane % 16, Math.floor(lane / 16) * width];
    lanes.push(at[0] < rows && at[1] < columns ? at : null);
  }
  return lanes;
}

/** Most different words in one bank. */
function deepest(words) {
  const banks = Array.from({length: BANKS}, () => new Set());
  for (const word of words) banks[word % BANKS].add(word);
  return Math.max(...banks.map(bank => bank.size));
}

function wordsOf(addresses, bytes) {
  const words = [];
  for (const address of addresses)
    if (address >= 0)
      for (let word = Math.floor(address / BANK_BYTES); word * BANK_BYTES < address + bytes; ++word) words.push(word);
  return words;
}

/** Lanes that the memory serves together. */
function phases(addresses, bytes, isStore) {
  const lanes = LANES * BANK_BYTES / Math.max(BANK_BYTES, bytes), found = [];
  const paired = (from, distance) => addresses.slice(from, from + 2 * lanes).every((address, lane) => {
    const other = addresses[from + (lane ^ distance)];
    return address === other || address < 0 || other < 0;
  });
  for (let from = 0; from < LANES; from += 2 * lanes) {
    const both = addresses.slice(from, from + 2 * lanes);
    const joins = bytes > BANK_BYTES && !isStore && (paired(from, 1) || paired(from, 2))
      && deepest(wordsOf(both, bytes)) <= 1;
    if (joins || lanes === LANES) found.push([from, Math.min(LANES, from + 2 * lanes)]);
    else found.push([from, from + lanes], [from + lanes, from + 2 * lanes]);
  }
  return found;
}

/** Wavefronts of a request; a lane's byte address is -1 where it is idle. */
function wavefronts(addresses, bytes, isStore) {
  let total = 0;
  for (const [from, end] of phases(addresses, bytes, isStore))
    total += deepest(wordsOf(addresses.slice(from, end), bytes));
  return total;
}

/** A request of a tile: addresses, wavefronts, and the least that plain neighbours would take. */
function request({rows, columns, bits, swizzle, access, bytes}) {
  const width = Math.max(1, bytes * 8 / bits), isStore = access === "along rows";
  const lanes = lanesOf(access, rows, columns, width);
  const addresses = lanes.map(at => at ? offset(swizzle, columns, ...at) * bits / 8 : -1);
  // A vector stays whole only where the swizzle moves whole ones.
  const isWhole = swizzle[0] >= width || swizzle[2] === 1;
  const least = phases(addresses, bytes, isStore).filter(([from, end]) =>
    addresses.slice(from, end).some(address => address >= 0)).length;
  return {lanes, addresses, isWhole, least, wavefronts: wavefronts(addresses, bytes, isStore)};
}

const CHOICES = {
  bits: ["bits of an element", [8, 16, 32, 64], 16],
  rows: ["rows", [8, 16, 32, 64], 16],
  columns: ["columns", [8, 16, 32, 64, 128], 32],
  vec: ["vec", [1, 2, 4, 8, 16, 32], 8],
  perPhase: ["per phase", [1, 2, 4, 8], 2],
  maxPhase: ["max phase", [1, 2, 4, 8, 16, 32], 4],
  access: ["access", ["along rows", "down a column", "ldmatrix"], "ldmatrix"],
  bytes: ["bytes a lane", [1, 2, 4, 8, 16], 16],
};
const STYLE = `#explorer .choices { display: flex; flex-wrap: wrap; gap: 10px; }
#explorer label { font-size: 13px; } #explorer select { display: block; font: inherit; padding: 3px 6px;
  color: inherit; background: var(--md-default-bg-color, Canvas); border: 1px solid #8888; border-radius: 4px; }
#explorer .tile { overflow: auto; margin: 12px 0; }
#explorer .row { display: flex; width: max-content; }
#explorer .row > * { width: 30px; height: 24px; flex: none; font: 11px/22px monospace; text-align: center;
  color: #111; border: 1px solid #fff8; opacity: 0.45; }
#explorer .row > b { color: inherit; opacity: 0.7; border-color: transparent; }
#explorer .row > .lane { opacity: 1; border: 2px solid #111; font-weight: 700; line-height: 20px; }
#explorer .row > .extra { border-color: #c00; color: #c00; }`;

function shown(chosen) {
  const swizzle = [chosen.vec, chosen.perPhase, chosen.maxPhase];
  const asked = {...chosen, swizzle, bytes: chosen.access === "ldmatrix" ? 16 : chosen.bytes};
  if (asked.bytes * 8 < chosen.bits) return {problem: "A lane moves whole elements: take more bytes a lane."};
  if (asked.bytes * 8 > chosen.bits * chosen.columns) return {problem: "A row is shorter than what a lane moves."};
  const found = request(asked);
  if (!found.isWhole) return {problem: `A lane's ${asked.bytes} bytes are not whole under vec = ${chosen.vec}: `
    + `take vec = ${asked.bytes * 8 / chosen.bits} or more.`};
  return {...asked, ...found};
}

/** Lanes that meet a bank which an earlier lane of their phase has for another word. */
function crowded({addresses, bytes, access}) {
  const extra = new Set();
  for (const [from, end] of phases(addresses, bytes, access === "along rows")) {
    const taken = new Map();
    for (let lane = from; lane < end; ++lane)
      for (const word of wordsOf([addresses[lane]], bytes)) {
        if (taken.has(word % BANKS) && taken.get(word % BANKS) !== word) extra.add(lane);
        else taken.set(word % BANKS, word);
      }
  }
  return extra;
}

function drawTile(tile, found) {
  const width = Math.max(1, found.bytes * 8 / found.bits), extra = crowded(found);
  const lanes = new Map(found.lanes.map((at, lane) => [String(at), lane]));
  for (let row = 0; row < found.rows; ++row) {
    const line = tile.appendChild(Object.assign(document.createElement("div"), {className: "row"}));
    line.append(Object.assign(document.createElement("b"), {textContent: row}));
    for (let column = 0; column < found.columns; column += width) {
      const address = offset(found.swizzle, found.columns, row, column) * found.bits / 8;
      const bank = Math.floor(address / BANK_BYTES) % BANKS, lane = lanes.get(String([row, column]));
      const cell = document.createElement("i");
      cell.style.background = `hsl(${bank * 360 / BANKS} 60% 80%)`;
      cell.textContent = bank;
      cell.title = `row ${row}, column ${column}: byte ${address}, bank ${bank}`
        + (lane === undefined ? "" : `, lane ${lane}`);
      cell.className = lane === undefined ? "" : extra.has(lane) ? "lane extra" : "lane";
      line.append(cell);
    }
  }
}

function build(root) {
  root.textContent = "";
  root.append(Object.assign(document.createElement("style"), {textContent: STYLE}));
  const choices = root.appendChild(Object.assign(document.createElement("div"), {className: "choices"}));
  const told = root.appendChild(document.createElement("p"));
  told.setAttribute("aria-live", "polite");
  const tile = root.appendChild(Object.assign(document.createElement("div"), {className: "tile", tabIndex: 0}));
  const line = root.appendChild(document.createElement("pre")).appendChild(document.createElement("code"));
  const selects = {};
  const draw = () => {
    const chosen = Object.fromEntries(Object.entries(selects).map(([name, select]) =>
      [name, name === "access" ? select.value : Number(select.value)]));
    const found = shown(chosen);
    tile.textContent = "";
    line.textContent = `sch.swizzle(block, (${chosen.vec}, ${chosen.perPhase}, ${chosen.maxPhase}))`;
    told.textContent = found.problem || `${found.wavefronts} wavefronts a request, the least is ${found.least}: `
      + `${found.wavefronts - found.least} bank conflicts.`;
    if (!found.problem) drawTile(tile, found);
  };
  for (const [name, [title, values, usual]] of Object.entries(CHOICES)) {
    const label = choices.appendChild(Object.assign(document.createElement("label"), {textContent: title}));
    const select = selects[name] = label.appendChild(document.createElement("select"));
    for (const value of values) select.append(new Option(value, value, value === usual, value === usual));
    select.addEventListener("change", draw);
  }
  draw();
}

if (typeof document !== "undefined") {
  const root = document.getElementById("explorer");
  if (root) build(root);
}
