"""Sentences of what knows no language but English: of wrong models, chips and configurations, and the YAML parser's."""

from __future__ import annotations

from cpsolver.inputs.language import later, recognised

_MESSAGES = (
    # Whole sentences; one that stands before others is looked for before them. Fields hold such sentences too.
    later("{name} must be at most {most}"),
    later("unknown efficiency {names}; known: {known}"),
    later("efficiency {name} is a fraction, not {value}"),
    later("{left} but {right}: {why}"),
    later("{left} but {right}"),
    later("{name} {value} is more than {bound} {limit}"),
    later("{name} {value} is not a multiple of {other} {divisor}: give head_dim"),
    later("{name} {value} is not a multiple of {other} {divisor}"),
    later("no {precision} matrix peak is known"),
    later("no memory capacity is known"),
    later("no memory bandwidth is known"),
    later("no scale-up bandwidth is known"),
    later("no network (scale-out) bandwidth is known"),
    later("no bandwidth of the link to the host (host_link) is known"),
    later("its matrix units have no {blocks} (block_formats)"),
    # Why two fields contradict each other.
    later("how many experts a token visits"),
    later("how many experts there are"),
    later("the feed-forward width of one expert"),
    later("how far the other layers see"),
    later("which layers have that width"),
    later("which layers have that many"),
    later("what the other layers are"),
    later("which layers are state space (M)"),
    later("a width of kind {kinds}"),
    later("it has {amount} key-value heads"),
    later("as many"),
    later("fewer"),
    later("the rows of the position table"),
    later("must be less"),
    later("must not be more"),
    later("must be {only}"),
    later("some layers have a dense MLP"),
    later("its layers are alike, with full attention"),
    later("not a multiple of it"),
    later("which layers it has"),
    # What a field is.
    later("neither {first} nor {second} is"),
    later("{first} and {second}"),
    later("{name} is not given ({default})"),
    later("{name} is not given"),
    later("{name} is given"),
    later("{name} has no {letter} layers"),
    later("{name} has {count} numbers"),
    later("{name} has {count} letters"),
    later("{name} has {count} {letter} layers"),
    later("{name} is {value}"),
)
_CONFIGURATIONS = (  # Why a Hugging Face configuration cannot be read.
    later("is not a family that can be read"),
    later("leaves the text model's sizes to defaults that it does not say: give that model's own {file}"),
    later("has a key whose value is of another kind than {family} has it: {error}"),
    later("{first} or {second} or {third} is missing, or no whole number"),
    later("{first} or {second} is missing, or no whole number"),
    later("{name} is missing, or no whole number"),
    later("{name} must be at most {most}"),
    later("word_embed_proj_dim differs from hidden_size"),
    later("norms behind the blocks ({key}: false)"),
    later("norms without weights ({key}: false)"),
    later("neither {first} nor {second} says which layer is what"),
    later("neither {first} nor {second} says which layer compresses keys how far"),
    later("sparse attention with an indexer is not supported"),
    later("sliding windows"),
    later("{key}: blocks of an unknown name"),
    later("{key}: projections of state-space layers with biases"),
    later("{key}: full attention is not in every n-th layer"),
    later("{key}: no n-th layer is full"),
    later("{key}: not every fourth is full"),
    later("{key}: layers without experts in places that no rule tells"),
    later("{key}: dense layers behind those with experts"),
    later("{key}: experts beside the dense block of a layer"),
    later("{key}: layers that use another's keys and values"),
    later("{key}: embeddings for every layer"),
    later("{key}: not identity"),
    later("{key}: windows in the layers from {first} on alone, which no rule tells"),
    later("{key}: neither a number nor a list of 0 for dense layers at the start and 1 for all others"),
    later("{key}: a list of 0 for dense layers at the start and 1 for all others"),
    later("{key}: a norm for each head of its own"),
    later("{key}: norms of queries and keys with biases"),
    later("{key}: norms of queries and keys in the encoder"),
    later("{key}: a pooling head behind the encoder"),
)
_YAML = (  # What the YAML parser says (ruamel.yaml 0.18 and 0.19: scanner, parser, composer).
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
    later("expected a digit or '.', but found {found}"),
    later("expected a digit, but found {found}"),
    later("expected ' ', but found {found}"),
    later("expected '!', but found {found}"),
    later("expected '!' but found {found}"),
    later("expected '>' but found {found}"),
    later("expected URI, but found {found}"),
    later("expected URI escape sequence of 2 hexdecimal numbers, but found {found}"),
    later("found non-comment content after document end marker, {found}"),
    later("found duplicate YAML directive"),
    later("found incompatible YAML document (version 1.* is required)"),
    later("duplicate tag handle {handle}"),
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
    later("while scanning an anchor"),
    later("while scanning an alias"),
    later("while scanning an {what}"),
    later("while parsing an {what}"),
    later("while parsing a block collection"),
    later("while parsing a block mapping"),
    later("while parsing a flow sequence"),
    later("while parsing a flow mapping"),
    later("while parsing a {what} node"),
    later("while parsing a node"),
    later("while parsing a tag"),
)
_SEPARATOR = "; "


def as_messages(text: str) -> str:
    """Such a sentence, or several between semicolons, for `say` to say wherever people read it: English until then."""
    first, _, rest = text.partition(_SEPARATOR)
    if rest and not text.startswith("unknown efficiency "):
        return later("{first}; {second}", first=as_messages(first), second=as_messages(rest))
    return recognised(text, _MESSAGES)


def configuration_reason(text: str) -> str:
    """Why a configuration cannot be read, likewise."""
    return recognised(text, _CONFIGURATIONS)


def parsers_words(text: str) -> str:
    """What the YAML parser says of a text that is none, likewise."""
    return recognised(text, _YAML)
