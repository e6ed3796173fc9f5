#!/usr/bin/env python3
"""Writes chat.json: chat templates, conversations, and the texts that transformers makes of them.

The templates are written for this file. They use the constructs, and produce the prompt formats, of Llama 2, Llama 3.1, Mistral, Qwen2 and
Qwen3; `features` and `spaces` go through the language piece by piece. A conversation that the template refuses has no text.

usage: make_chat_golden.py    (needs: pip install transformers jinja2; the versions are in the file)
"""
import datetime
import json
import pathlib

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate: user, assistant, user, ...') }}\
{% endif %}\
{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + \
message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{#- The system message comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "Functions as JSON:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(count=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.count % 2 == 0) %}
            {{- raise_exception("after the system message, user and assistant alternate") }}
        {%- endif %}
        {%- set ns.count = ns.count + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("ids have nine characters") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + "}[/TOOL_RESULTS]" }}
    {%- endif %}
{%- endfor %}
"""

QWEN2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe \
helpful.<|im_end|>\\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and \
not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + \
content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

TOOLS = [{
    "type": "function", "function": {
        "name": "weather", "description": "of a \"place\" & more", "parameters": {
            "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer", "default": 1.5}},
            "required": ["place"]
        }, "return": None
    }
}]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": " Be brief.\n"}
CALL = assistant(
    "",
    tool_calls=[{"id": "123456789", "type": "function", "function": {"name": "weather", "arguments": {"place": "Gen\u00e8ve", "days": 2}}}])
CHATS = {
    "one": [user("Hi there")],
    "system": [SYSTEM, user("  What's 1 < 2?  ")],
    "turns": [user("a"), assistant(" b "), user("c\nd"),
              assistant("e"), user("\u4f60\u597d \U0001f600")],
    "system_turns": [SYSTEM, user("a"),
                     assistant("<think>\nwhy\n</think>\n\nb"),
                     user("c"), assistant("<think>\nx</think>y")],
    "disorder": [assistant("b"), user("a")],
    "tools": [
        user("weather?"), CALL, {"role": "tool", "name": "weather", "content": "sunny", "tool_call_id": "123456789"},
        assistant("Sunny."),
        user("thanks")
    ],
}

# Expressions, one a line; each is printed in brackets.
EXPRESSIONS = """
1 + 2 * 3 - 4
7 // 2, 7 % 3, -7 // 2, -7 % 3
7 / 2
2 ** 3
-3|abs
(-3)|abs
1.0, 0.5, 1e3, 100000.0, 1e20, 0.1 + 0.2
1 == 1.0, 1 == true, 'a' == 'a', none == none
1 < 2 < 3, 1 < 3 < 2
'a' in 'abc', 'x' not in ['x'], 'k' in {'k': 1}
not true or true and false
true, false, none
'yes' if 1 else 'no'
'yes' if 0
1 ~ 'a' ~ none
'a' 'b'
"it's \\n\\t\\\\ \\"q\\""
[1, 'a', [2.5, none], {'k': 'v', 'q': "it's"}]
{}, [], ()
messages[0].content, messages[-1]['role'], messages[5]
'hello'[1], 'hello'[-1], 'hello'[1:3], 'hello'[::-1], 'hello'[:-1], 'hello'[10:]
[1, 2, 3, 4][1:], [1, 2, 3, 4][-2:], [1, 2, 3, 4][::2], [1, 2, 3, 4][3:0:-1]
'  x '|trim ~ '|', ' x '.strip() ~ '|', 'xxaxx'.strip('x'), 'xxaxx'.lstrip('x'), 'xxaxx'.rstrip('x')
'a,b,c'.split(','), ' a  b '.split(), 'a,b,c'.split(',', 1), 'a b  c'.split(none, 1), 'a,b,c'.rsplit(',', 1)
'Abc'.upper(), 'Abc'.lower(), 'ab cd'.title(), 'aB'.capitalize(), 'ab'|capitalize, 'aB cD'|title, 'A'|lower, 'a'|upper
'abab'.replace('a', 'x'), 'abab'|replace('a', 'x', 1), 'abc'.find('c'), 'abc'.find('z'), 'abab'.count('ab')
'abc'.startswith('a'), 'abc'.endswith('bc'), 'abc'.startswith(['x', 'a']|list) if false else 'skip'
'x'.join(['a', 'b']), ['a', 'b', 1]|join('-'), ['a', 'b']|join, messages|join(', ', attribute='role')
messages|length, 'abc'|length, {'a': 1}|length, 'h\u00e9llo'|length, '\u4f60\u597d'[1]
messages|map(attribute='role')|list, ['a', 'b']|map('upper')|join(','), messages|map(attribute='none', default='d')|first
messages|selectattr('role', 'equalto', 'user')|list|length, messages|rejectattr('role', '==', 'user')|list|length
[1, 2, 3]|select('odd')|list, [1, 2, 3]|reject('gt', 1)|list, [0, 1, '']|select|list, messages|selectattr('role')|list|length
[3, 1, 2]|sort, ['b', 'A']|sort, [3, 1]|sort(reverse=true), [1, 2]|sum, [1, 2]|max, [1, 2]|min, [1, 1, 2]|unique|list
[1, 2]|first, [1, 2]|last, [1, 2]|reverse|list, 'abc'|reverse, [1, 2]|list
nothing|default('d'), ''|default('d'), ''|default('d', true), none|d('x', true), nothing is defined, messages is defined
1 is number, 'a' is string, [] is sequence, {} is mapping, 'a' is iterable, 1 is iterable, 1.5 is float, true is boolean, 1 is integer, \
true is integer
1 is odd, 2 is even, 9 is divisibleby 3, 9 is divisibleby(2), none is none, true is true, 1 is true, 1 is not none, 'a' is in ['a'], 1 is \
eq 1, 2 is gt(1)
{'b': 1, 'a': 2}|dictsort, {'b': 1}|items|list, {'b': 1}.items()|list, {'b': 1}.keys()|list, {'b': 1}.values()|list, {'b': 1}.get('x', \
'y'), {'b': 1}.get('x')
{'a': 1, 'b': [1.5, none, true], 'c': "<'\u00e9\\n>"}|tojson, []|tojson, {}|tojson(indent=2)
{'b': {'x': [1, {}], 'y': []}, 'a': 2}|tojson(indent=2)
{'b': 1, 'a': 2}|tojson(sort_keys=true)
'5'|int + 1, 'x'|int, 'x'|int(3), '2.5'|float, 3.7|int, 2.567|round(2), 2.5|round, 2.2|round(0, 'ceil')
5|string + '1', none|string, true|string, [1]|string
'a\\nb\\n\\nc'|indent(2), 'a\\nb'|indent(2, true), '<b>'|e|length, 'one two'|wordcount, ('a'|safe) ~ ''
range(3)|list, range(1, 7, 2)|list, range(3, 0, -1)|list, dict(a=1, b='x')
'abc'.isdigit(), '12'.isdigit(), 'a\\nb'.splitlines(), 'abc'.removeprefix('a'), 'abc'.removesuffix('c')
('a', 1)|last, 'a' * 3, [1] * 2, [1] + [2]
loop is defined, messages is iterable and messages is not string, namespace(a=1).a
'ab'.isalpha(), 'a1'.isalpha(), ''.isalpha(), ' \\t'.isspace(), 'a '.isspace(), ''.isspace()
'abc'|count, [1, 2]|count, namespace(a=3)|attr('a'), {'a': 3}|attr('a')
'<b> & "q"'|escape
'\\x41\\u00e9\\U0001F600', 'a\\x5c'
nothing is undefined, messages is undefined, range is callable, 'a' is callable, 'abc' is lower, 'aBc' is lower, \
'ABC' is upper, 'AbC' is upper
none is sameas none, true is sameas true, 1 is sameas true, 1 is sameas 1.0
1 is ne 2, 1 is lt 2, 2 is lt 2, 1 is lessthan 2, 3 is greaterthan 2, 2 is le 2, 3 is le 2, 2 is ge 2, 1 is ge 2
[1, 2, 3]|select('!=', 2)|list, [1, 2, 3]|select('>', 2)|list, [1, 2, 3]|select('<', 2)|list, \
[1, 2, 3]|select('<=', 2)|list, [1, 2, 3]|select('>=', 2)|list
[3, 1, 2]|sort(reverse=false)|join, ['b', 'a', 'C']|sort(case_sensitive=true)|join, \
messages|sort(attribute='role')|map(attribute='role')|join(',')
'abc'.startswith('b'), 'abc'.endswith('b'), 'aXbXc'.split('X', 0), 'a b c'.split(none, 0), 'aXbXc'.rsplit('X'), ''.split(), ''.split(',')
'abcabc'.find('c', 3) if false else 'abc'.find('a'), 'aaa'.replace('a', 'b', 2), 'abc'.replace('x', 'y')
7 % -3, -7 % 3, -7 // -2, 2 ** -1, 7.5 // 2, 7.5 % 2, 1e16, 1e-5, 123456789.125
-1|abs, (-2.5)|abs, 2.5|round, 3.5|round, -2.5|round, 2.567|round(1, 'floor'), 1234.5|round(-2) if false else '', 10|round
'1e2'|float, 'x'|float(1.5), '-7'|int, '0x1f'|int(0, 16), 2.9|int, -2.9|int, true|int, none|int(4)
'abc'[-5:], 'abc'[5], 'abc'[::2], [1, 2, 3][-1:], [1, 2, 3][:-5], [1, 2, 3][5:1:-2], (1, 2, 3)[1:]
[1, 2]|sum(start=5), [{'n': 1}, {'n': 2}]|sum(attribute='n'), []|sum, []|max, []|first, []|last is defined
[1, 2] == [1, 2], [1] < [2] if false else 1, {'a': 1} == {'a': 1}, (1, 2) == (1, 2), (1,) == [1], 'a' < 'b', 'B' < 'a', 1 != 1.0
['a', none, true, 1.0, [1]]|tojson, 'x\\u00e9</script>'|tojson, {'a': {'b': [1]}}|tojson(indent=1), [[], {}]|tojson(indent=2)
'one\\ntwo\\n'|indent, 'one\\n\\ntwo'|indent(3, blank=true), 'one\\ntwo'|indent(first=true), 'one\\ntwo'|indent('> ') if false else ''
[{'f': {'n': 'b'}}, {'f': {'n': 'a'}}, {'f': 1}]|map(attribute='f.n')|join('-'), [{'f': {'n': 'b'}}, \
{'f': {'n': 'a'}}]|sort(attribute='f.n')
[{'f': {'n': 'b'}}, {'f': {'n': 'a'}}]|selectattr('f.n', 'equalto', 'a')|list, [{'f': {'n': 2}}, {'f': {'n': 3}}]|sum(attribute='f.n')
{'a': 1} == {'a': 1, 'b': 2}, {'a': 1, 'b': 2} == {'a': 1}, {'a': 1} == {'b': 1}, {'a': 1, 'b': 2} == {'b': 2, 'a': 1}, {'a': 1, \
'b': 2, 'a': 3}
{'b': 2, 'a': 1}|dictsort(by='value'), {'b': 2, 'A': 1}|dictsort, {'a': 1, 'b': 2}|dictsort(reverse=true), {'b': 1}|length, {}|list
""".strip().split("\n")

FEATURES = """{%- macro show(x, y='d', z=none) -%}<{{ x }}:{{ y }}:{{ z }}>{%- endmacro -%}
{{ show(1) }}{{ show(1, 2) }}{{ show(z=3, x='n') }}
{% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }};{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}\
{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}
{% for x in [] %}x{% else %}empty{% endfor %}
{% for x in 'ab' %}{{ x }}{{ loop.cycle('1', '2', '3') }}{{ loop.previtem is defined }}{{ loop.nextitem|default('-') }}{% endfor %}
{% for k in {'p': 1, 'q': 2} %}{{ k }}{% endfor %}{% for k, v in {'p': 1}.items() %}{{ k }}={{ v }}{% endfor %}
{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(v=0, w='a') %}{% for i in [1, 2] %}{% set ns.v = ns.v + i %}{% set ns.u = i %}{% endfor %}{{ ns.v }}{{ ns.u }}
{% set block %}in{{ 1 }} {% endset %}[{{ block }}]{% set other | upper | trim %} up {% endset %}[{{ other }}]
{% set p, q = 1, 'z' %}{{ p }}{{ q }}
{% filter upper %}loud{{ 'x' }}{% endfilter %}{% filter trim | replace('a', 'b') %} aha {% endfilter %}
{% raw %}{{ raw }} {% if %}{% endraw %}{# gone #}
{% generation %}said{% endgeneration %}
{% if 0 %}a{% elif [] %}b{% elif 'x' %}c{% else %}d{% endif %}{% if none %}e{% endif %}
{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}{{ "%}" }}
{{ nothing }}{{ messages[0].nothing }}{% if nothing %}x{% endif %}{% for x in nothing %}x{% endfor %}
{% macro outer() %}{{ inner() }}{% endmacro %}{% macro inner() %}deep{% endmacro %}{{ outer() }}
end
"""

SCOPES = """{% set v = 1 %}{% set w %}{% set v = 2 %}{{ v }}{% endset %}{{ v }}{{ w }}
{% filter upper %}{% set v = 'q' %}{{ v }}{% endfilter %}{{ v }}
{% if true %}{% set v = 3 %}{% endif %}{{ v }}{% for i in [] %}{% else %}{% set v = 4 %}{% endfor %}{{ v }}
{% macro one(x) %}{% set v = x %}{{ v }}{% endmacro %}{% for i in range(150) %}{{ one(i) }},{% endfor %}{{ v }}
{% for v in [7] %}{{ v }}{% endfor %}{{ v }}
"""

SPACES = """
  {% if true %}
    one
  {% endif %}
{{ 'two' }}
  {{ 'three' }}
   {#- comment -#}
 four  {%- if true -%}   five   {%- endif +%}
six
\t{%+ if true %}seven{% endif %}   eight
{% for i in [1, 2] -%}
  [{{ i -}}  ]
{% endfor %}
  {% raw -%}   {{ x }}  {%- endraw %}
nine {% if true %}
ten{% endif %}

{{- ' eleven' }}

"""

BAD = {
    "unknown_statement": ("a\n{% extends 'x' %}", 2),
    "unknown_filter": ("\n\n{{ 1|frobnicate }}", 3),
    "unknown_test": ("{{ 1 is nice }}", 1),
    "unknown_function": ("\n{{ lipsum() }}", 2),
    "unknown_method": ("{{ 'a'.zfill(3) }}", 1),
    "no_end": ("{% if 1 %}\nx", 1),
    "no_endfor": ("\n{% for i in [1] %}x", 2),
    "open_tag": ("a\n{{ 1 ", 2),
    "open_quote": ("\n{{ 'a }}", 2),
    "two_values": ("{{ 1 2 }}", 1),
    "no_value": ("{{ }}", 1),
    "undefined_attribute": ("x\n{{ nothing.more }}", 2),
    "call_of_text": ("{{ 'a'() }}", 1),
    "mixed_sum": ("{{ 'a' + 1 }}", 1),
    "mixed_order": ("{{ 'a' < 1 }}", 1),
    "refusal": ("\n{{ raise_exception('no ' + 'thanks') }}", 2),
    "break_outside": ("{% break %}", 1),
    "stray_end": ("{% endif %}", 1),
    "set_attribute": ("{% set d = {'a': 1} %}\n{% set d.a = 2 %}", 2),
    "extra_argument": ("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", 1),
    "division": ("{{ 1 // 0 }}", 1),
    "short_escape": ("\n{{ '\\u12' }}", 2),
    "bad_escape": ("{{ '\\xg1' }}", 1),
    "dictsort_by": ("{{ {}|dictsort(by='x') }}", 1),
    "unpack_too_few": ("{% for a, b in [(1, 2), (3,)] %}{% endfor %}", 1),
    "slice_step": ("\n{{ [1][::0] }}", 2),
    "range_step": ("{{ range(1, 2, 0) }}", 1),
    "range_size": ("{{ range(100000000)|list|length }}", 1),
    "dictsort_of_list": ("{{ [1]|dictsort }}", 1),
    "sum_of_text": ("{{ ['a']|sum }}", 1),
    "abs_of_text": ("{{ 'a'|abs }}", 1),
    "round_of_text": ("{{ 'a'|round }}", 1),
    "items_of_list": ("{{ [1]|items|list }}", 1),
    "json_of_nothing": ("{{ nothing|tojson }}", 1),
    "empty_separator": ("{{ 'a'.split('') }}", 1),
    "prefix_number": ("{{ 'a'.startswith(1) }}", 1),
    "join_numbers": ("{{ ','.join([1]) }}", 1),
    "divisible_by_zero": ("{{ 1 is divisibleby(0) }}", 1),
    "odd_text": ("{{ 'a' is odd }}", 1),
    "modulo": ("{{ 1 % 0 }}", 1),
    "loop_over_number": ("{% for i in 5 %}{% endfor %}", 1),
    "call_of_nothing": ("{{ nothing() }}", 1),
    "position_after_name": ("{% macro f(a, b) %}{% endmacro %}{{ f(a=1, 2) }}", 1),
    "raw_without_end": ("a\n{% raw %}x", 2),
    "recursive": ("{% for x in [1] recursive %}{% endfor %}", 1),
    "multiline": ("{{ [1,\n 2,\n 3|frobnicate] }}", 3),
}


def render(template, messages, **variables):
    try:
        return render_jinja_template([messages], chat_template=template, **variables)[0][0]
    except jinja2.exceptions.TemplateError:
        return None


FAMILIES = dict(llama2=LLAMA2, llama3=LLAMA3, mistral=MISTRAL, qwen2=QWEN2, qwen3=QWEN3)
cases = []  # a template is one of these names, or the template itself


def add(name, template, messages, **variables):
    text = render(FAMILIES.get(template, template), messages, **variables)
    given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False} | variables
    cases.append({"name": name, "template": template, "variables": given, "text": text})


SPECIAL = dict(bos_token="<s>", eos_token="</s>")
for family in FAMILIES:
    for name, messages in CHATS.items():
        for prompt in (False, True):
            more = dict(date_string="26 Jul 2024") if family == "llama3" else {}
            if family == "qwen3" and name == "one":
                more = dict(enable_thinking=False)
            tools = TOOLS if name == "tools" and family != "qwen2" else None
            add(f"{family}_{name}_{int(prompt)}", family, messages, tools=tools, add_generation_prompt=prompt, **SPECIAL, **more)
for i, line in enumerate(EXPRESSIONS):
    add(f"expression_{i}", "[{{ " + line + " }}]", CHATS["turns"], **SPECIAL)
add("features", FEATURES, CHATS["turns"], **SPECIAL)
add("scopes", SCOPES, CHATS["one"], **SPECIAL)
add("spaces", SPACES, CHATS["one"], **SPECIAL)
add("windows_lines", SPACES.replace("\n", "\r\n"), CHATS["one"], **SPECIAL)
bad = [{"name": name, "template": template, "line": line} for name, (template, line) in BAD.items()]
for item in bad:
    if item["name"] in ("unknown_function", "unknown_method", "recursive", "range_size", "sum_of_text", "json_of_nothing",
                        "call_of_nothing"):
        continue  # Jinja has them, or refuses them otherwise
    try:
        assert render(item["template"], CHATS["one"]) is None, item
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, SyntaxError, AttributeError):
        pass
out = {
    "versions": {"transformers": transformers.__version__, "jinja2": jinja2.__version__}, "templates": FAMILIES, "cases": cases, "bad": bad
}
(pathlib.Path(__file__).parent / "chat.json").write_text(json.dumps(out, indent=1) + "\n")
