/* A page of many answers: points of a picture lead to the answers, of which one is shown and two are compared.
   What the picture draws is what the table has; texts reach the page as text, details as the page's maker escaped them. */
(() => {
  'use strict';
  const { $, $$, axes, colour, data, differences, make, mark, play, save, say, start } = apss;
  const SHAPES = ['●', '■', '▲', '◆'], COLOURS = 7, NEAR = 22, LOGARITHMIC = 12;
  const heads = $$('#pick thead th');
  const columns = heads.map((head, at) => ({ at, name: head.textContent, ...head.dataset })).filter(({ better }) => better);
  const cells = $$('#pick tbody tr').map(row => ({
    row, name: $('th', row).textContent, line: row.dataset.line, task: row.dataset.task,
    place: Number(row.dataset.place), texts: [...row.cells].map(cell => cell.textContent),
    numbers: [...row.cells].map(cell => cell.dataset.sort === undefined ? null : Number(cell.dataset.sort)),
  }));
  const some = ({ numbers }) => columns.some(({ at }) => numbers[at] !== null);
  const lines = [...new Set(cells.filter(some).map(({ line }) => line))];
  const state = { pick: data.first, versus: -1, spot: -1, chart: null, hidden: new Set() };
  const shape = line => SHAPES[lines.indexOf(line) % SHAPES.length];
  const ink = line => 'c' + (1 + lines.indexOf(line) % COLOURS);
  const link = cell => make('a', { href: '#' + address(cell.place) }, cell.name);
  const address = place => `${data.what}-${place + 1}`;

  // What is drawn: answers that have both numbers, that the filter leaves and whose line is not switched off.
  const axis = key => columns[$('#' + key).selectedIndex];
  const drawn = () => {
    const [x, y] = [axis('across').at, axis('up').at];
    return cells.filter(({ row, line, numbers }) =>
      !row.hidden && !state.hidden.has(line) && numbers[x] !== null && numbers[y] !== null)
      .map(cell => ({ cell, x: cell.numbers[x], y: cell.numbers[y] }));
  };
  // Of each task the points that no other is better than in one measure and no worse in both.
  const fronts = points => {
    const signs = [axis('across'), axis('up')].map(({ better }) => better === 'lower' ? 1 : -1);
    const gain = ({ x, y }) => [x * signs[0], y * signs[1]];
    const beats = (one, two) => {
      const [a, b] = [gain(one), gain(two)];
      return a[0] <= b[0] && a[1] <= b[1] && (a[0] < b[0] || a[1] < b[1]);
    };
    const tasks = [...new Set(points.map(({ cell }) => cell.task))];
    return tasks.map(task => {
      const own = points.filter(({ cell }) => cell.task === task);
      const best = own.filter(one => !own.some(other => beats(other, one)));
      return { task, best: best.sort((one, two) => one.x - two.x || one.y - two.y) };
    });
  };
  const told = ({ cell }) => {
    const [up, across] = [axis('up'), axis('across')].map(({ at, name }) => `${name} ${cell.texts[at]}`);
    return say('{name} ({line}): {up}, {across}. {plan}', { name: cell.name, line: cell.line, up, across, plan: cell.texts.at(-1) });
  };

  const range = values => {
    const low = Math.min(...values), high = Math.max(...values), log = low > 0 && high > LOGARITHMIC * low;
    if (log) return { log, ends: [low / 1.2, high * 1.2] };
    const wide = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    const from = low >= 0 && low < (high - low) * 1.5 ? 0 : low - wide;
    return { log, ends: [from, high + wide] };
  };
  const short = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 4 });
  const scale = ({ log }) => ({ time: false, distr: log ? 3 : 1, range: (_, min, max) => [min, max] });
  const titled = (key, { log }, narrow, size) => {
    const { name, unit } = axis(key);
    const words = unit && !name.includes(unit) ? `${name} (${unit})` : name, written = (_, at) => at.map(short.format);
    const made = { ...axes(narrow), label: words, labelFont: '13px system-ui, sans-serif', labelSize: 24, size, values: written };
    return log ? { ...made, splits: (_, at, min, max) => round(min, max), filter: (_, at) => at } : made;
  };
  // 1, 2 and 5 times powers of ten; of many the powers alone.
  const round = (min, max) => {
    const powers = [];
    for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power++) powers.push(10 ** power);
    const steps = powers.length > 4 ? [1] : [1, 2, 5];
    return powers.flatMap(power => steps.map(step => step * power)).filter(value => value >= min && value <= max);
  };

  const path = (ctx, mark_, x, y, r) => {
    ctx.beginPath();
    if (mark_ === '●') ctx.arc(x, y, r, 0, 2 * Math.PI);
    else if (mark_ === '■') ctx.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
    else {
      const ways = mark_ === '▲' ? [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]] : [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]];
      ways.forEach(([across, down], at) => ctx[at ? 'lineTo' : 'moveTo'](x + across * r, y + down * r));
      ctx.closePath();
    }
  };
  const paint = (chart, points) => {
    const { ctx } = chart, ratio = uPlot.pxRatio, { left, top, width, height } = chart.bbox;
    const at = ({ x, y }) => [chart.valToPos(x, 'x', true), chart.valToPos(y, 'y', true)];
    const way = (found, stroke, thick, dash) => {
      ctx.strokeStyle = stroke;
      ctx.lineWidth = thick * ratio;
      ctx.setLineDash(dash.map(size => size * ratio));
      ctx.beginPath();
      found.forEach((point, place) => ctx[place ? 'lineTo' : 'moveTo'](...at(point)));
      ctx.stroke();
      ctx.setLineDash([]);
    };
    const ring = (point, stroke, r, thick) => {
      ctx.strokeStyle = stroke;
      ctx.lineWidth = thick * ratio;
      ctx.beginPath();
      ctx.arc(...at(point), r * ratio, 0, 2 * Math.PI);
      ctx.stroke();
    };
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    if (axis('across').size) for (const line of lines)
      way(points.filter(({ cell }) => cell.line === line).sort((one, two) => one.x - two.x), colour(ink(line)), 1.2, []);
    const found = fronts(points);
    for (const { best } of found) way(best, colour('ink'), 1, [5, 4]);
    for (const point of points) {
      ctx.fillStyle = colour(ink(point.cell.line));
      path(ctx, shape(point.cell.line), ...at(point), 4.5 * ratio);
      ctx.fill();
    }
    for (const point of found.flatMap(({ best }) => best)) ring(point, colour('ink'), 7, 1.2);
    for (const point of points) {
      if (point.cell.place === state.pick) ring(point, colour('accent'), 10, 3);
      if (point.cell.place === state.spot) ring(point, colour('dim'), 13, 2);
    }
    ctx.restore();
  };

  const look = (point, readout) => {
    state.spot = point ? point.cell.place : -1;
    if (point) readout.textContent = told(point);
    state.chart.redraw(false);
  };
  const nearest = (chart, points) => {
    const { left, top } = chart.cursor;
    let found = null, least = NEAR;
    for (const point of points) {
      const far = Math.hypot(chart.valToPos(point.x, 'x') - left, chart.valToPos(point.y, 'y') - top);
      if (far < least) [found, least] = [point, far];
    }
    return found;
  };
  const keys = (box, points, readout) => event => {
    const by = { ArrowLeft: ['x', -1], ArrowRight: ['x', 1], ArrowDown: ['y', -1], ArrowUp: ['y', 1] }[event.key];
    const spot = points.find(({ cell }) => cell.place === state.spot);
    if (event.key === 'Enter' && spot) go(spot.cell.place);
    else if (by) {
      const [main, other] = by[0] === 'x' ? ['x', 'y'] : ['y', 'x'];
      const order = [...points].sort((one, two) => one[main] - two[main] || one[other] - two[other]);
      const first = order.find(({ cell }) => cell.place === state.pick) ?? order[0];
      look(spot ? order[Math.max(0, Math.min(order.length - 1, order.indexOf(spot) + by[1]))] : first, readout);
    } else return;
    event.preventDefault();
  };

  const draw = () => {
    state.chart?.destroy();
    state.chart = null;
    const points = drawn(), box = $('#charts'), readout = $('#picture .readout');
    listFronts(points);
    box.replaceChildren();
    if (!points.length) {
      box.append(make('p', {}, say('Nothing that is shown has both figures.')));
      return;
    }
    const named = { up: axis('up').name, across: axis('across').name, what: $('#pick thead th.name').textContent };
    const group = make('div', { class: 'chart points', tabindex: 0, role: 'group', 'data-chart': 'points',
      'aria-label': say('{up} against {across}: arrow keys go from {what} to {what}, Enter shows its plan', named) });
    box.append(group);
    const width = Math.max(280, group.clientWidth), narrow = width < 600;
    const [x, y] = [range(points.map(point => point.x)), range(points.map(point => point.y))];
    let pressed = null;
    state.chart = new uPlot({
      width, height: narrow ? 320 : 440,
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: true, y: true, uni: 30, dist: 6 } },
      scales: { x: scale(x), y: scale(y) },
      axes: [titled('across', x, narrow, 40), titled('up', y, narrow, 60)],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [chart => paint(chart, points)],
        setCursor: [chart => {
          if (chart.cursor.left < 0 || !chart.over.matches(':hover')) return;
          const point = nearest(chart, points);
          chart.over.classList.toggle('near', Boolean(point));
          if ((point?.cell.place ?? -1) !== state.spot) look(point, readout);
        }],
      },
    }, [x.ends, y.ends], group);
    group.onkeydown = keys(group, points, readout);
    const { over } = state.chart;
    over.onpointerdown = event => { pressed = [event.clientX, event.clientY]; };
    over.onclick = event => {
      const still = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) < 6;
      const { left, top } = over.getBoundingClientRect();
      const chart = { cursor: { left: event.clientX - left, top: event.clientY - top }, valToPos: state.chart.valToPos };
      const point = still && nearest(chart, points);
      if (point) go(point.cell.place);
    };
  };
  // The front in words too: a picture is not for everybody.
  const listFronts = points => {
    const found = fronts(points), several = found.length > 1;
    const [up, across] = [axis('up'), axis('across')];
    const wish = ({ name, better }) => better === 'lower' ? say('lower {name}', { name }) : say('higher {name}', { name });
    const none = say('No other has both {up} and {across}', { up: wish(up), across: wish(across) });
    $('#front').replaceChildren(...(points.length ? [make('h3', {}, none)] : []),
      ...found.map(({ task, best }) => {
        const names = best.flatMap(({ cell }, at) => [...(at ? [' · '] : []), link(cell)]);
        return make('p', {}, ...(several ? [make('strong', {}, say('{task}: ', { task }))] : []), ...names);
      }));
  };

  // What is picked.
  const figures = ({ name, texts, numbers }) => ({ title: name, figures: heads.map(
    (head, at) => [head.textContent, texts[at], numbers[at]]).filter((_, at) => heads[at].cellIndex > 2) });
  const show = () => {
    const cell = cells[state.pick], box = $('#detail'), versus = $('#versus');
    mark('place', state.pick);
    for (const radio of $$('#pick input[type=radio]')) radio.checked = Number(radio.value) === state[radio.name];
    const parts = new DOMParser().parseFromString(state.details[state.pick], 'text/html').body.childNodes;
    const back = make('p', { class: 'back' }, make('a', { href: '#picture' }, say('Back to the picture')));
    box.replaceChildren(make('h2', { tabindex: -1, id: 'detail-title' }, cell.name), ...parts, back);
    versus.replaceChildren();
    if (state.versus >= 0 && state.versus !== state.pick) differences(versus, figures(cell), figures(cells[state.versus]));
    state.chart?.redraw(false);
  };
  const go = place => {
    if (location.hash === '#' + address(place)) arrive(); else location.hash = address(place);
  };
  const arrive = () => {
    const place = cells.findIndex(cell => '#' + address(cell.place) === location.hash);
    if (place < 0) return;
    state.pick = place;
    show();
    $('#detail-title').focus();
    $('#detail-title').scrollIntoView();
  };

  const switches = () => {
    if (lines.length < 2) return;
    $('#lines').append(...lines.map(line => {
      const swatch = make('span', { 'aria-hidden': 'true' }, shape(line) + ' ');
      swatch.style.color = `var(--${ink(line)})`;
      const button = make('button', { type: 'button', 'aria-pressed': 'true' }, swatch, line);
      button.onclick = () => {
        const off = !state.hidden.delete(line);
        if (off) state.hidden.add(line);
        button.setAttribute('aria-pressed', String(!off));
        draw();
      };
      return button;
    }));
  };
  const open = found => {
    state.details = found.details;
    for (const [key, at] of [['across', data.axes[0]], ['up', data.axes[1]]]) {
      $('#' + key).append(...columns.map(({ name }) => make('option', {}, name)));
      $('#' + key).selectedIndex = Math.max(0, columns.findIndex(column => column.at === at + 3));
      $('#' + key).onchange = draw;
    }
    for (const cell of cells) $('th', cell.row).replaceChildren(link(cell));
    $('#pick table').addEventListener('filtered', draw);
    $('#save-json').onclick = () => save(data.file + '.json', JSON.stringify(found.document, null, 2));
    $('#save-csv').onclick = () => save(data.file + '.csv', found.csv, 'text/csv');
    switches();
    addEventListener('hashchange', arrive);
    play(state, () => { show(); if (!state.chart) draw(); }, draw);
    arrive();
  };
  start(cells.length ? data.packed : null, open);
})();
