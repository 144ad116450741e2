"""The style of the page: for screens, wide and narrow, light and dark, and for paper."""

from __future__ import annotations

import re

from fastio.diagnose.report import palette
from fastio.diagnose.report.canvas import WIDE

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 FONTS}
main{max-width:CONTENTpx;margin:0 auto;padding:40px 24px 64px}
h1,h2,h3,p,ol,ul,dl,figure,table{margin:0;padding:0}
h1,h2,h3{line-height:1.3;text-wrap:balance}
code,.path{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
.kind{color:var(--soft);font-size:14px;letter-spacing:.02em}
.path{font-size:14px;font-weight:600;overflow-wrap:anywhere;color:var(--ink)}
.verdict{font-size:27px;font-weight:650;letter-spacing:-.012em;margin:10px 0 26px;
  text-wrap:pretty}
.lead{margin:-14px 0 26px;font-size:17px}
.numbers{display:grid;grid-template-columns:repeat(auto-fill,minmax(210px,1fr));gap:12px;
  margin-bottom:24px}
@media (min-width:601px){
.numbers:has(>:nth-child(4):last-child){grid-template-columns:repeat(4,1fr)}
}
.numbers div{background:var(--panel);border-radius:10px;padding:14px 16px}
.numbers dt{font-size:13px;color:var(--soft)}
.numbers dd{margin:0}
.numbers .value{font-size:25px;font-weight:650;letter-spacing:-.01em;line-height:1.3;
  font-variant-numeric:tabular-nums}
.numbers .note{font-size:13px;color:var(--soft);line-height:1.4}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;font-size:14px;
  line-height:1.5}
.facts dt{color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
section{margin-top:52px}
h2{font-size:21px;font-weight:650;padding-bottom:8px;border-bottom:1px solid var(--line);
  margin-bottom:18px}
h3{font-size:16px;font-weight:650}
.findings{list-style:none;counter-reset:finding;display:grid;gap:22px}
.findings>li{counter-increment:finding;position:relative;padding-left:44px}
.findings>li::before{content:counter(finding);position:absolute;left:0;top:1px;width:28px;
  height:28px;border-radius:50%;background:var(--panel);color:var(--soft);font-size:14px;
  font-weight:650;display:grid;place-items:center}
.findings .gain{float:right;margin-left:16px;color:var(--good);font-weight:650;
  white-space:nowrap}
.findings .advice{margin-top:3px}
.findings ul{margin-top:6px;padding-left:18px;font-size:14px;color:var(--soft)}
figure{margin-top:34px;break-inside:avoid}
figure:first-of-type{margin-top:0}
figcaption{margin-bottom:14px}
figcaption p{font-size:14px;color:var(--soft);margin-top:2px}
figure svg{display:block;width:100%;height:auto;overflow:visible;font-family:inherit}
figure .narrow{display:none;max-width:460px}
.scroll{overflow-x:auto;margin:0 -24px;padding:0 24px}
.table{margin-top:30px;break-inside:avoid}
.table:first-of-type{margin-top:0}
table{border-collapse:collapse;min-width:min(100%,480px);font-size:14px;line-height:1.4;
  font-variant-numeric:tabular-nums;margin-top:8px}
th,td{padding:6px 0 6px 22px;text-align:right;white-space:nowrap;
  border-bottom:1px solid var(--line)}
th{font-weight:500;color:var(--soft)}
th:first-child{text-align:left;padding-left:0}
tbody th{font-weight:400;color:var(--ink)}
td.text{text-align:left;white-space:normal;min-width:15em;color:var(--soft)}
tr.sum>*{font-weight:600}
tr.first>*{border-top:2px solid var(--line)}
.about{font-size:13px;color:var(--soft);margin-top:8px;max-width:68ch}
.how p,.how ul{max-width:70ch}
.how ul{padding-left:20px;margin-top:10px}
.how li{margin-top:4px}
footer{margin-top:56px;padding-top:14px;border-top:1px solid var(--line);font-size:13px;
  color:var(--soft)}
@media (max-width:600px){
main{padding:24px 18px 48px}
.scroll{margin:0 -18px;padding:0 18px}
.verdict{font-size:22px;margin:8px 0 20px}
.numbers{grid-template-columns:1fr 1fr;gap:10px}
.numbers .value{font-size:21px}
.facts{grid-template-columns:1fr;gap:0}
.facts dd{margin-bottom:6px}
section{margin-top:40px}
.findings>li{padding-left:38px}
.findings .gain{float:none;display:block;margin:0}
tbody th{white-space:normal;min-width:8em}
figure .wide{display:none}
figure .narrow{display:block}
}
@media print{
@page{margin:16mm 14mm}
body{font-size:11pt}
main{max-width:none;padding:0}
section{margin-top:28px}
.scroll{overflow:visible}
th,td{padding-left:10px}
table{font-size:9pt}
h2,h3,figcaption{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""


def style() -> str:
    """Returns the style sheet."""
    rules = _RULES.replace("FONTS", palette.FONTS).replace("CONTENT", str(WIDE + 48))
    return palette.css() + re.sub(r"\s*\n\s*", "", rules)
