/* The spec's editor: sends the text to be planned, shows what is wrong with it, and the answer in the frame. */
(() => {
  'use strict';
  const $ = query => document.querySelector(query);
  const given = JSON.parse($('#data').textContent);
  const spec = $('#spec'), lines = $('#lines'), said = $('#said'), troubles = $('#troubles');
  const plan = $('#plan'), stop = $('#stop'), frame = $('#answer');
  // The page's language: a table by the English, for a page in another one.
  const words = JSON.parse($('#words')?.textContent ?? '{}');
  const say = (text, values = {}) => (words[text] ?? text).replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const SAID = {
    optimal: say('Planned and proven'),
    feasible: say('The search ended early, with the best plans so far'),
    infeasible: say('There is no plan, and the answer says why'),
    unknown: say('No plan was found in the time given'),
  };
  let running = null, stopping = false, progress = '', bad = new Set();

  const tell = (text, wrong = false) => {
    said.textContent = text;
    said.classList.toggle('wrong', wrong);
  };
  const numbered = () => {
    const count = spec.value.split('\n').length, parts = [];
    for (let line = 1; line <= count; line++) {
      const mark = document.createElement(bad.has(line) ? 'b' : 'span');
      mark.textContent = line;
      parts.push(mark, '\n');
    }
    lines.replaceChildren(...parts, '\n\n');
    lines.scrollTop = spec.scrollTop;
  };
  const go = (line, column) => {
    const before = spec.value.split('\n').slice(0, line - 1);
    const at = before.reduce((sum, text) => sum + text.length + 1, 0) + Math.max(0, (column ?? 1) - 1);
    spec.focus();
    spec.setSelectionRange(at, at);
    spec.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(spec).lineHeight));
  };
  const listTroubles = found => {
    bad = new Set(found.map(one => one.line));
    troubles.replaceChildren(...found.map(one => {
      const item = document.createElement('li');
      if (one.line != null) {
        const button = document.createElement('button');
        button.type = 'button';
        button.textContent = say('line {line}', one);
        button.onclick = () => go(one.line, one.column);
        item.append(button);
      }
      item.append(one.text);
      return item;
    }));
    troubles.hidden = !found.length;
    numbered();
  };
  const show = number => {
    frame.classList.remove('old');
    frame.src = `answer/${number}`;
  };

  const sent = (where, signal) => fetch(where, {
    method: 'POST', body: where === 'plan' ? spec.value : '', signal, headers: { 'Content-Type': 'application/yaml' },
  });
  const look = async () => {
    try {
      progress = (await (await fetch('progress')).json()).told;
    } catch {
      // the answer that is waited for will tell
    }
  };
  const ended = (found, seconds) => {
    if (found.answer != null) {
      show(found.answer);
      const told = { said: SAID[found.status], seconds: seconds.toFixed(1) };
      tell(say('{said}: {seconds} s.', told), !['optimal', 'feasible'].includes(found.status));
    } else if (found.troubles) {
      const count = found.troubles.length;
      tell(count === 1 ? say('One thing is wrong with the spec.') :
        say('{count} things are wrong with the spec.', { count }), true);
      listTroubles(found.troubles);
    } else tell(found.said, true);
    if (found.answer == null && frame.src) said.append(say(' The answer shown is that of another spec.'));
  };
  const start = async () => {
    if (running) return;
    if (new Blob([spec.value]).size > given.most) {
      tell(say('The spec is too large.'), true);
      return;
    }
    const began = performance.now(), seconds = () => (performance.now() - began) / 1000;
    running = new AbortController();
    listTroubles([]);
    frame.classList.add('old');
    plan.disabled = true;
    stop.hidden = false;
    stop.textContent = say('Stop');
    stopping = false;
    progress = '';
    tell(say('Planning'));
    const clock = setInterval(() => {
      const told = { seconds: Math.floor(seconds()), progress };
      tell(progress ? say('Planning: {seconds} s; {progress}', told) : say('Planning: {seconds} s', told));
      look();
    }, 1000);
    try {
      const answer = await sent('plan', running.signal);
      const json = answer.headers.get('content-type')?.startsWith('application/json');
      const found = json ? await answer.json() : { said: await answer.text() };
      ended(found, seconds());
    } catch (error) {
      const stopped = error.name === 'AbortError';
      tell(stopped ? say('Stopped.') :
        say('The server does not answer: is it still running in the terminal?'), true);
    } finally {
      clearInterval(clock);
      running = null;
      plan.disabled = false;
      stop.hidden = true;
    }
  };

  // The first stop asks for the best plans so far, the second waits for nothing.
  stop.onclick = () => {
    if (!running) return;
    if (!stopping) {
      stopping = true;
      stop.textContent = say('Stop at once');
      sent('stop').catch(() => 0);
    } else running.abort();
  };
  plan.onclick = start;
  spec.addEventListener('keydown', event => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      start();
    }
  });
  spec.addEventListener('input', () => { bad = new Set(); numbered(); });
  spec.addEventListener('scroll', () => { lines.scrollTop = spec.scrollTop; });
  $('#save').onclick = () => {
    const url = URL.createObjectURL(new Blob([spec.value], { type: 'application/yaml' }));
    const link = document.createElement('a');
    link.href = url;
    link.download = given.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };

  spec.value = given.text;
  numbered();
  if (given.answer != null) show(given.answer);
  else start();
  document.documentElement.dataset.ready = 'yes';
})();
