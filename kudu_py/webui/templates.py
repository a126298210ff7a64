"""The pages' HTML: one layout, one style, no scripts. Jinja escapes everything that is not written here."""

from __future__ import annotations

from jinja2 import DictLoader, Environment, StrictUndefined

_STYLE = """
:root { color-scheme: light dark; --line: #d8dde3; --soft: #f3f5f7; --text: #1b2229; --dim: #66717d;
  --accent: #0b62b0; }
@media (prefers-color-scheme: dark) {
  :root { --line: #333b44; --soft: #20262d; --text: #dfe5ea; --dim: #97a3af; --accent: #76b6f5; }
  body { background: #161a1f; }
}
body { margin: 0; font: 14px/1.45 system-ui, sans-serif; color: var(--text); }
header { padding: 12px 24px; border-bottom: 1px solid var(--line); background: var(--soft); }
header b { margin-right: 20px; }
header a { margin-right: 14px; white-space: nowrap; }
main { padding: 8px 24px 40px; }
h1 { font-size: 20px; margin: 16px 0 8px; } h2 { font-size: 16px; margin: 24px 0 6px; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
table { border-collapse: collapse; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
td.number { text-align: right; } p, .dim { color: var(--dim); } .ok { color: #2e8b57; } .bad { color: #c0392b; }
"""

_LAYOUT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }} - {{ server }}</title><style>{{ style }}</style></head>
<body><header><b><a href="/">{{ server }}</a></b>
{% for path, name in navigation %}<a href="{{ path }}">{{ name }}</a>{% endfor %}</header>
<main><h1>{{ title }}</h1>
{% block content %}{% endblock %}</main></body></html>
"""

_TABLE = """{% macro cell(value) -%}
{%- if value is none -%}<span class="dim">-</span>
{%- elif value.href is defined -%}
{%- if value.href is linkable -%}<a href="{{ value.href }}">{{ value.text }}</a>
{%- else -%}{{ value.text }}{%- endif -%}
{%- elif value is boolean -%}{{ "yes" if value else "no" }}
{%- else -%}{{ value }}{%- endif -%}
{%- endmacro %}
{% macro table(columns, rows, omitted) -%}
<table><thead><tr>{% for name in columns %}<th>{{ name.replace("_", " ") }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for value in row -%}
<td{% if value is number and value is not boolean %} class="number"{% endif %}>{{ cell(value) }}</td>
{%- endfor %}</tr>
{% endfor %}</tbody></table>
{% if not rows %}<p>None.</p>{% endif %}
{% if omitted %}<p>{{ omitted }} more are not shown; <code>?limit=N</code> shows more.</p>{% endif %}
{%- endmacro %}
"""

_HOME = """{% extends "layout" %}{% from "table" import cell %}{% block content %}
<p class="{{ 'ok' if health.ok else 'bad' }}">{{ health.status }}</p>
<table>{% for name, value in facts %}<tr><th>{{ name.replace("_", " ") }}</th><td>{{ cell(value) }}</td></tr>
{% endfor %}</table>{% endblock %}
"""

_TABLES = """{% extends "layout" %}{% from "table" import table %}{% block content %}
{% for each in tables %}{% if each.title %}<h2>{{ each.title }}</h2>{% endif %}
{{ table(each.columns, each.rows, each.omitted) }}{% endfor %}
<p><a href="{{ json_href }}">as JSON</a></p>{% endblock %}
"""

_MESSAGE = """{% extends "layout" %}{% block content %}<p>{{ message }}</p>{% endblock %}
"""


def environment() -> Environment:
    """The templates `home`, `tables` and `message`."""
    made = Environment(
        loader=DictLoader({"layout": _LAYOUT, "table": _TABLE, "home": _HOME, "tables": _TABLES, "message": _MESSAGE}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    made.globals["style"] = _STYLE
    made.tests["linkable"] = is_linkable
    return made


def is_linkable(href: str) -> bool:
    """Paths of this server and web addresses; never `javascript:` or the like, whatever a table's name may be."""
    return (href.startswith("/") and not href.startswith("//")) or href.startswith(("http://", "https://"))
