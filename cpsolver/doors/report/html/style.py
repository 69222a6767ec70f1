"""How the page looks, light, dark, narrow, wide and on paper, and the little that its script does."""

LIGHT = """--c1: #2f6fc4; --c2: #e08a1e; --c3: #c9a800; --c4: #6f9a1d; --c5: #8e63ce; --c6: #c2447a; --c7: #2b9d82;
  --forward: #8fc0f2; --backward: #1f4788"""
"""Colours of the parts of a whole on a light ground."""
KINDS = """\
.k-compute, .k-weights { background: var(--c1); fill: var(--c1) }
.k-forward { background: var(--forward); fill: var(--forward) }
.k-backward { background: var(--backward); fill: var(--backward) }
.k-tensor_parallel, .k-gradients { background: var(--c2); fill: var(--c2) }
.k-recompute, .k-optimizer_state { background: var(--c3); fill: var(--c3) }
.k-sharding, .k-activations { background: var(--c4); fill: var(--c4) }
.k-pipeline_p2p, .k-buffers { background: var(--c5); fill: var(--c5) }
.k-data_parallel, .k-fragments { background: var(--c6); fill: var(--c6) }
.k-optimizer, .k-framework { background: var(--c7); fill: var(--c7) }
.k-idle, .k-bubble { background: var(--idle); fill: var(--idle) }
"""
"""Which part has which colour, and which fill where it is drawn."""

STYLE = (
    """
:root { color-scheme: light dark; --ink: #1b2330; --dim: #566173; --line: #d5dae1; --paper: #ffffff; --card: #f5f7fa;
  --idle: #e3e7ed; --accent: #1f5fbf; --good: #17693a; --warn: #8a5300; --bad: #b3261e; --differs: #fff3cf;
  """
    + LIGHT
    + """ }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --dim: #9da8b8; --line: #353d4a; --paper: #12161d; --card: #1b212b; --idle: #2b323d;
    --accent: #7fb2ff; --good: #6fd196; --warn: #f0b35a; --bad: #ff8a80; --differs: #3d3413;
    --c1: #4f8fe0; --c2: #e39a3d; --c3: #d5b93a; --c4: #8db93b; --c5: #a884e0; --c6: #d9699a; --c7: #3fb89b;
    --forward: #a6cffb; --backward: #3565bd }
}
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink);
  background: var(--paper); margin: 0 auto; max-width: 76rem; padding: 1rem clamp(.8rem, 3vw, 2.5rem) 3rem;
  overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
h1 { font-size: clamp(1.15rem, 2.6vw, 1.6rem); line-height: 1.3; margin: .2rem 0; font-weight: 500 }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .7rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem }
p { margin: .3rem 0; max-width: 60rem }
.dim, .brand { color: var(--dim) } .good { color: var(--good) } .warn { color: var(--warn) } .bad { color: var(--bad) }
.brand { font-size: .85rem; letter-spacing: .02em }
.plan { border-left: 4px solid var(--accent); background: var(--card); padding: .6rem .9rem; margin: .8rem 0 }
.plan code { font: .92rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .7rem; margin: 1rem 0;
  padding: 0 }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem }
.tiles dt { color: var(--dim); font-size: .85rem } .tiles dd { margin: 0; font-size: 1.35rem; font-weight: 600 }
.tiles dd + dd { font-size: .85rem; font-weight: 400; color: var(--dim) }
.scroll { overflow-x: auto; max-width: 100% } .scroll:focus-visible { outline: 2px solid var(--accent) }
table { border-collapse: collapse; font-size: .92rem } td, th { padding: .16rem .6rem; text-align: right;
  overflow-wrap: normal }
th { font-weight: 500; color: var(--dim); white-space: nowrap } caption { text-align: left; color: var(--dim);
  padding: .2rem 0 }
.plans td, .numbers td { white-space: nowrap } .plans td.long { white-space: normal; min-width: 11rem;
  max-width: 15rem }
.plans tbody tr:hover, .numbers tbody tr:hover { background: var(--card) }
.plans th[scope=row], .numbers th[scope=row] { position: sticky; left: 0; background: var(--paper); text-align: left;
  padding-left: 0; z-index: 1 }
.plans th.sub { padding-left: 1rem !important } .plans thead th, .plans .part th, .plans .key td { color: var(--ink);
  font-weight: 650 }
.plans .part th { padding-top: .6rem; text-align: left; white-space: normal }
.plans td.differs { background: var(--differs) } .plans.only tr.same { display: none }
.numbers { margin-top: .6rem } .numbers thead th { border-bottom: 1px solid var(--line); white-space: normal;
  vertical-align: bottom; max-width: 8.5rem }
#proof table td:first-child { white-space: nowrap; vertical-align: top } #proof td + td { text-align: left }
figure { margin: .4rem 0 1rem } ul { padding-left: 1.3rem }
figcaption { color: var(--dim); font-size: .88rem; margin-top: .4rem }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; padding: 0; margin: .4rem 0 .7rem;
  font-size: .9rem }
.swatch { display: inline-block; width: .85em; height: .85em; margin-right: .4em; vertical-align: -.08em;
  border-radius: 2px; border: 1px solid #0003 }
.bars > div { display: grid; grid-template-columns: 11rem 1fr 12rem; gap: .7rem; align-items: center;
  padding: .13rem 0 }
.bars .note { font-size: .9rem } .bars .label { font-size: .9rem; overflow-wrap: anywhere }
.track { position: relative; display: flex; height: 1.25rem; background: var(--idle); border-radius: 3px }
.track i { height: 100%; min-width: 1px; border-right: 1px solid var(--paper) }
.track b { position: absolute; top: -3px; bottom: -3px; width: 2px; background: var(--ink) }
.ranges .track { background: none; border-bottom: 1px solid var(--line); border-radius: 0 }
.ranges .track i { position: absolute; top: 20%; height: 60%; background: var(--accent); opacity: .45; border: 0;
  border-radius: 3px }
.ranges .tie .track i { background: var(--c2) }
svg { display: block; width: 100%; min-width: 54rem; height: auto } svg text { fill: var(--ink); font-size: 11px }
svg text.dim { fill: var(--dim) } svg text.n { fill: #fff; font-size: 9px; text-anchor: middle; pointer-events: none }
rect.k-forward + text.n { fill: #0f2442 }
svg .end { text-anchor: end } svg .middle { text-anchor: middle } svg .tick { stroke: var(--line) }
svg rect { stroke: var(--paper); stroke-width: .35 } svg rect.k-idle { stroke: none }
"""
    + KINDS
    + """\
.faded > :not(.lit):is(i, rect), .faded > g > rect:not(.lit) { opacity: .18 }
footer { margin-top: 3rem; color: var(--dim); font-size: .85rem; border-top: 1px solid var(--line);
  padding-top: .6rem }
label.switch { font-size: .9rem; color: var(--dim) } [hidden] { display: none }
@media (max-width: 44rem) {
  .bars > div { grid-template-columns: 1fr auto; gap: .1rem .6rem; padding: .3rem 0 }
  .bars .track { grid-row: 2; grid-column: 1 / -1 } .plans td, .numbers td, .plans th, .numbers th {
    padding: .16rem .4rem }
  .plans th[scope=row], .numbers th[scope=row] { min-width: 6.5rem; max-width: 9rem; white-space: normal;
    overflow-wrap: break-word }
}
@media print {
  :root { color-scheme: light }
  body { max-width: none; padding: 0; font-size: 10pt } .scroll { overflow: visible } svg { min-width: 0 }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact } label.switch { display: none }
  figure, .tiles, tr { break-inside: avoid } h2, h3, h4 { break-after: avoid } table { font-size: 8.5pt }
  .plans th[scope=row], .numbers th[scope=row] { position: static }
}
"""
)

SCRIPT = """
const light = (event, on) => {
  const entry = event.target.closest?.('figure .legend li[data-kind]');
  const figure = entry?.closest('figure');
  for (const part of figure?.querySelectorAll('.k-' + entry.dataset.kind) ?? []) part.classList.toggle('lit', on);
  for (const whole of figure?.querySelectorAll('svg, .track') ?? []) whole.classList.toggle('faded', on);
};
document.addEventListener('pointerover', event => light(event, true));
document.addEventListener('pointerout', event => light(event, false));
for (const box of document.querySelectorAll('label.switch input')) {
  box.parentElement.hidden = false;
  const table = document.querySelector('table.plans');
  box.addEventListener('change', () => table.classList.toggle('only', box.checked));
}
"""
