/* What every page to play with has: texts that reach it as text only, tables to sort and filter, files to save. */
const apss = (() => {
  'use strict';
  const $ = (query, root = document) => root.querySelector(query);
  const $$ = (query, root = document) => [...root.querySelectorAll(query)];
  const data = JSON.parse($('#data').textContent);
  // The page's language: a table by the English, for a page in another one.
  const words = JSON.parse($('#words')?.textContent ?? '{}');
  const say = (text, values = {}) => (words[text] ?? text).replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const make = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  const axes = narrow => {
    const line = { stroke: colour('line'), width: 1 }, font = '12px system-ui, sans-serif';
    return { stroke: colour('dim'), font, grid: line, ticks: line, space: narrow ? 70 : 90 };
  };

  // Files and the clipboard.
  const save = (name, content, type = 'application/json') => {
    const url = URL.createObjectURL(new Blob([content], { type }));
    const link = make('a', { href: url, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  const copy = async (text, button) => {
    const before = button.textContent;
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make('textarea', { class: 'off' });
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand('copy');
      area.remove();
    }
    $('#said').textContent = done ? say('Copied.') :
      say('The browser does not allow it: open the text below and copy it.');
    button.textContent = done ? say('Copied') : before;
    setTimeout(() => { button.textContent = before; }, 1500);
  };

  // Tables: a click on a head sorts, a word above filters.
  const value = cell => {
    const given = cell.dataset.sort ?? cell.textContent.replace(/[,\s%]/g, '');
    return given !== '' && Number.isFinite(Number(given)) ? Number(given) : cell.textContent.trim();
  };
  const before = (one, two) => {
    const numbers = [typeof one === 'number', typeof two === 'number'];
    if (numbers[0] && numbers[1]) return one - two;
    if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1;
    return one.localeCompare(two, 'en', { numeric: true });
  };
  const sortable = table => {
    const heads = $$('thead th', table), body = $('tbody', table);
    heads.forEach(head => {
      const column = head.cellIndex;
      if (!head.textContent.trim() || head.dataset.still) return;
      const button = make('button', { type: 'button' }, ...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const down = head.getAttribute('aria-sort') === 'ascending';
        for (const other of heads) other.removeAttribute('aria-sort');
        head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
        const rows = [...body.rows].map(row => [value(row.cells[column]), row]);
        rows.sort(([one], [two]) => (down ? -1 : 1) * before(one, two));
        body.append(...rows.map(([, row]) => row));
      };
    });
    if (body.rows.length > 4) {
      const input = make('input', { type: 'search', placeholder: say('words to look for') });
      const count = make('span', { class: 'dim', 'aria-live': 'polite' });
      input.oninput = () => {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        let left = 0;
        for (const row of body.rows) {
          const text = [...row.cells].map(cell => cell.textContent).join(' ').toLowerCase();
          row.hidden = !words.every(word => text.includes(word));
          left += !row.hidden;
        }
        count.textContent = words.length ? say(' {left} of {all}', { left, all: body.rows.length }) : '';
        table.dispatchEvent(new Event('filtered'));
      };
      (table.closest('.scroll') ?? table).before(make('label', { class: 'filter' }, say('Filter '), input, count));
    }
  };
  $$('table.sortable').forEach(sortable);

  // Two things side by side in numbers: of each figure its name, its words and its number, if it has one.
  const differences = (box, one, two) => {
    const head = make('tr', {}, make('td'), ...[one.title, two.title, say('difference')].map(
      text => make('th', { scope: 'col' }, text)));
    const rows = one.figures.map(([name, text, value], at) => {
      const [, other, than] = two.figures[at], change = value ? (than / value - 1) * 100 : null;
      const by = value === than ? '=' : change == null || than == null || !Number.isFinite(change) ? '–' :
        `${change > 0 ? '+' : ''}${change.toFixed(1)} %`;
      return make('tr', {}, make('th', { scope: 'row' }, name), ...[text, other, by].map(cell => make('td', {}, cell)));
    });
    const table = make('table', { class: 'numbers' }, make('thead', {}, head), make('tbody', {}, ...rows));
    const title = say('{one} against {two}', { one: one.title, two: two.title });
    box.replaceChildren(make('h3', {}, title),
      make('div', { class: 'scroll', role: 'region', tabindex: 0, 'aria-label': title }, table));
  };

  // What the script makes of the page: what it alone can do is shown, and the picks say which row is meant.
  const play = (state, show, redraw) => {
    document.documentElement.classList.add('plays');  // the style sheet hides what the charts stand for
    for (const part of $$('.live')) part.hidden = false;
    for (const radio of $$('#pick input[type=radio]')) radio.onchange = () => {
      state[radio.name] = Number(radio.value);
      show();
    };
    show();
    let width = innerWidth;
    addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  };
  const mark = (name, picked) => {
    for (const row of $$('#pick tbody tr')) row.classList.toggle('picked', Number(row.dataset[name]) === picked);
  };

  const ready = () => { document.documentElement.dataset.ready = 'yes'; };
  const unpack = async text => {
    const bytes = Uint8Array.from(atob(text), sign => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
    return JSON.parse(await new Response(stream).text());
  };
  // A browser that is too old to unpack shows what the page shows without a script.
  const start = (packed, then) => {
    if (packed && 'DecompressionStream' in window) unpack(packed).then(found => { then(found); ready(); });
    else ready();
  };
  return { $, $$, axes, colour, copy, data, differences, make, mark, play, save, say, sortable, start };
})();
