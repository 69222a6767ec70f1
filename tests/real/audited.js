// What an audit of accessibility finds first: names, roles, labels, unique ids, contrast of what can be read.
() => {
  const found = [], tell = (rule, element) => found.push(`${rule}: ${element.outerHTML.slice(0, 120)}`);
  const seen = element => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;
  const every = [...document.querySelectorAll('body *')].filter(seen);
  const named = element => {
    const by = (element.getAttribute('aria-labelledby') ?? '').split(/\s+/).map(id => document.getElementById(id)?.textContent ?? '');
    const labels = [...(element.labels ?? [])].map(label => label.textContent);
    const own = /^(A|BUTTON|SUMMARY|TH|OPTION)$/.test(element.tagName) || /^(button|link)$/.test(element.role ?? '') ? element.textContent : '';
    return [element.getAttribute('aria-label') ?? '', ...by, ...labels, own].some(text => text.trim());
  };
  const ids = new Set();
  for (const element of document.querySelectorAll('[id]')) {
    if (ids.has(element.id)) tell('id twice', element);
    ids.add(element.id);
  }
  for (const element of every) {
    if (element.matches('a, button, input, select, textarea, summary, [role=button], [role=img], [role=region], [role=group]') && !named(element))
      tell('no name', element);
    if (element.tabIndex >= 0 && !element.matches('a, button, input, select, textarea, summary, iframe[title], [role]') && !element.matches('pre, td, h2'))
      tell('focus without a role', element);
    if (element.matches('[role=button]') && element.tabIndex < 0) tell('a button that keys do not reach', element);
    for (const ids of ['aria-labelledby', 'aria-controls', 'aria-describedby'])
      for (const id of (element.getAttribute(ids) ?? '').split(/\s+/).filter(Boolean))
        if (!document.getElementById(id)) tell(`${ids} of nothing`, element);
    if (element.scrollWidth > element.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(element).overflowX) && element.tabIndex < 0)
      tell('keys cannot scroll', element);
    if (element.matches('th') && !element.scope) tell('a head without scope', element);
  }
  const heads = every.filter(element => /^H[1-6]$/.test(element.tagName)).map(element => Number(element.tagName[1]));
  heads.forEach((level, at) => { if (at && level > heads[at - 1] + 1) found.push(`heading ${level} after ${heads[at - 1]}`); });
  for (const name of ['main', 'h1', 'header', 'footer'])
    if (document.querySelectorAll(name).length !== 1) found.push(`not one ${name}`);
  if (!document.documentElement.lang || !document.title) found.push('no language or title');

  const channels = text => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const over = ([r, g, b, a = 1], below) => [r, g, b].map((value, at) => value * a + below[at] * (1 - a));
  const ground = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(channels(getComputedStyle(at).backgroundColor));
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = colour => colour.map(value => value / 255).map(
    share => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4)
    .reduce((sum, share, at) => sum + share * [0.2126, 0.7152, 0.0722][at], 0);
  for (const element of every) {
    const words = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!words || element.closest('svg, [aria-hidden=true]')) continue;
    const style = getComputedStyle(element), below = ground(element);
    const clear = [...(function* () { for (let at = element; at; at = at.parentElement) yield Number(getComputedStyle(at).opacity); })()]
      .reduce((one, other) => one * other, 1);
    const ink = over([...channels(style.color).slice(0, 3), (channels(style.color)[3] ?? 1) * clear], below);
    const [one, two] = [light(ink), light(below)].sort((a, b) => b - a), ratio = (one + 0.05) / (two + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) tell(`contrast ${ratio.toFixed(2)}`, element);
  }
  return found;
}
