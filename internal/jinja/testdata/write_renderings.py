"""Writes what Jinja2, set up as transformers does for chat templates, makes of templates: {template, text}, or {template, error} where it
fails. The values of all are VALUES; strftime_now has the time 2026-01-02 03:04:05.

    pip install jinja2==3.1.6
    python write_renderings.py > renderings.json
"""

import datetime
import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """The statement generation, which marks what an assistant has said and prints it."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime(2026, 1, 2, 3, 4, 5).strftime(format)
    return env


VALUES = {
    "n": 7, "x": 2.5, "yes": True, "nothing": None, "s": " Größe\t日本\n", "empty": "", "quoted": "a \"b\" \\ 'c'\n\u0007</s>",
    "words": "the quick brown fox", "list": [1, "two", 3.0, None, False], "names": ["b", "a", "C"], "many": [[1, 2], [3, 4]],
    "d": {"role": "user", "content": "hi", "items": "own", "n": {"deep": [0, {"x": "y"}]}},
    "messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi <|im_end|>"},
                 {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"}, {"role": "user", "content": "Bye"}],
}

EXPRESSIONS = r"""
n + 1 ; n - 10 ; n * 3 ; n / 2 ; n // 2 ; -n // 2 ; -n % 3 ; 2 ** 5 ; 2 ** -1 ; 2 ** 0.5 ; x * 2 ; x + n ; 1e3 ; 7 / 7 ; 0.1 + 0.2 ; 1 / 3 ; 100000000000000000000.0 ; 1.5e-7
-n ; +n ; - x ; not n ; not empty ; not not n ; true and none ; n or s ; empty or 'e' ; nothing or false ; n and x and yes ; 1 == 1.0 ; true == 1 ; '1' == 1 ; none == false
1 < 2 < 3 ; 1 < 3 < 2 ; 3 > 2 >= 2 ; 'a' < 'b' ; 'a' in words ; 'quick' in words ; 'q' not in words ; 1 in list ; 'two' in list ; none in list ; 'role' in d ; 'x' in d ; not 'x' in d
s ; s ~ n ; n ~ x ~ none ~ yes ; 'a' ~ 'b' * 3 ; 'a' + 'b' ; 'ab' * 0 ; 'ab' * -1 ; 'a' 'b' "c" ; 'it\'s' ; "say \"x\"" ; 'tab\tnew\nback\\ \x41\u00e9' ; '\q' ; "'"
list ; d ; [] ; {} ; [1, [2, ['x']]] ; {'a': 1, "b": [true]} ; (1, 2)|list ; 'a' if yes else 'b' ; 'a' if nothing ; ('a' if empty else 'b' if nothing else 'c') ; none ; yes ; 3.0 ; None ; True ; False
s[1] ; s[-1] ; words[4:9] ; words[:-4] ; words[::-1] ; words[-3:] ; words[::5] ; words[100:] ; words[10:2:-3] ; list[1:3] ; list[-2:] ; list[::-1] ; list[10:] ; list[0] ; list[-1] ; list[99] ; many[1][0] ; many.0.1
d.role ; d['role'] ; d.n.deep[1].x ; d['n']['deep'][1]['x'] ; d.missing ; d['missing'] ; d.get('role') ; d.get('missing') ; d.get('missing', 'z') ; d.items()|length ; d['items'] ; d.keys()|list ; d.values()|list|length
d.missing.more ; missing ; missing.more ; missing + 1 ; missing is defined ; d.missing is defined ; missing is not defined ; missing == none ; missing|length ; not missing ; missing|default('x') ; empty|default('x') ; empty|default('x', true) ; empty|d('y', boolean=true)
s|trim ; s.strip() ; s.lstrip() ; s.rstrip() ; words.strip('thex') ; words|trim('thex') ; words.lstrip('the ') ; words.rstrip('x') ; words.split() ; words.split(' ') ; words.split(' ', 1) ; words.split('quick') ; words.split('zzz') ; s.split()
'a\n\nb\n'.splitlines() ; '</think>x'.split('</think>')[-1].lstrip('\n') ; words.startswith('the') ; words.startswith('quick') ; words.endswith('fox') ; words.startswith(('a', 'the')) ; words.replace('quick', 'slow') ; words.replace('o', '0', 1) ; words|replace('the ', '')
words.upper() ; words|upper ; s|lower ; words.title() ; words|capitalize ; words.capitalize() ; words.find('quick') ; words.find('zzz') ; words.count('o') ; ', '.join(names) ; names|join ; names|join(', ') ; list|join('-') ; many|map('first')|join ; messages|map(attribute='role')|join(' ')
names|first ; names|last ; []|first ; names|length ; names|count ; s|length ; d|length ; names|reverse|list ; words|reverse ; words|list|length ; n|string ; n|string|length ; '12'|int ; 'x'|int ; '3.7'|float ; 3.99|int ; x|int ; 'x'|int(5) ; yes|int
messages|selectattr('role', 'equalto', 'user')|list|length ; messages|selectattr('role', 'eq', 'user')|map(attribute='content')|list ; messages|rejectattr('role', '==', 'user')|list|length ; list|select|list ; list|reject|list ; list|select('string')|list ; list|select('number')|list
(messages|selectattr('role', 'in', ['system', 'assistant'])|first).content ; (messages|last).role ; messages[-1].role ; messages[1:]|length ; messages[::-1][0].content ; 'a b'|title ; [1,2,3]|join(',') ; messages[0]|items|map('first')|list
quoted|tojson ; list|tojson ; d|tojson ; d|tojson(indent=2) ; []|tojson(indent=4) ; {}|tojson ; many|tojson(indent=1) ; d|tojson(separators=(',', ':')) ; 'é'|tojson ; x|tojson ; none|tojson ; yes|tojson ; missing|tojson ; quoted|safe ; quoted|string
n is number ; n is integer ; x is float ; n is float ; s is string ; n is string ; list is iterable ; s is iterable ; n is iterable ; d is mapping ; list is mapping ; list is sequence ; d is sequence ; s is sequence ; yes is boolean ; n is boolean ; yes is true ; yes is false ; none is none ; nothing is not none
n is odd ; n is even ; n is eq 7 ; n is equalto(7) ; n is ne 7 ; n is gt 3 ; n is lt 3 ; n is in [7] ; 'a' is in 'abc' ; n is sameas n ; 'AB' is upper ; 'ab' is lower ; d.get is callable ; n is not string and yes ; s is nonsense ; s|nonsense ; s.nonsense ; s.nonsense()
raise_exception('no!') ; strftime_now('%Y-%m-%d %H:%M') ; strftime_now('%d %b %Y') ; strftime_now('%A %B %j %p %I %%') ; range(3)|list ; range(1, 4)|list ; range(5, 0, -2)|list ; range(0)|list ; dict(a=1, b='x') ; namespace(a=1).a ; n() ; nothing.x ; list.append(1)
words|indent ; 'a\nb\n\nc'|indent ; 'a\nb'|indent(2) ; 'a\nb'|indent(2, true) ; 'a\nb'|indent(width=1, first=true) ; s + 1 ; 1 + 'a' ; [1] + [2] ; [1] + 1 ; 1 // 0 ; 'a' < 1 ; n[0] ; 'x' in 5 ; {'a': {'b': 1}}.a.b ; {'a': 1}['a'] ; (n) ; ((n + 1) * 2) ; n if n > 3 else x
yes ~ '' ; [yes, none, 'a\'b', "x\n", quoted, '\'"', '\xa0\u200b\U0001f600\x7f'] ; ['é', 1.0, -0.0] ; words.split('') ; words is defined and words|length > 3 ; 3 is not none ; d.role == 'user' and d.content != '' ; messages[0]['role'] == 'system' ; {{}} ; {'a'} ; n n ; n | ; | n ; ( ; [1 ; 'open
"""

TEMPLATES = [
    "plain", "", "a\n", "a\n\n", "\n", "{{ n }}\n", "{{ n }}\n\n", "a\r\nb\r", "{ {% if n %}x{% endif %} }", "{# c #}a{# d\n -#}  b{#- e #} c", "a\n  {# c #}\nb", "a {#- c -#} b", "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}",
    "a\n  {% if n %}\n  b\n  {% endif %}\nc", "a\n  {%+ if n %}\n  b\n  {%- endif +%}\nc", "x {% if n %} y {% endif %} z", "  {% if n %}a{% endif %}", "\t{{ n }}  {{- n -}}  \n b", "a  {%- if n -%}  b  {%- endif -%}  c", "{% if n %}\n\na{% endif %}\n\n\nb",
    "{{ n }}  {% if n %}\nq{% endif %}", "a\n{{ n }} {% set y = 1 %}\n b", "a\n\n   {% set y = 1 %}   \n b{{ y }}", "{{- n }}", "{%- if n %} a {% endif -%} \n\n b", "{{n}}{{+ n}}{{ - n }}", "{%if n%}a{%elif x%}b{%else%}c{%endif%}", "{% if 0 %}a{% elif 0 %}b{% elif x %}c{% endif %}",
    "{% if 0 %}a{% else %}b{% endif %}", "{% for i in list %}{{ i }},{% endfor %}", "{% for i in [] %}a{% else %}none{% endfor %}", "{% for i in names %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in names %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in names %}{{ loop.cycle('x', 'y') }}{% endfor %}", "{% for a, b in many %}{{ a }}-{{ b }} {% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for c in 'añb' %}[{{ c }}]{% endfor %}", "{% for i in list if i is number %}{{ loop.index }}:{{ i }} {% endfor %}", "{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in missing %}a{% else %}b{% endfor %}", "{% for i in n %}a{% endfor %}",
    "{% for i in [1, 2] %}{% for j in [3, 4] %}{{ i }}{{ j }}{{ loop.last }} {% endfor %}{{ loop.last }}{% endfor %}", "{% set y = 0 %}{% for i in names %}{% set y = i %}{{ y }}{% endfor %}{{ y }}", "{% set y = 0 %}{% if n %}{% set y = 5 %}{% endif %}{{ y }}", "{% set ns = namespace(y=0) %}{% for i in [1, 2] %}{% set ns.y = ns.y + i %}{% endfor %}{{ ns.y }}",
    "{% set ns = namespace(a=1, b='x') %}{% set ns.c = ns.a ~ ns.b %}{{ ns.c }}{{ ns.missing }}", "{% set d.role = 'x' %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1, 2, 3] %}", "{% set t %}x {{ n }} y{% endset %}[{{ t }}]", "{% macro m(a, b='z', c=n) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}",
    "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{%- macro m(x) -%}\n  {{- x }}\n{%- endmacro -%}\n{{ m('a')|upper }}", "{% generation %}a{{ n }}{% endgeneration %}", "{% for i in [1] %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}", "{% if %}{% endif %}", "{% if n %}", "{% endif %}", "{% for %}{% endfor %}",
    "{% nonsense %}", "{{ n", "{% if n", "{# n", "{{ 'a }}", "{% break %}", "{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% else %}", "{% set %}", "{% set 1 = 2 %}", "{% macro %}{% endmacro %}", "{{ n }}}", "}} %} #} a", "{ { n } }", "{% if n %}{{ n }}{% endif %}{% if not n %}{{ 1 / 0 }}{% endif %}",
    "{{ loop }}", "{% set messages = messages[1:] %}{{ messages|length }}{{ messages[0].role }}", "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}{% endfor %}", "{% set content = messages[2].content %}{% if '</think>' in content %}{{ content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}|{{ content.split('</think>')[-1].lstrip('\\n') }}{% endif %}",
    "{% for message in messages %}{% set m = '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' %}{% if loop.index0 == 0 %}{% set m = 'BOS' + m %}{% endif %}{{ m }}{% endfor %}", "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content']|trim %}{% else %}{% set loop_messages = messages %}{% endif %}{{ loop_messages|length }}{{ system }}",
]


def main():
    env, out = environment(), []
    templates = TEMPLATES + ["{{ " + e + " }}" for line in EXPRESSIONS.strip().split("\n") for e in line.split(" ; ")]
    for template in templates:
        try:
            out.append({"template": template, "text": env.from_string(template).render(**VALUES)})
        except Exception as e:
            out.append({"template": template, "error": f"{type(e).__name__}: {e}"})
    json.dump({"values": VALUES, "renderings": out}, sys.stdout, ensure_ascii=False, indent=0)


if __name__ == "__main__":
    main()
