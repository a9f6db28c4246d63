"""Sentences nobody wrote: a small grammar over the vocabulary, each sentence different from every other."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bench import words

__all__ = ["Prose"]

_TOPICAL = 0.5
"""How often a word is one that this piece of text has a preference for. Text on a subject repeats its words."""
_COMMON = 0.5
"""How often a word comes from the common part of its list, as the frequent words of a language do."""


class Prose:
    """Writes pieces of text. Sentences are remembered, so that none comes twice."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._written: set[str] = set()
        self._shapes = (
            (6, self._plain),
            (5, self._after_link),
            (5, self._before_link),
            (3, self._passive),
            (3, self._with_figure),
            (3, self._reported),
            (2, self._listed),
            (2, self._question),
            (2, self._semicolon),
            (2, self._with_code),
            (2, self._request),
            (1, self._contrast),
            (1, self._aside),
        )
        self._weights = [weight for weight, _ in self._shapes]
        self.change_subject()

    def write(self, size: int) -> str:
        """About this many bytes of text, in paragraphs, on the subject at hand."""
        parts: list[str] = []
        length = 0
        while length < size - 40:
            sentence = self.sentence()
            if parts:
                parts.append("\n\n" if self._random.random() < 0.12 else " ")
            parts.append(sentence)
            length += len(sentence) + 1
        return "".join(parts)

    def sentence(self) -> str:
        """One more sentence; never the same twice."""
        while True:
            ((_, shape),) = self._random.choices(self._shapes, self._weights)
            text = shape()
            text = text[0].upper() + text[1:]
            if text not in self._written:
                self._written.add(text)
                return text

    def name(self) -> str:
        return words.invented_name(self._random)

    def change_subject(self) -> None:
        """From here on other words and names are preferred, as in a text about something else."""
        random = self._random
        self._topic = {
            words.NOUNS: random.sample(words.NOUNS, 9),
            words.VERBS: random.sample(words.VERBS, 6),
            words.ADJECTIVES: random.sample(words.ADJECTIVES, 5),
            words.ADVERBS: random.sample(words.ADVERBS, 3),
        }
        self._names = [words.invented_name(random) for _ in range(3)]
        self._identifiers = [words.identifier(random) for _ in range(2)]
        self._terms = [f"{self._adjective()} {self._noun()}" for _ in range(3)]

    def _word(self, of: tuple[str, ...]) -> str:
        chance = self._random.random()
        if chance < _TOPICAL:
            return self._random.choice(self._topic[of])
        if chance < _TOPICAL + _COMMON * (1 - _TOPICAL):
            return of[int(len(of) * self._random.random() ** 3)]
        return self._random.choice(of)

    def _noun(self) -> str:
        return self._word(words.NOUNS)

    def _verb(self) -> str:
        return self._word(words.VERBS)

    def _adjective(self) -> str:
        return self._word(words.ADJECTIVES)

    def _adverb(self) -> str:
        return self._word(words.ADVERBS)

    def _pick(self, options: Sequence[str]) -> str:
        return self._random.choice(options)

    def _common(self, options: Sequence[str]) -> str:
        """One of these, the first ones far more often."""
        return options[int(len(options) * self._random.random() ** 3)]

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _names_and_figures(self) -> str:
        random = self._random
        kind = random.random()
        if kind < 0.55:
            return random.choice(self._names) if self._chance(0.75) else self.name()
        if kind < 0.75:
            return f"the {random.choice(self._names)} {self._noun()}"
        return f"{random.randrange(2, 980)} {words.plural(self._noun())}"

    def _phrase(self, deep: bool = True) -> str:
        """Something a sentence can be about."""
        if self._chance(0.16):
            return self._names_and_figures()
        many = self._chance(0.3)
        if self._chance(0.2):
            term = self._pick(self._terms)
            head = words.plural(term) if many else term
        else:
            noun = self._noun()
            head = words.plural(noun) if many else noun
            if self._chance(0.15):
                head = f"{self._noun()} {head}"
            if self._chance(0.35):
                head = f"{self._adjective()} {head}"
        start = self._common(_FOR_MANY if many else _FOR_ONE)
        if start == "a" and head[0] in "aeiou":
            start = "an"
        phrase = f"{start} {head}".strip()
        if deep and self._chance(0.22):
            phrase += f" {self._common(words.PREPOSITIONS)} {self._phrase(deep=False)}"
        elif deep and self._chance(0.12):
            phrase += f" that {words.past(self._verb())} {self._phrase(deep=False)}"
        return phrase

    def _action(self) -> str:
        """What something does."""
        kind = self._random.random()
        verb = self._verb()
        if kind < 0.34:
            action = f"{words.past(verb)} {self._phrase()}"
        elif kind < 0.52:
            action = f"{self._common(words.MODALS)} {verb} {self._phrase()}"
        elif kind < 0.62:
            action = f"{self._pick(('is', 'was', 'has been', 'had been', 'seems', 'became'))} {self._adjective()}"
        elif kind < 0.72:
            action = f"{self._pick(('is', 'was', 'kept', 'stopped'))} {words.progressive(verb)} {self._phrase()}"
        elif kind < 0.82:
            action = (
                f"{self._pick(('tried', 'failed', 'needs', 'wants', 'agreed', 'refused'))} to {verb} {self._phrase()}"
            )
        else:
            action = (
                f"{words.past(verb)} {self._phrase()} {self._common(words.PREPOSITIONS)} {self._phrase(deep=False)}"
            )
        return f"{self._adverb()} {action}" if self._chance(0.18) else action

    def _clause(self) -> str:
        return f"{self._phrase()} {self._action()}"

    def _plain(self) -> str:
        start = f"{self._adverb()}, " if self._chance(0.15) else ""
        return f"{start}{self._clause()}."

    def _after_link(self) -> str:
        return f"{self._common(words.LINKS)} {self._clause()}, {self._clause()}."

    def _before_link(self) -> str:
        return f"{self._clause()} {self._common(words.LINKS)} {self._clause()}."

    def _passive(self) -> str:
        helper = self._pick(("was", "is being", "has been", "had been", "will be", "could be", "must be"))
        return f"{self._phrase()} {helper} {self._adverb()} {words.past(self._verb())} by {self._phrase()}."

    def _with_figure(self) -> str:
        random = self._random
        amount = random.choice(
            (f"{random.random() * 100:.1f} %", f"{random.randrange(3, 9999):,}", f"{random.random():.3f}")
        )
        unit = words.plural(self._noun())
        when = random.choice(
            (
                f"by {random.randrange(1, 29)} {self._pick(_MONTHS)}",
                f"since {random.randrange(1961, 2031)}",
                f"within {random.randrange(2, 90)} {self._pick(('days', 'hours', 'minutes', 'weeks', 'seconds'))}",
                f"at {random.randrange(24)}:{random.randrange(60):02d}",
            )
        )
        about = self._pick(("about", "nearly", "at least", "up to", "exactly"))
        return f"{self._clause()}, {about} {amount} of {unit} {when}."

    def _reported(self) -> str:
        said = self._pick(("said", "reported", "noted", "argued", "found", "wrote", "hopes", "believes", "confirmed"))
        return f"{self._names_and_figures()} {said} that {self._clause()}."

    def _listed(self) -> str:
        first, second, third = self._phrase(deep=False), self._phrase(deep=False), self._phrase(deep=False)
        return f"{self._clause()}: {first}, {second} and {third}."

    def _question(self) -> str:
        start = self._pick(
            ("why did", "how does", "when will", "could", "should", "where did", "who says that", "would")
        )
        return f"{start} {self._phrase()} {self._verb()} {self._phrase()}?"

    def _semicolon(self) -> str:
        return f"{self._clause()}; {self._clause()}."

    def _with_code(self) -> str:
        name = self._pick(self._identifiers) if self._chance(0.5) else words.identifier(self._random)
        return f"{self._clause()}, and `{name}` {self._action()}."

    def _request(self) -> str:
        start = self._pick(("please", "first", "then", "next", "do not", "never", "always", "remember to", "now"))
        return f"{start} {self._verb()} {self._phrase()} {self._common(words.LINKS)} {self._clause()}."

    def _contrast(self) -> str:
        return f"it is not {self._phrase(deep=False)} but {self._phrase()} that {self._action()}."

    def _aside(self) -> str:
        return f"{self._phrase(deep=False)} ({self._names_and_figures()}, {self._adjective()}) {self._action()}."


_FOR_ONE = ("the", "the", "the", "the", "a", "a", "this", "its", "each", "that", "our", "every", "another", "any")
_FOR_MANY = ("the", "the", "the", "some", "all", "these", "", "most", "several", "those", "our", "their", "few")
_MONTHS = ("January", "March", "April", "May", "June", "July", "August", "September", "October", "November")
