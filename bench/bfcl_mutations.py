"""Right answers to BFCL's questions, made from its possible answers, and many that are more or less wrong.

For `parity_bfcl.py`: what matters is that answers of every kind come, not which of them are right.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Calls = list[dict[str, dict[str, Any]]]


def right_calls(possible: list[Any], functions: list[Any], rng: random.Random | None = None) -> Calls:
    """Calls among the possible answers: the first values, or with `rng` any; optional ones may lack."""
    required = {function["name"]: set(function["parameters"]["required"]) for function in functions}
    calls: Calls = []
    for call in possible:
        ((name, parameters),) = call.items()
        arguments = {}
        for key, values in parameters.items():
            must = key in required.get(name, ()) or "" not in values
            if must or (rng is not None and rng.random() < 0.5):
                arguments[key] = _value(values, rng)
        calls.append({name: arguments})
    return calls


def _value(values: list[Any], rng: random.Random | None) -> Any:  # noqa: ANN401
    real = [value for value in values if value != ""] or [""]
    return _plain(rng.choice(real) if rng else real[0])


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A possible answer as a value: the entries of its dictionaries are lists of possible answers again."""
    if isinstance(value, dict):
        return {
            key: _value(inner, None) if isinstance(inner, list) else inner
            for key, inner in value.items()
            if not (isinstance(inner, list) and "" in inner and len(inner) == 1)
        }
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _string(value: Any) -> Any:  # noqa: ANN401
    return str(value)


VALUES: dict[str, Callable[[Any], Any]] = {
    "as_text": _string,
    "as_float": lambda v: float(v) if isinstance(v, int) else f"{v}.0",
    "as_int": lambda v: int(v) if isinstance(v, float) and abs(v) < 1e15 else 7,
    "none": lambda v: None,
    "in_list": lambda v: [v],
    "in_tuple": lambda v: (v,),
    "in_dict": lambda v: {"value": v},
    "empty_text": lambda v: "",
    "empty_list": lambda v: [],
    "empty_dict": lambda v: {},
    "plus_one": lambda v: v + 1 if isinstance(v, (int, float)) else f"{v}1",
    "negative": lambda v: -v if isinstance(v, (int, float)) else f"-{v}",
    "flipped": lambda v: not v,
    "upper": lambda v: v.upper() if isinstance(v, str) else [v, v],
    "punctuated": lambda v: ", ".join(v.split()) + "." if isinstance(v, str) else (v,),
    "shortened": lambda v: v[:-1] if isinstance(v, (str, list)) else 0,
    "quoted": lambda v: f"'{v}'",
    "reversed": lambda v: v[::-1] if isinstance(v, (str, list)) else str(v),
    "doubled": lambda v: v * 2 if isinstance(v, (str, list)) else [[v]],
    "items_as_text": lambda v: [str(x) for x in v] if isinstance(v, list) else {str(v): v},
    "key_dropped": lambda v: dict(list(v.items())[1:]) if isinstance(v, dict) else True,
    "key_added": lambda v: {**v, "surprise": 1} if isinstance(v, dict) else 3.5,
    "non_ascii": lambda v: f"{v}é\u2603",
}


def mutations(calls: Calls, rng: random.Random) -> Iterator[tuple[str, Calls]]:
    """At least 30 variations, each with its kind."""
    for name, change in VALUES.items():
        yield name, _with_value(calls, change, rng)
    yield "call_dropped", calls[:-1]
    yield "call_repeated", [*calls, calls[0]]
    yield "reordered", calls[::-1]
    yield "none_at_all", []
    yield "renamed", _with_call(calls, lambda name, words: (name + "s", words), rng)
    yield "name_lower", _with_call(calls, lambda name, words: (name.lower(), words), rng)
    yield "dots_to_underscores", [{n.replace(".", "_"): w for n, w in call.items()} for call in calls]
    yield "parameter_added", _with_call(calls, lambda name, words: (name, {**words, "surprise": 1}), rng)
    yield "no_arguments", _with_call(calls, lambda name, words: (name, {}), rng)
    yield "parameter_dropped", _with_call(calls, lambda name, words: (name, _without_one(words, rng)), rng)
    yield "parameter_renamed", _with_call(calls, lambda name, words: (name, _renamed(words, rng)), rng)
    yield (
        "words_reordered",
        _with_call(calls, lambda name, words: (name, dict(reversed(list(words.items())))), rng),
    )
    yield "one_name_for_all", [{next(iter(calls[0])): next(iter(call.values()))} for call in calls]


def _with_value(calls: Calls, change: Callable[[Any], Any], rng: random.Random) -> Calls:
    """Calls of which one argument, any, is changed."""
    changed = copy.deepcopy(calls)
    places = [(words, key) for call in changed for words in call.values() for key in words]
    if places:
        words, key = rng.choice(places)
        words[key] = change(words[key])
    return changed


def _with_call(calls: Calls, change: Callable[[str, Any], tuple[str, Any]], rng: random.Random) -> Calls:
    changed = copy.deepcopy(calls)
    if changed:
        at = rng.randrange(len(changed))
        ((name, words),) = changed[at].items()
        name, words = change(name, words)
        changed[at] = {name: words}
    return changed


def _without_one(words: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    gone = rng.choice(list(words)) if words else None
    return {key: value for key, value in words.items() if key != gone}


def _renamed(words: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    which = rng.choice(list(words)) if words else None
    return {f"{key}_" if key == which else key: value for key, value in words.items()}


def python_text(calls: Calls) -> str:
    """Calls as the official prompt asks for them."""
    return f"[{', '.join(f'{name}({_words(words, repr)})' for c in calls for name, words in c.items())}]"


def foreign_text(calls: Calls, functions: list[Any], language: str) -> str:
    """Calls in Java or JavaScript, their values in the form that the official converters read."""
    types = {function["name"]: function["parameters"]["properties"] for function in functions}
    written = []
    for call in calls:
        for name, words in call.items():
            kinds = types.get(name, {})
            parts = [
                f"{key}={foreign_value(value, kinds.get(key, {}), language)}" for key, value in words.items()
            ]
            written.append(f"{name}({', '.join(parts)})")
    return f"[{', '.join(written)}]"


def _words(words: dict[str, Any], write: Callable[[Any], str]) -> str:
    return ", ".join(f"{key}={write(value)}" for key, value in words.items())


def foreign_value(value: Any, details: dict[str, Any], language: str, *, bare: bool = False) -> str:  # noqa: ANN401
    """A value as source text of its type; `bare`: as in JSON, where text has no quotes of its own."""
    kind = details.get("type", "any")
    if bare and isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if kind in ("long", "Bigint") and isinstance(value, int):
        return f"{value}{'L' if kind == 'long' else 'n'}"
    if isinstance(value, (int, float)):
        return f"{value}f" if kind == "float" and language == "java" else str(value)
    inner = {"type": details.get("items", {}).get("type", "any")} if "items" in details else {}
    if isinstance(value, (list, tuple)):
        written = ", ".join(foreign_value(part, inner, language) for part in value)
        if language == "javascript":
            return f"[{written}]"
        if kind == "ArrayList":
            return f"new ArrayList<>(Arrays.asList({written}))"
        return f"new Object[]{{{written.replace(chr(34), '')}}}"  # the official reading keeps the quotes
    if isinstance(value, dict) and language == "javascript":
        return "{" + ", ".join(f'"{k}": {foreign_value(v, {}, language)}' for k, v in value.items()) + "}"
    if isinstance(value, dict):
        puts = " ".join(
            f'put("{k}", {foreign_value(v, {"type": "String"}, language)});' for k, v in value.items()
        )
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    plain = str(value).isidentifier() or '"' in str(value)
    return str(value) if kind == "any" and plain else f'"{value}"'


def odd_texts(text: str) -> Iterator[tuple[str, str]]:
    """A right reply in other clothes, and things that are no calls."""
    yield "fenced", f"```python\n{text}\n```"
    yield "backticks", f"`{text}`"
    yield "bare", text[1:-1]
    yield "prose_before", f"Here is the call: {text}"
    yield "prose_after", f"{text} I hope this helps."
    yield "trailing_comma", f"{text[:-1]},]"
    yield "cut", text[: len(text) * 2 // 3]
    yield "doubled_brackets", f"[{text}]"
    yield "quoted", f"'{text}'"
    yield "lines", text.replace(", ", ",\n    ")
    yield "tuple", f"({text[1:-1]})"
    yield "set", f"{{{text[1:-1]}}}"
    yield "arithmetic", text.replace("=", "=2*3+", 1)
    yield "powers", text.replace("=", "=2**3*", 1)
    yield "name_arithmetic", text.replace("=", "=x*", 1)
    yield "negated", text.replace("=", "=-", 1)
    yield "not", text.replace("=", "=not ", 1)
    yield "nested_call", text.replace("=", "=other(a=1), b=", 1)
    yield "nested_positional", text.replace("=", "=other(1), b=", 1)
    yield "subscript", text.replace("=", "=rows[0], b=", 1)
    yield "ellipsis", text.replace("=", "=..., b=", 1)
    yield "lambda", text.replace("=", "=lambda x: x, b=", 1)
    yield "comprehension", text.replace("=", "=[x for x in y], b=", 1)
    yield "positional", text.replace("(", "(1, ", 1)
    yield "starred", text.replace("(", "(**{'a': 1}, ", 1)
    yield "formatted", text.replace("=", "=f'{x}', b=", 1)
    yield "attribute", text.replace("=", "=Colour.RED, b=", 1)
    yield "empty", ""
    yield "brackets", "[]"
    yield "prose", "I cannot do that with the functions given."
    yield "one_word", "None"
    yield "number", "42"
    yield "list_of_text", "['f', 'g']"
    yield "json", '[{"name": "f", "arguments": {"a": 1}}]'
    yield "two_lists", f"{text}, {text}"
    yield "assignment", f"x = {text}"
    yield "nul", text + "\0"
    yield "surrogate", text.replace("(", "(a='\ud800', ", 1)


EXPRESSIONS = (
    *("f'{x}'", "f'{x!r:>{w}}'", 'F"a{{b}}"', "rf'{x}.d'", "f'{a[0]}' 'b'", "f'{(lambda: 0)()}'", "f'{1:,}'"),
    *("f'it{x}s, {y}'", "f'{x!r:\\n}'", "f'{x'", "f'''{x}'''", "f'{x:{y}}'", "f'{{'", "f'{f(1)}'", "f''"),
    *("lambda: 0", "lambda a, b=1: a", "lambda *a: lambda **b: a", "(lambda x: x)(1)", "(lambda x: x)(a=1)"),
    *("[x for x in y]", "{k: v for k, v in z}", "{x for x in y if x}", "(x for x in y)", "sum(x for x in y)"),
    *("rows[0]", "rows[1:2, ::3]", "rows['a'][f'{x}']", "rows[lambda: 0]", "rows[-1]", "[1, 2][0]"),
    *(
        "2*3",
        "2 ** 3 - 1",
        "7 // 2",
        "1/0",
        "x*2",
        "'a'+'b'",
        "'a'*3",
        "[1]+[2]",
        "(1,)*2",
        "1 @ 2",
        "1 << 4",
    ),
    *(
        "'%s' % 'x'",
        "'%d' % 3",
        "'a' + f'{1}'",
        "{'a': 1} | {'b': 2}",
        "len('a') + 1",
        "max(1, 2)*3",
        "x | y",
    ),
    *("(1 if True else 2) + 1", "[i for i in range(2)]*2", "'a'.upper() + 'b'", "(1 < 2) + 1", "{1} | {2}"),
    *(
        "other(1)",
        "other(a=1)",
        "other(*a, **k)",
        "other(f'{x}')",
        "other(1, a=f'{x}')",
        "other(f'{x}', a=1)",
    ),
    *("other(lambda: 0)", "a.b.other(f'{x}').c(1)", "f'{x}'.format(1)", "f'{x}'.format(a=1)", "other()()"),
    *(
        "a.b.c",
        "a < b",
        "a and b",
        "x if y else z",
        "not x",
        "-x",
        "-(1)",
        "~5",
        "+2.5",
        "-True",
        "-'x'",
        "not 3",
    ),
    *("{1, 2}", "{}", "{**a}", "[*a]", "(y := 2)", "await x", "(yield)", "b'x'", "1j", "-1j", "...", "None"),
    *("0x10", "1_000", "1e400", "-1e400", "u'x'", "r'\\d'", "'''x'''", "'a' 'b'", "'\\x41'", "true", "null"),
    *(
        "{'a': [1, {'b': (2,)}]}",
        "{1: 2}",
        "{other(a=1): 2}",
        "{(1, 2): 3}",
        "()",
        "(1,)",
        "[[[]]]",
        "1 2",
        ")",
    ),
)
"""Of Python, harmless when evaluated."""
FOREIGN_EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "java": (
        *('"a" + "b"', "2*3", "x ? 1 : 2", "() -> 1", "String::valueOf", "(int) 2.5", "a[0]", "new Foo(1)"),
        *("new int[]{1, 2}", "new int[3]", "other(1)", "other(a=1)", "a.b.c", "a.b(1)", "!x", "-x", "'c'"),
        *(
            "null",
            "true",
            "1_000",
            "0x1F",
            "1e5",
            "2.5f",
            "7L",
            '"""x"""',
            "Map.of(1, 2)",
            "/* c */ 1",
            "// c",
        ),
        *("(a -> a)", "x instanceof Foo", "a == b", 'List.of("a")', "Colour.RED", "Foo.class", "this", "{1}"),
        *("new Foo() {{ put(1, 2); }}", "x = 1", "x += 1", "i++", '"a\\"b"', "", ")", '"', "1 2", "é", "@X"),
    ),
    "javascript": (
        *("`a${x}`", "`a`", '"a" + "b"', "2*3", "x ? 1 : 2", "() => 1", "a => a", "function(a) { return a }"),
        *(
            "/a+/g",
            "...rest",
            "[...a]",
            "{...a}",
            "{a: 1}",
            "{a, b}",
            "{'a': [1]}",
            "[1, [2]]",
            "a[0]",
            "a?.b",
        ),
        *(
            "a ?? b",
            "new Foo(1)",
            "new Map([[1, 2]])",
            "other(1)",
            "other(a=1)",
            "a.b.c",
            "a.b(1)",
            "!x",
            "-x",
        ),
        *(
            "'c'",
            "null",
            "undefined",
            "NaN",
            "true",
            "1_000",
            "0x1F",
            "1e5",
            "7n",
            "void 0",
            "typeof x",
            "this",
        ),
        *("/* c */ 1", "// c", "await x", "async () => 1", "x = 1", "i++", "a, b", "", ")", '"', "1 2", "é"),
        *("class {}", "{a() {}}", "{[x]: 1}", "new Date()", "[,]", "'a\\'b'", "<a/>"),
    ),
}
PLACES: dict[str, Callable[[str, str], str]] = {
    "positional": lambda text, odd: text.replace("(", f"({odd}, ", 1),
    "last_positional": lambda text, odd: f"{text[:-2]}, {odd})]",
    "keyword": lambda text, odd: text.replace("=", f"={odd}, b=", 1),
    "in_place": lambda text, odd: text.replace("=", f"={odd} or ", 1),
    "in_list": lambda text, odd: text.replace("=", f"=[1, {odd}], b=", 1),
    "in_tuple": lambda text, odd: text.replace("=", f"=({odd}, 1), b=", 1),
    "in_dict": lambda text, odd: text.replace("=", f"={{'k': {odd}}}, b=", 1),
    "as_key": lambda text, odd: text.replace("=", f"={{{odd}: 1}}, b=", 1),
    "nested_positional": lambda text, odd: text.replace("=", f"=other({odd}), b=", 1),
    "nested_keyword": lambda text, odd: text.replace("=", f"=other(a={odd}), b=", 1),
    "nested_beside": lambda text, odd: text.replace("=", f"=other({odd}, a=1), b=", 1),
    "index": lambda text, odd: text.replace("=", f"=rows[{odd}], b=", 1),
    "indexed": lambda text, odd: text.replace("=", f"={odd}[0], b=", 1),
    "added": lambda text, odd: text.replace("=", f"={odd} + 1, b=", 1),
    "negated": lambda text, odd: text.replace("=", f"=-{odd}, b=", 1),
    "starred": lambda text, odd: text.replace("(", f"(*{odd}, ", 1),
    "double_starred": lambda text, odd: f"{text[:-2]}, **{odd})]",
    "function": lambda text, odd: text.replace("[", f"[({odd}).", 1),
    "element": lambda text, odd: text.replace("[", f"[{odd}, ", 1),
    "alone": lambda text, odd: f"[print({odd})]",
    "alone_by_name": lambda text, odd: f"print(a={odd})",
}


def odd_expressions(text: str, language: str, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """A right reply with odd expressions at odd places, drawn by chance: (place and expression, text)."""
    expressions = FOREIGN_EXPRESSIONS.get(language, EXPRESSIONS)
    for _ in range(count):
        place, expression = rng.choice(list(PLACES)), rng.choice(expressions)
        yield f"{place}: {expression}", PLACES[place](text, expression)
