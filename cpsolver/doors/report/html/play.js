/* The page to play with: plans are picked and compared, time is zoomed, tables are sorted and filtered.
   Texts reach the page as text only; without this script the page shows the first plan, and nothing is missing. */
(() => {
  'use strict';
  const { $, $$, axes, colour, copy, data, differences, make, mark, play, save, say, start } = apss;
  const plans = data.plans;
  const state = { pick: 0, versus: -1, charts: [] };

  const seconds = (value, of = value) => {
    const digits = { minimumFractionDigits: 0, maximumFractionDigits: of < 1e-3 ? 1 : of < 1 ? 2 : 3 };
    const [size, unit] = of < 1e-3 ? [1e6, 'µs'] : of < 1 ? [1e3, 'ms'] : [1, 's'];
    return (value * size).toLocaleString('en', digits) + ' ' + unit;
  };
  const COLOURS = {
    forward: 'forward', recompute: 'c3', backward: 'backward', data_parallel: 'c6', optimizer: 'c7', idle: 'idle',
  };

  // A plan's step: for every stage when each span starts and ends, of what kind it is, and its microbatch and chunk.
  const decode = plan => plan.rows.map(row => {
    const count = row.length / 2, ends = new Float64Array(count), starts = new Float64Array(count);
    const of = new Array(count), which = new Int32Array(count);
    let now = 0;
    for (let at = 0; at < count; at++) {
      of[at] = plan.spans[row[2 * at]];
      which[at] = row[2 * at + 1];
      starts[at] = now * 1e-9;
      now += of[at][1];
      ends[at] = now * 1e-9;
    }
    return { count, starts, ends, of, which };
  });
  const stepOf = plan => (plan.decoded ??= decode(plan));
  const endOf = plan => Math.max(...stepOf(plan).map(row => row.ends[row.count - 1]));
  const place = (row, time) => {  // the span that is under way
    let low = 0, high = row.count - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.ends[middle] <= time) low = middle + 1; else high = middle;
    }
    return low;
  };
  const told = (plan, stage, at) => {
    const row = stepOf(plan)[stage], [kind, , weights] = row.of[at], which = row.which[at];
    const name = weights ? say('weights’ gradients') : say(data.kinds[kind]);
    const chunk = plan.vpp > 1 ? say(', chunk {chunk}', { chunk: which % plan.vpp }) : '';
    const microbatch = which < 0 ? '' :
      say(' of microbatch {number}{chunk}', { number: Math.floor(which / plan.vpp), chunk });
    const whole = endOf(plan), from = seconds(row.starts[at], whole), to = seconds(row.ends[at], whole);
    return say('{plan}, stage {stage}: {name}{microbatch}, {from} to {to} ({time})', { plan: plan.title, from, to,
      stage: plan.stages[stage], name, microbatch, time: seconds(row.ends[at] - row.starts[at]) });
  };

  // Charts. All of them share one window of time, so that two plans can be compared.
  const full = () => Math.max(...shown().map(number => endOf(plans[number])));
  const shown = () => [state.pick, ...(state.versus >= 0 && state.versus !== state.pick ? [state.versus] : [])];
  let zooming = false;
  const zoom = (min, max) => {
    const end = full(), span = Math.min(end, Math.max(max - min, end * 1e-5));
    const from = Math.max(0, Math.min(min, end - span));
    zooming = true;
    for (const { chart } of state.charts) chart.setScale('x', { min: from, max: from + span });
    zooming = false;
    const whole = span >= end * 0.9999;
    $('#window').textContent = whole ? say('All of it: {end}', { end: seconds(end) }) :
      say('{from} to {to} of {end}', { from: seconds(from, end), to: seconds(from + span, end), end: seconds(end) });
  };
  const window_ = () => {
    const { min, max } = state.charts[0].chart.scales.x;
    return [min, max];
  };
  const zoomBy = (factor, around) => {
    const [min, max] = window_(), middle = around ?? (min + max) / 2;
    zoom(middle - (middle - min) * factor, middle + (max - middle) * factor);
  };
  const move = share => {
    const [min, max] = window_(), by = (max - min) * share;
    zoom(min + by, max + by);
  };

  const shared = (width, height) => ({
    width, height,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false, dist: 4 }, points: { show: false },
      sync: { key: 'time', scales: ['x', null] } },
    hooks: {
      setScale: [(chart, key) => {
        if (key === 'x' && !zooming && state.charts.some(one => one.chart === chart))
          zoom(chart.scales.x.min, chart.scales.x.max);
      }],
    },
  });
  const timeAxis = narrow => ({ ...axes(narrow), values: (chart, values) => {
    const of = chart.scales.x.max - chart.scales.x.min;
    return values.map(value => of < 0.2 ? (value * 1e3).toFixed(of < 0.005 ? 2 : 0) + ' ms' : +value.toFixed(3) + ' s');
  } });

  const timeline = (box, plan, readout) => {
    const width = Math.max(280, box.clientWidth), narrow = width < 600, rows = stepOf(plan), count = rows.length;
    const lane = Math.max(5, Math.min(26, 640 / count));
    const labels = Math.ceil(count / Math.max(1, Math.floor(count * lane / 16)));
    const base = shared(width, Math.round(count * lane) + 52);
    const paint = chart => {
      const { ctx } = chart, ratio = uPlot.pxRatio, { left, top, width: wide } = chart.bbox;
      const { min, max } = chart.scales.x, colours = Object.fromEntries(
        Object.entries(COLOURS).map(([kind, name]) => [kind, colour(name)]));
      const high = chart.bbox.height / count, gap = Math.min(ratio * 2, high * 0.15), scale = wide / (max - min);
      const [dark, light] = ['#0f2442', '#ffffff'];
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, top, wide, chart.bbox.height);
      ctx.clip();
      ctx.textAlign = 'center';
      ctx.textBaseline = 'middle';
      ctx.font = `${Math.round(10 * ratio)}px system-ui, sans-serif`;
      rows.forEach((row, stage) => {
        const y = top + stage * high + gap / 2, height = high - gap;
        ctx.fillStyle = colours.idle;
        const last = left + (Math.min(max, row.ends[row.count - 1]) - min) * scale;
        ctx.fillRect(left, y, Math.max(0, last - left), height);
        for (let at = place(row, min); at < row.count && row.starts[at] < max; at++) {
          const [kind] = row.of[at];
          if (kind === 'idle') continue;
          const x = left + (row.starts[at] - min) * scale, size = (row.ends[at] - row.starts[at]) * scale;
          ctx.fillStyle = colours[kind];
          ctx.fillRect(x, y, Math.max(size - (size > 4 * ratio ? ratio * 0.7 : 0), 0.6), height);
          const number = row.which[at] < 0 ? '' : String(Math.floor(row.which[at] / plan.vpp));
          if (number && size > (6 + 7 * number.length) * ratio && height > 11 * ratio) {
            ctx.fillStyle = kind === 'backward' ? light : dark;
            ctx.fillText(number, x + size / 2, y + height / 2);
          }
        }
      });
      ctx.restore();
    };
    const options = {
      ...base,
      scales: { x: { time: false }, y: { range: () => [0, count], dir: -1 } },
      axes: [timeAxis(narrow), { ...axes(narrow), grid: { show: false }, size: narrow ? 34 : 120,
        splits: () => rows.map((_, stage) => stage + 0.5).filter((_, stage) => stage % labels === 0),
        values: (_, at) => at.map(value => narrow ? String(value - 0.5) : cut(plan.stages[value - 0.5])) }],
      series: [{}, { paths: () => null, points: { show: false } }],
    };
    const look = chart => {
      if (chart.cursor.left < 0 || !chart.over.matches(':hover')) return;
      const stage = Math.min(count - 1, Math.max(0, Math.floor(chart.posToVal(chart.cursor.top, 'y'))));
      const time = chart.posToVal(chart.cursor.left, 'x');
      readout.textContent = told(plan, stage, place(rows[stage], time));
      box.spot = [stage, place(rows[stage], time)];
    };
    options.hooks = { ...base.hooks, draw: [paint], setCursor: [look] };
    const chart = new uPlot(options, [[0, full()], [null, null]], box);
    spans(box, plan, chart, readout);
    state.charts.push({ chart, box, redraw: () => chart.redraw(false) });
  };
  const cut = label => label.length > 15 ? label.slice(0, 14) + '…' : label;

  // The keyboard on a timeline: from span to span with the arrows, + and - zoom, 0 shows all.
  const spans = (box, plan, chart, readout) => {
    box.spot = [0, 0];
    box.onkeydown = event => {
      const rows = stepOf(plan), steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      let [stage, at] = box.spot;
      if (event.key === '+' || event.key === '=') zoomBy(0.5, rows[stage].starts[at]);
      else if (event.key === '-') zoomBy(2, rows[stage].starts[at]);
      else if (event.key === '0') zoom(0, full());
      else if (event.key in steps) {
        const [down, along] = steps[event.key], time = (rows[stage].starts[at] + rows[stage].ends[at]) / 2;
        stage = Math.max(0, Math.min(rows.length - 1, stage + down));
        at = down ? place(rows[stage], time) : Math.max(0, Math.min(rows[stage].count - 1, at + along));
        box.spot = [stage, at];
        const middle = (rows[stage].starts[at] + rows[stage].ends[at]) / 2, [min, max] = window_();
        if (middle < min || middle > max) zoom(middle - (max - min) / 2, middle + (max - min) / 2);
        chart.setCursor({ left: chart.valToPos(middle, 'x'), top: chart.valToPos(stage + 0.5, 'y') });
        readout.textContent = told(plan, stage, at);
      } else return;
      event.preventDefault();
    };
  };

  // Memory of a stage over time: activations follow the passes that are in flight, all else stands.
  const few = count => {
    const most = 6;
    return count <= most ? [...Array(count).keys()] :
      [...new Set(Array.from({ length: most }, (_, at) => Math.round(at * (count - 1) / (most - 1))))];
  };
  const inFlight = row => {
    const split = row.of.some(([, , weights]) => weights), times = [0], counts = [0];
    let now = 0;
    for (let at = 0; at < row.count; at++) {
      const [kind, , weights] = row.of[at];
      if (kind === 'forward') { times.push(row.starts[at]); counts.push(++now); }
      if (kind === 'backward' && Boolean(weights) === split) { times.push(row.ends[at]); counts.push(--now); }
    }
    return { times, counts, most: Math.max(...counts, 1) };
  };
  const memory = (box, plan, readout) => {
    const width = Math.max(280, box.clientWidth), narrow = width < 600, stages = few(plan.stages.length);
    const tables = stages.map(stage => {
      const { times, counts, most } = inFlight(stepOf(plan)[stage]), { standing, activations } = plan.memory[stage];
      return [Float64Array.from(times), counts.map(count => standing + activations * count / most)];
    });
    const end = endOf(plan), rooms = new Map(stages.map(stage => [plan.memory[stage].chip, plan.memory[stage].room]));
    const limits = [...rooms.values()].map(room => [[0, end], [room, room]]);
    const joined = uPlot.join([...tables, ...limits].map(([x, y]) => [x, y]));
    for (const column of joined.slice(1)) for (let at = 1; at < column.length; at++) column[at] ??= column[at - 1];
    const names = stages.map(stage => say('stage {stage}', { stage: plan.stages[stage] }));
    const base = shared(width, 240), highest = Math.max(...plan.memory.map(({ room }) => room));
    const chart = new uPlot({
      ...base,
      legend: { show: true, live: !narrow },
      scales: { x: { time: false }, y: { range: () => [0, highest * 1.05] } },
      axes: [timeAxis(narrow), { ...axes(narrow), space: 40, size: narrow ? 44 : 120,
        values: (_, at) => at.map(value => value + (narrow ? '' : ' GiB')) }],
      series: [
        { label: say('time'), value: (_, value) => value == null ? '–' : seconds(value) },
        ...names.map((label, at) => ({ label, stroke: colour('c' + (1 + at % 7)), width: 1.5,
          paths: uPlot.paths.stepped({ align: 1 }), points: { show: false },
          value: (_, value) => value == null ? '–' : value.toFixed(1) + ' GiB' })),
        ...[...rooms].map(([chip, room]) => ({ label: say('usable, {chip}', { chip }), stroke: colour('bad'), dash: [6, 4],
          points: { show: false }, value: () => room.toFixed(1) + ' GiB' })),
      ],
    }, joined, box);
    chart.over.addEventListener('mousemove', () => {
      const at = chart.cursor.idx;
      if (at != null) readout.textContent = say('{plan} at {time}: ', { plan: plan.title,
        time: seconds(joined[0][at], end) }) + stages.map((stage, number) =>
        `${say('stage {stage}', { stage })} ${joined[1 + number][at].toFixed(1)} GiB`).join(', ');
    });
    for (const head of $$('.u-legend tr', chart.root).slice(1)) {
      head.tabIndex = 0;
      head.setAttribute('role', 'button');
      head.onkeydown = event => {
        if (event.key !== 'Enter' && event.key !== ' ') return;
        event.preventDefault();
        $('th', head).click();
      };
    }
    state.charts.push({ chart, box });
  };

  const drawCharts = () => {
    const kept = state.charts.length ? window_() : null, whole = state.end;
    for (const { chart } of state.charts) chart.destroy();
    state.charts = [];
    $('#charts').replaceChildren();
    for (const number of shown()) {
      const plan = plans[number], readout = make('p', { class: 'readout', 'aria-live': 'polite' },
        say('Point at a pass, or go through them with the arrow keys.'));
      const keys = say('arrow keys go from pass to pass, plus and minus zoom, 0 shows all');
      const box = make('div', { class: 'chart', tabindex: 0, role: 'group', 'data-chart': 'timeline',
        'aria-label': say('Timeline of {plan}: {keys}', { plan: plan.title, keys }) });
      const filled = make('div', { class: 'chart', 'data-chart': 'memory', role: 'group',
        'aria-label': say('Memory of {plan} by stage over time', { plan: plan.title }) });
      $('#charts').append(make('h3', {}, `${plan.title}: ${plan.words}`), make('p', { class: 'dim' }, plan.note),
        box, readout, make('h4', {}, say('Memory by stage over time')), filled);
      timeline(box, plan, readout);
      memory(filled, plan, readout);
    }
    state.end = full();
    zoom(...(kept && whole === state.end ? kept : [0, state.end]));
  };

  const compare = () => {
    const box = $('#versus');
    if (!box) return;
    box.replaceChildren();
    if (shown().length > 1) differences(box, ...shown().map(number => plans[number]));
  };

  const show = () => {
    const plan = plans[state.pick];
    for (const part of $$('.of-plan')) part.hidden = Number(part.dataset.plan) !== state.pick;
    for (const part of $$('.still')) part.hidden = state.pick !== 0;  // on paper it stands for the charts
    mark('plan', state.pick);
    const launch = plan.launch, copies = $('#copy');
    copies.hidden = !launch;
    $('#launch').hidden = !launch;
    if (launch) {
      copies.textContent = say('Copy {plan}’s launch for {target}', { plan: plan.title, target: launch.target });
      $('#launch summary').textContent = say('{file} for {target}', launch);
      $('#launch pre').textContent = launch.text;
    }
    compare();
    drawCharts();
  };

  const trace = plan => {
    const events = [{ name: 'process_name', ph: 'M', pid: 1, args: { name: plan.title } }];
    const letters = { forward: 'F', recompute: 'R', backward: 'B' };
    stepOf(plan).forEach((row, stage) => {
      events.push({ name: 'thread_name', ph: 'M', pid: 1, tid: stage, args: { name: `stage ${plan.stages[stage]}` } });
      for (let at = 0; at < row.count; at++) {
        const [kind, , weights] = row.of[at], which = row.which[at], chunk = plan.vpp > 1 ? ` c${which % plan.vpp}` : '';
        const name = which < 0 ? data.kinds[kind] : (weights ? 'W' : letters[kind]) + Math.floor(which / plan.vpp) + chunk;
        events.push({ name, cat: kind, ph: 'X', pid: 1, tid: stage, ts: row.starts[at] * 1e6,
          dur: (row.ends[at] - row.starts[at]) * 1e6 });
      }
    });
    return { traceEvents: events, displayTimeUnit: 'ms' };
  };
  // The map of the proof: pointing at a cell, or going there with the arrows, tells of it.
  for (const map of $$('table.map')) {
    const readout = $('#map-told'), grid = [...$('tbody', map).rows].map(row => [...row.cells].slice(1));
    const cells = grid.flat();
    const tell = cell => {
      for (const other of cells) other.tabIndex = other === cell ? 0 : -1;
      readout.textContent = cell.dataset.told || say('No candidate: these sizes do not divide the devices.');
    };
    grid.forEach((row, down) => row.forEach((cell, along) => {
      cell.onfocus = cell.onpointerenter = () => tell(cell);
      cell.onclick = () => cell.focus();
      cell.onkeydown = event => {
        const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
        const [by, over] = steps[event.key] ?? [0, 0], next = grid[down + by]?.[along + over];
        if (!(event.key in steps)) return;
        event.preventDefault();
        next?.focus();
      };
    }));
    (cells.find(cell => cell.classList.contains('e-plan')) ?? cells[0]).tabIndex = 0;
  }

  const open = () => {
    $('#copy').onclick = event => copy(plans[state.pick].launch.text, event.currentTarget);
    $('#save-json').onclick = () => save('apss-cp.json', JSON.stringify(data.document, null, 2));
    $('#save-trace').onclick = () => save(`trace-plan-${state.pick + 1}.json`, JSON.stringify(trace(plans[state.pick])));
    for (const button of $$('[data-zoom]')) button.onclick = () => {
      const { zoom: what } = button.dataset;
      if (what === 'all') zoom(0, full());
      else if (what === 'in' || what === 'out') zoomBy(what === 'in' ? 0.5 : 2);
      else move(what === 'left' ? -0.4 : 0.4);
    };
    $('#charts').addEventListener('wheel', event => {
      const hit = state.charts.find(({ chart }) => chart.over.contains(event.target));
      if (!hit || !(event.ctrlKey || event.shiftKey)) return;
      event.preventDefault();
      const around = hit.chart.posToVal(event.clientX - hit.chart.over.getBoundingClientRect().left, 'x');
      zoomBy((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, around);
    }, { passive: false });
    play(state, show, drawCharts);
  };
  start(plans.length ? data.steps : null, steps => {
    steps.forEach((step, at) => Object.assign(plans[at], step));
    open();
  });
})();
