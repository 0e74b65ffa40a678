"""Translates regular expressions from PCRE's syntax, which MongoDB uses, to the syntax of the `regex` package.

`regex` reads nearly all of PCRE. What it writes differently or does not have is translated. What only `regex` has, such
as approximate matching, is refused. So are PCRE's verbs and callouts.
"""

from __future__ import annotations

import re

from replset.errors import ErrorCode, ReplError

MAX_NODES = 33_000
"""`regex` copies a repeated part as often as it must occur at least: (?:a{1000}){1000} has a million nodes."""
_MAX_RUN = 128
"""Characters in one run. `regex` makes a table for a run, in a time that grows with the cube of its length."""
_RUN_BREAK = r"(?=(?s:.)|\Z)"
"""Matches everywhere. It is put between two runs of characters so that `regex` does not join them."""

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
_UNCHANGED = frozenset("AbBdDfGhKnprRsStwWxXpP")
_UNCHANGED_IN_CLASS = frozenset("bdDfhnpPrsStwWx")
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


class PatternError(ReplError, code=ErrorCode.INVALID_REGEX):
    """An expression cannot be parsed, or it is too large (51091)."""


def translate(pattern: str, *, verbose: bool) -> tuple[str, int]:
    """Return `pattern` in the syntax of `regex` version 1, and about how many nodes it has. PatternError."""
    out = ["(?-f)"]  # one letter equals one letter, as in PCRE: `ß` never equals `ss`
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
                if run >= _MAX_RUN:
                    out.append(_RUN_BREAK)
                    run = 0
                last = len(text)
                nodes[-1] += last
                run += last
                out.append(_item(token, str(kind)))
        if nodes[-1] > MAX_NODES:
            raise PatternError("Regular expression is invalid: regular expression is too large")
    return "".join(out), sum(nodes)


def _item(token: re.Match[str], kind: str) -> str:
    text = token[0]
    match kind:
        case "quoted":
            quoted = str(token["quoted"])
            parts = [quoted[at : at + _MAX_RUN] for at in range(0, len(quoted), _MAX_RUN)]
            return _RUN_BREAK.join(re.escape(part) for part in parts)
        case "escape":
            return _escape(text, _UNCHANGED, _ESCAPES)
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
                return _escape(found[0], _UNCHANGED_IN_CLASS, _ESCAPES_IN_CLASS)
            case "posix":
                return found[0]
            case "hyphens":
                return r"\--" if found.start() == 0 else r"-\-"
            case _:
                return rf"\{found[0]}" if found[0] in "[]&|~" else found[0]

    return text[:head] + _CLASS_PART.sub(part, inner) + "]"
