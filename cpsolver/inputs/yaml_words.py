"""What the YAML parser (ruamel.yaml 0.18 and 0.19: scanner, parser, composer) says of a text that is none."""

from __future__ import annotations

from cpsolver.inputs.language import later, recognised

_MESSAGES = (
    later("found character {character} that cannot start any token"),
    later("expected alphabetic or numeric character, but found {found}"),
    later("expected a comment or a line break, but found {found}"),
    later("expected chomping or indentation indicators, but found {found}"),
    later("expected indentation indicator in the range 1-9, but found 0"),
    later("more indented follow up line than first in a block scalar"),
    later("found unexpected end of stream"),
    later("found unexpected document separator"),
    later("found unexpected ':'"),
    later("could not find expected ':'"),
    later("sequence entries are not allowed here"),
    later("mapping keys are not allowed here"),
    later("found unknown escape character {character}"),
    later("expected escape sequence of {digits} hexdecimal numbers, but found {found}"),
    later("expected <block end>, but found {found}"),
    later("expected '<document start>', but found {found}"),
    later("found undefined tag handle {handle}"),
    later("expected ',' or ']', but got {found}"),
    later("expected ',' or '}}', but got {found}"),
    later("expected the node content, but found {found}"),
    later("found undefined alias {alias}"),
    later("special characters are not allowed"),
    later("while scanning for the next token"),
    later("while scanning a directive"),
    later("while scanning a tag"),
    later("while scanning a block scalar"),
    later("while scanning a quoted scalar"),
    later("while scanning a double-quoted scalar"),
    later("while scanning a plain scalar"),
    later("while scanning a simple key"),
    later("while scanning an {what}"),
    later("while parsing a block collection"),
    later("while parsing a block mapping"),
    later("while parsing a flow sequence"),
    later("while parsing a flow mapping"),
    later("while parsing a {what} node"),
    later("while parsing a node"),
    later("while parsing a tag"),
)


def parsers_words(text: str) -> str:
    """What the parser says, for `say` to say where people read it; rarer words stay as they are."""
    return recognised(text, _MESSAGES)
