'use strict';
// The page works on one state: layer, group and query, which the address has behind #, and the part of the map that is shown.
(() => {
const root = document.documentElement, $ = id => document.getElementById(id);
addEventListener('error', e => { root.dataset.error = e.message; });
const data = JSON.parse($('data').textContent);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const loss = data.loss ?? [];
const layers = new Map(data.layers.map(l => [l.layer, {groups: l.groups, n: l.n, blocks: Int32Array.from(l.blocks), shares: bytes(l.shares)}]));
const {tokens, next, size, windowSize} = data, S = tokens.length;
const state = {layer: 0, group: 0, query: S - 1, mode: layers.size || !loss.length ? 'blocks' : 'loss'};
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const percent = x => (100 * x).toFixed(x < 0.1 ? 1 : 0) + ' %';

// The blocks of a query: their places, the part of the attention on each, and whether every query has it.
function selected(layer, group, query) {
  const l = layers.get(layer), list = [];
  for (let i = (query * l.groups + group) * l.n, end = i + l.n; i < end; i++) {
    const block = l.blocks[i];
    if (block >= 0) list.push({block, share: l.shares[i] / 255, forced: block === 0 || block > Math.floor(query / size) - 2});
  }
  return list;
}

// signed returns text in which characters that cannot be seen have signs, which Go has written or which stand before a break or a tab.
const signed = text => text.split(/(\n|\t|[\u2400-\u2421]|⟨(?:U\+)?[0-9A-F]{2,6}⟩)/).map((part, i) => {
  if (i % 2 === 0) return part;
  const sign = element('i', 'sign', {'\n': '↵', '\t': '⇥'}[part] ?? part), both = document.createDocumentFragment();
  both.append(sign, part < ' ' ? part : '');
  return both;
});
// holder returns the token that shows the character of token t, which may be cut into several tokens.
const holder = t => { while (t > 0 && !tokens[t]) t--; return t; };
// named returns the text of token t, and the numbers of characters that have no shape of their own.
function named(t) {
  const h = holder(t);
  if (h !== t) return `inside ${named(h)}`;
  return /^[\p{M}\p{Cf}\p{Z}]+$/u.test(tokens[t]) && tokens[t] !== ' '
    ? [...tokens[t]].map(c => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`).join('') : tokens[t];
}

const spans = tokens.map((token, t) => {
  const span = element('span', '', signed(token));
  span.dataset.t = t;
  span.title = `token ${t}` + (loss.length && t ? `: loss ${loss[t].toFixed(2)} nats` : '');
  $('text').append(span);
  return span;
});
$('text').addEventListener('click', e => {
  const span = e.target.closest('[data-t]');
  if (span) choose({query: Number(span.dataset.t)});
});

// The words of the text, each with its first and last token.
const places = [], occurrences = [];
tokens.forEach((token, t) => { for (let i = 0; i < token.length; i++) places.push(t); });
for (const w of tokens.join('').matchAll(/[A-Za-z_]\w*/g)) {
  occurrences.push({word: w[0], first: places[w.index], last: places[w.index + w[0].length - 1]});
}
// sameWord returns the tokens of earlier occurrences of the word in which the query is.
function sameWord(query) {
  const own = occurrences.findLast(w => w.first <= query && query <= w.last), found = new Set();
  for (const w of own ? occurrences : []) {
    if (w.word === own.word && w.last < own.first) for (let t = w.first; t <= w.last; t++) found.add(t);
  }
  return found;
}

function showText() {
  document.body.classList.toggle('loss', state.mode === 'loss');
  const blocks = new Map(layers.size ? selected(state.layer, state.group, state.query).map(b => [b.block, b]) : []);
  const same = sameWord(state.query);
  const query = holder(state.query), blocksShown = state.mode === 'blocks' && layers.size > 0;
  spans.forEach((span, t) => {
    const b = t <= state.query && blocks.get(Math.floor(t / size)), list = [];
    let strength = '';
    if (state.mode === 'loss') {
      strength = clamp(loss[t] / 8, 0, 1);
      list.push('lost');
    } else if (b) {
      strength = b.forced ? b.share : Math.sqrt(b.share);
      list.push(b.forced ? 'forced' : 'free');
    }
    if (t === query && layers.size) list.push('query');
    if (blocksShown && t < state.query && t > state.query - windowSize) list.push('window');
    if (blocksShown && same.has(t)) list.push('same');
    span.className = list.join(' ');
    span.style.setProperty('--s', strength);
  });
}

const text = (from, to) => tokens.slice(Math.max(0, from), to).join('');
function element(name, className, content) {
  const e = document.createElement(name);
  e.className = className;
  e.append(...[].concat(content));
  return e;
}

// reveal scrolls the text, and not the page, to a token.
function reveal(t) {
  const box = $('text'), place = spans[t].offsetTop - box.offsetTop;
  if (place < box.scrollTop || place > box.scrollTop + box.clientHeight - 40) box.scrollTop = place - box.clientHeight / 2;
}

function showCards() {
  const list = selected(state.layer, state.group, state.query).sort((a, b) => b.share - a.share), q = state.query;
  const found = [...sameWord(q)].map(t => Math.floor(t / size));
  $('about').replaceChildren(`Query ${q}, behind `, element('code', '', signed([...text(q - 24, holder(q))].slice(-24).join(''))), element('code', 'key query', signed(named(q))),
    `, in layer ${state.layer}, group ${state.group}: ${list.length} blocks of ${size} tokens. The model expects `,
    element('code', '', signed(next[q])), `, with ${percent(data.nextShares[q])}` +
    (loss.length && q + 1 < S ? `; the loss of the token that follows is ${loss[q + 1].toFixed(2)} nats.` : '.'));
  $('cards').replaceChildren(...list.map(b => {
    const from = b.block * size, to = Math.min(q + 1, from + size), bar = element('div', 'bar', element('div', '', ''));
    bar.firstChild.style.width = `${100 * b.share}%`;
    const word = !b.forced && found.includes(b.block) ? ', the word stood here' : '';
    const card = element('div', 'card' + (b.forced ? '' : ' chosen') + (word ? ' here' : ''),
      [`block ${b.block}, ${b.forced ? 'forced' : 'selected'}: ${percent(b.share)}${word}`, bar, element('pre', '', signed(text(from, to)))]);
    card.onclick = () => reveal(from);
    return card;
  }));
}

// The map. x and y are the token and the query in its corner, and scale is 1 where all are shown.
const view = {x: 0, y: 0, scale: 1}, canvas = $('map');
const span = () => S / view.scale;
// ramp returns the colour of a cell: between two colours of the style, mixed in 64 steps.
function ramp(low, high) {
  const rgb = name => { // of a colour #rgb or #rrggbb
    const hex = style(name).slice(1).replace(/^(.)(.)(.)$/, '$1$1$2$2$3$3');
    return [0, 2, 4].map(i => parseInt(hex.slice(i, i + 2), 16));
  };
  const a = rgb(low), b = rgb(high), list = Array.from({length: 65}, (_, i) => `rgb(${a.map((x, k) => x + (b[k] - x) * i / 64).join(' ')})`);
  return share => list[Math.round(64 * clamp(share, 0, 1))];
}
const style = name => getComputedStyle(root).getPropertyValue(name).trim();
function drawMap() {
  const ratio = devicePixelRatio || 1, side = Math.max(1, Math.round(canvas.clientWidth * ratio));
  if (canvas.width !== side) canvas.width = canvas.height = side;
  const g = canvas.getContext('2d'), unit = side / span();
  const free = ramp('--map-low', '--map-high'), forced = ramp('--map-forced-low', '--map-forced-high');
  g.clearRect(0, 0, side, side);
  const X = t => (t - view.x) * unit, Y = t => (t - view.y) * unit;
  let cells = 0;
  const last = Math.min(S, Math.ceil(view.y + span()));
  for (let t = Math.max(0, Math.floor(view.y)); t < last; t++) {
    for (const b of selected(state.layer, state.group, t)) {
      const from = b.block * size, to = Math.min(t + 1, from + size);
      if (to <= view.x || from >= view.x + span()) continue;
      g.fillStyle = b.forced ? forced(b.share) : free(Math.sqrt(b.share));
      g.fillRect(X(from), Y(t), (to - from) * unit, unit);
      cells++;
    }
  }
  g.strokeStyle = style('--window');
  g.lineWidth = ratio;
  g.beginPath(); // the oldest token of the window
  g.moveTo(X(0), Y(windowSize - 1));
  g.lineTo(X(S - windowSize + 1), Y(S));
  g.stroke();
  g.strokeStyle = style('--ink');
  const y = Y(state.query), height = Math.max(unit, 2 * ratio);
  g.strokeRect(0.5, y - ratio / 2, side - 1, height + ratio);
  g.fillStyle = style('--ink');
  g.font = `${11 * ratio}px system-ui,sans-serif`;
  g.fillText(`query ${state.query}`, side - 78 * ratio, y > 60 * ratio ? y - 5 * ratio : y + height + 14 * ratio);
  const end = x => Math.min(S, Math.ceil(x + span())) - 1;
  $('range').textContent = `Across: blocks of tokens ${Math.floor(view.x)} to ${end(view.x)}. Down: queries ${Math.floor(view.y)} to ${end(view.y)}.`;
  root.dataset.cells = cells;
}
function zoom(factor, px, py) {
  const x = view.x + px * span(), y = view.y + py * span();
  view.scale = clamp(view.scale * factor, 1, Math.max(1, S / 24));
  view.x = clamp(x - px * span(), 0, S - span());
  view.y = clamp(y - py * span(), 0, S - span());
  canvas.style.touchAction = view.scale > 1 ? 'none' : 'pan-y';
  drawMap();
}
const at = e => { const r = canvas.getBoundingClientRect(); return [(e.clientX - r.left) / r.width, (e.clientY - r.top) / r.height]; };
const under = (px, py) => [clamp(Math.floor(view.x + px * span()), 0, S - 1), clamp(Math.floor(view.y + py * span()), 0, S - 1)];
if (canvas) {
  let drag = null;
  canvas.addEventListener('wheel', e => { e.preventDefault(); zoom(Math.exp(-e.deltaY / 300), ...at(e)); }, {passive: false});
  canvas.addEventListener('pointerdown', e => { drag = {from: at(e), x: view.x, y: view.y, moved: false}; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener('pointermove', e => {
    const [px, py] = at(e);
    if (drag) {
      drag.moved ||= Math.hypot(px - drag.from[0], py - drag.from[1]) > 0.01;
      view.x = clamp(drag.x - (px - drag.from[0]) * span(), 0, S - span());
      view.y = clamp(drag.y - (py - drag.from[1]) * span(), 0, S - span());
      drawMap();
      return;
    }
    const [key, query] = under(px, py), b = selected(state.layer, state.group, query).find(b => b.block === Math.floor(key / size));
    canvas.title = `query ${query}: …${text(query - 16, query + 1)}\n` + (b && key <= query
      ? `block ${b.block}, ${b.forced ? 'forced' : 'selected'}, ${percent(b.share)}: ${text(b.block * size, (b.block + 1) * size)}` : 'not selected here');
  });
  canvas.addEventListener('pointerup', e => {
    if (drag && !drag.moved) choose({query: under(...at(e))[1]});
    drag = null;
  });
  canvas.addEventListener('pointercancel', () => { drag = null; });
  $('in').onclick = () => zoom(1.6, 0.5, 0.5);
  $('out').onclick = () => zoom(1 / 1.6, 0.5, 0.5);
  $('all').onclick = () => zoom(1e-9, 0.5, 0.5);
  new ResizeObserver(drawMap).observe(canvas);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawMap);
  const fill = (select, list) => select.replaceChildren(...list.map(i => new Option(i, i)));
  fill($('layer'), [...layers.keys()]);
  fill($('group'), [...Array(layers.get(data.start.layer).groups).keys()]);
  $('query').max = S - 1;
  $('controls').addEventListener('submit', e => e.preventDefault());
  $('controls').addEventListener('input', () => choose({
    layer: Number($('layer').value), group: Number($('group').value), query: clamp(Math.trunc(Number($('query').value)), 0, S - 1),
    mode: document.querySelector('[name=mode]:checked')?.value ?? 'blocks'}, false));
  for (const e of [canvas, $('text')]) {
    e.addEventListener('keydown', k => {
      const step = {ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1}[k.key];
      if (!step) return;
      k.preventDefault();
      choose({query: clamp(state.query + step, 0, S - 1)});
    });
  }
}

// choose changes the state and shows it.
function choose(changes, controls = true) {
  Object.assign(state, changes);
  if (layers.size) {
    if (controls) for (const name of ['layer', 'group', 'query']) $(name).value = state[name];
    history.replaceState(null, '', `#layer=${state.layer}&group=${state.group}&query=${state.query}`);
    drawMap();
    showCards();
  }
  showText();
  reveal(state.query);
}
function follow() {
  const asked = new URLSearchParams(location.hash.slice(1)), changes = {};
  const most = {layer: Math.max(0, ...layers.keys()), group: (layers.get(data.start.layer)?.groups ?? 1) - 1, query: S - 1};
  for (const name of Object.keys(most)) {
    const value = asked.has(name) ? Number(asked.get(name)) : data.start[name];
    if (Number.isInteger(value)) changes[name] = clamp(value, 0, Math.max(0, most[name]));
  }
  if (!layers.has(changes.layer)) changes.layer = data.start.layer;
  choose(changes);
}
addEventListener('hashchange', follow);
follow();
root.dataset.tokens = spans.length;
root.dataset.ready = '1';
})();
