"""The style sheet and the script of the report page."""

from __future__ import annotations

from skiptrain_plugin.results.style import MARKS

_BLUES = ("#E6EFF8", "#CFE0F1", "#B3CFE8", "#8FB9DC", "#6AA1CE", "#4688BD", "#2B6FA8", "#17578F", "#093F70")
_DARK_BLUES = ("#10263A", "#153349", "#1A415D", "#205273", "#28658B", "#357CA6", "#4A96C2", "#6FB4DB", "#9BD0F0")


def style_sheet() -> str:
    """CSS with light and dark colours."""
    light = "".join(f"--c-{name}:{mark.colour};" for name, mark in MARKS.items())
    dark = "".join(f"--c-{name}:{mark.dark_colour};" for name, mark in MARKS.items())
    light += "".join(f"--h{index}:{colour};" for index, colour in enumerate(_BLUES))
    dark += "".join(f"--h{index}:{colour};" for index, colour in enumerate(_DARK_BLUES))
    light += "".join(f"--t{index}:{'#111' if index < 5 else '#FFF'};" for index in range(9))
    dark += "".join(f"--t{index}:{'#F2F2F2' if index < 6 else '#0A0A0A'};" for index in range(9))
    series = "".join(f".s-{name}{{stroke:var(--c-{name});fill:var(--c-{name})}}" for name in MARKS)
    heat = "".join(f".heat{i}{{fill:var(--h{i})}}svg text.on-heat{i}{{fill:var(--t{i})}}" for i in range(9))
    return _CSS.replace("/*light*/", light).replace("/*dark*/", dark) + series + heat


_CSS = """
:root{color-scheme:light dark;--bg:#FFFFFF;--fg:#1B1F24;--soft:#565F69;--card:#F5F7F9;--rule:#D8DEE4;--grid:#E4E8EC;
--link:#0B5CAD;--shade:#E9ECEF;--best:#C24A00;--sync:#EFE3C8;--on-sync:#4A4436;--warn:#FFF4DC;--warn-rule:#D9A520;
/*light*/}
@media (prefers-color-scheme:dark){:root{--bg:#14171A;--fg:#E7EAED;--soft:#A3ADB8;--card:#1D2226;--rule:#39424B;
--grid:#2B3238;--link:#7FBCF5;--shade:#242A30;--best:#FFB070;--sync:#3B372C;--on-sync:#D9D0BA;--warn:#2E2818;
--warn-rule:#8A6D1B;/*dark*/}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
overflow-wrap:anywhere}
main,header.top,footer{max-width:1120px;margin:0 auto;padding:0 16px}
header.top{padding-top:28px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .3em}
h2{font-size:1.3rem;margin:2.4em 0 .6em;padding-bottom:.25em;border-bottom:1px solid var(--rule)}
h3{font-size:1.08rem;margin:1.8em 0 .3em}
sub{font-size:.72em;line-height:0}
h4{font-size:.95rem;margin:.2em 0;font-weight:600}
p{margin:.5em 0;max-width:75ch}
a{color:var(--link)}
nav ul{display:flex;flex-wrap:wrap;gap:.3em 1.2em;list-style:none;padding:0;margin:1em 0 0}
.soft{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,290px),1fr));gap:14px;margin:1em 0}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 16px}
.card .big{display:flex;gap:1.6em;flex-wrap:wrap}
.card .big div{line-height:1.15}
.card .big strong{display:block;font-size:1.75rem;font-variant-numeric:tabular-nums}
.card .big span{font-size:.85rem;color:var(--soft)}
.card p{font-size:.9rem;margin-bottom:0}
.notes{background:var(--warn);border-left:4px solid var(--warn-rule);padding:.5em 1em;margin:1em 0;
border-radius:0 6px 6px 0}
.notes ul{margin:.3em 0;padding-left:1.2em}
figure{margin:1.2em 0 2em}
figcaption{color:var(--soft);font-size:.92rem;margin-top:.5em;max-width:80ch}
.panels{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr))}
.panels.wide{grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}
.panel{position:relative;min-width:0;max-width:600px;background:var(--card);border:1px solid var(--rule);
border-radius:10px;padding:10px}
.panel svg{display:block;width:100%;height:auto;touch-action:pan-y;cursor:crosshair}
.panel svg:focus-visible{outline:2px solid var(--link);outline-offset:3px;border-radius:4px}
svg text{fill:var(--fg);stroke:none;font-size:13px;font-family:inherit;font-variant-numeric:tabular-nums}
svg .grid{stroke:var(--grid);stroke-width:1;fill:none}
svg .axis{stroke:var(--soft);stroke-width:1.2;fill:none}
svg .shade{fill:var(--shade);stroke:none}
svg .mark{stroke:var(--soft);stroke-width:1.3;stroke-dasharray:4 4;fill:none}
svg .line{fill:none;stroke-width:2.2}
svg .band{stroke:none;opacity:.22}
svg .guide{stroke:var(--fg);stroke-width:1.2;fill:none;pointer-events:none}
svg .cell,svg .op{stroke:none}
svg .none{fill:var(--shade)}
svg .best{fill:none;stroke:var(--best);stroke-width:4}
svg .train{fill:var(--c-skiptrain)}svg text.on-train{fill:var(--bg);font-weight:700}
svg .sync{fill:var(--sync)}svg text.on-sync{fill:var(--on-sync)}
svg .bubble{fill:var(--c-skiptrain);stroke:var(--bg);stroke-width:.6}
.tip{position:absolute;z-index:2;pointer-events:none;background:var(--fg);color:var(--bg);font-size:.82rem;line-height:1.4;
padding:6px 9px;border-radius:6px;max-width:calc(100% - 12px);width:max-content}
.tip[hidden]{display:none}
.tip div:first-child{font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:.2em 1.3em;list-style:none;padding:0;margin:.4em 0 .6em;font-size:.92rem}
.legend li{display:flex;align-items:center;gap:.5em}
.legend svg{width:40px;height:14px;flex:none}
.scroll{overflow-x:auto;border:1px solid var(--rule);border-radius:8px;margin:.7em 0}
.scroll:focus-visible{outline:2px solid var(--link)}
table{border-collapse:collapse;width:100%;font-size:.88rem;overflow-wrap:normal}
caption{text-align:left;padding:8px 10px;font-weight:600}
th,td{padding:6px 10px;border-top:1px solid var(--rule);text-align:left;vertical-align:top;min-width:4.2em}
thead th{border-top:0;background:var(--card);vertical-align:bottom}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td{white-space:nowrap}td.long{white-space:normal;min-width:14em}
details{margin:.6em 0}
summary{cursor:pointer;color:var(--link)}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px;font-size:.8rem;
line-height:1.45;overflow-wrap:normal}
dl{display:grid;grid-template-columns:minmax(9em,15em) 1fr;gap:.5em 1.2em}
dt{font-weight:600}dd{margin:0;max-width:75ch}
@media (max-width:640px){dl{grid-template-columns:1fr;gap:.1em}dd{margin-bottom:.7em}h1{font-size:1.4rem}
.panel{padding:8px}svg text{font-size:14.5px}}
footer{margin-top:3em;padding-bottom:2em;color:var(--soft);font-size:.85rem}
@media print{.tip,nav{display:none}details{display:none}}
"""

SCRIPT = """
'use strict';
(function () {
  var data = JSON.parse(document.getElementById('values').textContent);
  var SVG = 'http://www.w3.org/2000/svg';

  function prepare(panel) {
    var values = data[panel.dataset.values], svg = panel.querySelector('svg'), tip = panel.querySelector('.tip');
    var guide = svg.querySelector('.guide'), box = svg.viewBox.baseVal, current = -1;

    function hide() { tip.hidden = true; guide.setAttribute('hidden', 'hidden'); current = -1; }

    function show(index) {
      current = index;
      var hit = values.hits[index], rect = svg.getBoundingClientRect(), outer = panel.getBoundingClientRect();
      var scale = rect.width / box.width, x = hit[0] * scale + rect.left - outer.left;
      var y = hit[1] * scale + rect.top - outer.top;
      tip.replaceChildren();
      hit[2].forEach(function (line) {
        var row = document.createElement('div');
        row.textContent = line;
        tip.appendChild(row);
      });
      tip.hidden = false;
      var left = Math.min(Math.max(6, x + 12), panel.clientWidth - tip.offsetWidth - 6);
      if (x + 12 + tip.offsetWidth > panel.clientWidth - 6 && x - 12 - tip.offsetWidth >= 6) {
        left = x - 12 - tip.offsetWidth;
      }
      var above = y - tip.offsetHeight - 10;
      tip.style.left = Math.max(6, left) + 'px';
      tip.style.top = (above >= 4 ? above : y + 14) + 'px';
      var shape = document.createElementNS(SVG, values.alongX ? 'path' : 'circle');
      if (values.alongX) { shape.setAttribute('d', 'M' + hit[0] + ' 12V' + (box.height - 42)); }
      else { shape.setAttribute('cx', hit[0]); shape.setAttribute('cy', hit[1]); shape.setAttribute('r', 5); }
      guide.replaceChildren(shape);
      guide.removeAttribute('hidden');
    }

    function nearest(event) {
      var rect = svg.getBoundingClientRect(), scale = box.width / rect.width;
      var x = (event.clientX - rect.left) * scale, y = (event.clientY - rect.top) * scale, best = -1, least = Infinity;
      values.hits.forEach(function (hit, index) {
        var dx = hit[0] - x, dy = values.alongX ? 0 : hit[1] - y, far = dx * dx + dy * dy;
        if (far < least) { least = far; best = index; }
      });
      if (best >= 0 && best !== current) { show(best); }
    }

    svg.addEventListener('pointermove', nearest);
    svg.addEventListener('pointerdown', nearest);
    svg.addEventListener('pointerleave', function (e) { if (e.pointerType === 'mouse') { hide(); } });
    svg.addEventListener('focus', function () { if (current < 0 && values.hits.length) { show(0); } });
    svg.addEventListener('blur', hide);
    svg.addEventListener('keydown', function (e) {
      var step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
      if (step && values.hits.length) {
        e.preventDefault();
        show(Math.min(values.hits.length - 1, Math.max(0, current + step)));
      } else if (e.key === 'Escape') { hide(); }
    });
    document.addEventListener('pointerdown', function (e) { if (!panel.contains(e.target)) { hide(); } });
  }

  document.querySelectorAll('.panel').forEach(prepare);
})();
"""
