"""Expressions as PCRE spells them, spelled for the `regex` package: the few places where the two differ.

`regex` reads nearly all of PCRE. Translated is what it spells otherwise or does not have; refused is what it alone has,
such as approximate matching, and what neither of the two shall do here (verbs, callouts).
"""

from __future__ import annotations

import re

from replset.errors import ErrorCode, ReplError

MOST_NODES = 33_000
"""`regex` copies what is repeated as often as it must occur at least: (?:a{1000}){1000} is a million nodes."""
_LONGEST_RUN = 128
"""Characters in a row: to search for many, `regex` makes a table in a time that grows with their cube."""
_PAUSE = r"(?=(?s:.)|\Z)"
"""Matches everywhere; two runs of characters with this between them are not one."""

_TOKEN = re.compile(
    r"""(?xs)
    \\Q (?P<quoted> .*? ) (?: \\E | \Z )
  | (?P<escape> \\ (?: x\{ [0-9A-Fa-f]* \} | [kg] (?: \{ \w+ \} | < \w+ > | ' \w+ ' | \d+ ) | [pP]\{ \^?\w+ \} | . ) )
  | (?P<class> \[ \^? \]? (?: \\Q .*? \\E | \\x\{ [0-9A-Fa-f]* \} | \\. | \[:\^?\w+:\] | [^\]\\] )*+ \] )
  | (?P<comment> \(\?\# [^)]* \) )
  | (?P<name> \(\? (?: P?< (?= [A-Za-z_] ) | ' ) (?P<named> \w+ ) [>'] )
  | (?P<open> \( (?: \? (?: [imsx]* (?: -[imsx]* )? : | [=!>|] | < [=!] | (?= \( ) ) | (?! [?*] ) ) )
  | (?P<item> \(\? (?: [imsx]* (?: -[imsx]+ )? | R | \d+ | & \w+ | P[>=] \w+ ) \) )
  | (?P<strange> \( [?*] .? )
  | (?P<close> \) )
  | (?P<repeat> (?: [*+?] | \{ (?P<least> \d+ ) (?: , \d* )? \} ) [+?]? )
  | (?P<or> \| )
  | (?P<space> \s+ | \# [^\n]* )
  | (?P<plain> . )"""
)
_CLASS_PART = re.compile(
    r"(?s)\\Q(?P<quoted>.*?)\\E|(?P<escape>\\(?:x\{[0-9A-Fa-f]*\}|.))|(?P<posix>\[:\^?\w+:\])|(?P<hyphens>--)|(?P<plain>.)"
)
_VERTICAL = r"\n-\r\x85\u2028\u2029"
_SAME = frozenset("AbBdDfGhKnprRsStwWxXpP")
_SAME_IN_CLASS = frozenset("bdDfhnpPrsStwWx")
_ESCAPES = {
    "z": r"\Z",
    "Z": r"(?=\n?\Z)",
    "H": r"[^\h]",
    "v": f"[{_VERTICAL}]",
    "V": f"[^{_VERTICAL}]",
    "N": r"[^\n]",
    "a": r"\x07",
    "e": r"\x1b",
    "E": "",
}
_ESCAPES_IN_CLASS = {"v": _VERTICAL, "a": r"\x07", "e": r"\x1b", "E": ""}


class PatternError(ReplError):
    """An expression that cannot be read, or that is too large (51091)."""

    code = ErrorCode.INVALID_REGEX


def translated(pattern: str, *, verbose: bool) -> tuple[str, int]:
    """`pattern` for `regex` in its version 1, and about how many nodes it becomes. PatternError."""
    out = ["(?-f)"]  # one letter is equal to one letter, as in PCRE; never `ß` to `ss`
    nodes = [0]  # of each open group, the outermost first
    last = run = 0  # nodes of the last item; items in a row without an alternative or a repetition between them
    for token in _TOKEN.finditer(pattern):
        text, kind = token[0], token.lastgroup
        if kind == "named":
            kind = "name"
        if kind == "least":
            kind = "repeat"
        match kind:
            case "comment":
                continue
            case "space" if verbose:
                continue
            case "open" | "name":
                out.append(text if kind == "open" else f"(?P<{token['named']}>")
                nodes.append(1)
                continue
            case "close":
                out.append(text)
                if len(nodes) > 1:
                    last = nodes.pop()
                    nodes[-1] += last
            case "repeat":
                out.append(text)
                times = max(int(token["least"] or 1), 1)
                nodes[-1] += (times - 1) * last
                last *= times
                run = run if token["least"] else 0
            case "or":
                out.append(text)
                run = 0
            case "strange":
                raise PatternError(f"Regular expression is invalid: {text} is not supported")
            case _:
                if run >= _LONGEST_RUN:
                    out.append(_PAUSE)
                    run = 0
                last = len(text)
                nodes[-1] += last
                run += last
                out.append(_item(token, str(kind)))
        if nodes[-1] > MOST_NODES:
            raise PatternError("Regular expression is invalid: regular expression is too large")
    return "".join(out), sum(nodes)


def _item(token: re.Match[str], kind: str) -> str:
    text = token[0]
    match kind:
        case "quoted":
            quoted = str(token["quoted"])
            parts = [quoted[at : at + _LONGEST_RUN] for at in range(0, len(quoted), _LONGEST_RUN)]
            return _PAUSE.join(re.escape(part) for part in parts)
        case "escape":
            return _escape(text, _SAME, _ESCAPES)
        case "class":
            return _class(text)
        case _:
            return r"\{" if text == "{" else text


def _escape(text: str, same: frozenset[str], others: dict[str, str]) -> str:
    letter = text[1]
    if not (letter.isascii() and letter.isalpha()) or (letter in same and not text.startswith("\\x{")):
        return text
    if letter == "x":
        number = int(text[3:-1] or "0", 16)
        if number <= 0x10FFFF:
            return rf"\U{number:08x}"
    elif letter in others:
        return others[letter]
    elif letter in "kg" and len(text) > 2:
        name = text[2:].strip("{}<>'")
        if letter == "k":
            return f"(?P={name})"
        if text[2] in "<'":
            return f"(?{name})" if name.isdigit() else f"(?&{name})"
        return rf"\g<{name}>"
    raise PatternError(f"Regular expression is invalid: {text} is not supported")


def _class(text: str) -> str:
    head = 2 if text.startswith("[^") else 1
    inner = text[head:-1]

    def part(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "quoted":
                return re.escape(found["quoted"])
            case "escape":
                return _escape(found[0], _SAME_IN_CLASS, _ESCAPES_IN_CLASS)
            case "posix":
                return found[0]
            case "hyphens":
                return r"\--" if found.start() == 0 else r"-\-"
            case _:
                return rf"\{found[0]}" if found[0] in "[]&|~" else found[0]

    return text[:head] + _CLASS_PART.sub(part, inner) + "]"
