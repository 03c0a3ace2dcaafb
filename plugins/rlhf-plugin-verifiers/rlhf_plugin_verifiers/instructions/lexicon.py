"""Word lists and word properties that IFBench's instructions speak of."""

from __future__ import annotations

import re
import string
from importlib.util import find_spec

MARKS = string.punctuation + " "
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = words("""
Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin Harper Leo
Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla
Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan
""")
CONJUNCTIONS = frozenset({"and", "but", "for", "nor", "or", "so", "yet"})
PRONOUNS = frozenset(
    words("""
i me we us you he him she her it they them my mine our ours your yours his hers its their theirs myself ourselves
yourself yourselves himself herself itself themselves this that these those who whom whose which what whoever whomever
whatever whichever anybody anyone anything everybody everyone everything nobody nothing somebody someone something
each either neither both all some any none
""")
)
STOP_WORDS = frozenset(
    words("""
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it its
itself they them their theirs themselves what which who whom this that these those am is are was were be been being
have has had having do does did doing a an the and but if or because as until while of at by for with about against
between into through during before after above below to from up down in out on off over under again further then once
here there when where why how all any both each few more most other some such no nor not only own same so than too
very s t can will just don should now d ll m o re ve y ain aren couldn didn doesn hadn hasn haven isn ma mightn mustn
needn shan shouldn wasn weren won wouldn
""")
)
"""English function words and the pieces of contractions, as NLTK's list has them."""
CAPITALS = words("""
Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw London
Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb
""")
"""European capitals north of 45 degrees, by latitude."""
AFRICA = tuple(
    name.replace("_", " ")
    for name in words("""
algeria angola benin botswana burkina burundi cape_verde cabo_verde cameroon central_african chad comoros congo djibouti
egypt guinea eritrea eswatini swaziland ethiopia gabon gambia ghana ivory_coast d'ivoire kenya lesotho liberia libya
madagascar malawi mali mauritania mauritius morocco mozambique namibia niger rwanda sao_tome senegal seychelles
sierra_leone somalia south_africa sudan tanzania togo tunisia uganda sahara zambia zimbabwe
""")
)
"""What the names of Africa's countries hold, without accents and in lower case."""
MINOR = frozenset(
    words("a an the and but or nor for so yet as at by in of off on per to up via with from into onto over")
)
"""Words that title case may leave in lower case."""
VERBS = frozenset(
    words("""
accept achieve act add address adjust adopt aim align allow analyze answer apply approach arrange ask assess assist
assume attend avoid balance be become begin believe blend bring build buy calculate call capture carry catch celebrate
change check choose clarify clean click close collect combine come compare complete compute conduct connect consider
consult contact continue contribute convert cook count cover craft create cross cut dance decide define deliver delve
demonstrate describe design determine develop discover discuss display dive do document download draft draw dream
drink drive drop earn eat edit embrace emphasize employ enable encourage engage enhance enjoy ensure enter establish
evaluate examine execute exercise expand expect experience explain explore express extend face fill find finish fix
focus follow forget form gather generate get give go grab grow guide handle harness have help highlight hire hold hope
identify ignite illustrate imagine implement improve include increase indulge inform initiate input insert inspire
install integrate introduce invest investigate invite join jump keep know learn leave let list listen live locate look
love maintain make manage measure meet minimize mix monitor move navigate need note observe obtain offer open optimize
organize outline pack participate pay perform pick place plan play prepare present preserve prevent print prioritize
process produce promote protect prove provide publish pull push put read receive recognize recommend record reduce
reflect remember remove repeat replace report represent require research resist resolve respond review revise run save
say schedule search see seek select send separate serve set share show simplify sing sit solve speak specify spend
stand start state stay stop store strive study submit suggest summarize support take talk teach tell test think track
train transform translate travel treat try turn type understand unleash unlock update upgrade use utilize validate
verify view visit wait walk want watch weave welcome work write am is are was were been being has had does did can
will would should could may might must shall
""")
)
"""Common verbs in the base form, and auxiliaries."""
NOT_VERBS = frozenset(
    words("""
during morning evening nothing something anything everything according including regarding king spring string thing
red bed need hundred sacred naked wicked indeed speed seed feed ring wing ceiling
""")
)
_VOWELS = re.compile(r"[aeiouy]+")
_EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2300-\u23ff\u2b00-\u2bff\u2190-\u21ff\u3030\u303d"
    "\u3297\u3299\u203c\u2049\u2122\u2139\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u00a9\u00ae]"
)


def bare(text: str) -> str:
    """The text without ASCII punctuation."""
    return text.translate(_NO_PUNCTUATION)


def is_emoji(char: str) -> bool:
    """Whether one character is an emoji or a dingbat."""
    return _EMOJI.fullmatch(char) is not None


def is_verb(word: str) -> bool:
    """Whether a word that opens a sentence is a verb, by a list of common ones and by its ending."""
    word = word.lower().strip(MARKS)
    if word in VERBS or word in NOT_VERBS:
        return word in VERBS
    stems = [word[:-1], word[:-2], word[:-3], word[:-3] + "e", word[:-1] + "e"]
    inflected = word.endswith(("s", "ed", "ing")) and len(word) > 4
    return inflected and (word.endswith(("ing", "ed")) or any(s in VERBS for s in stems))


def syllables(word: str) -> int:
    """Syllables of an English word by its groups of vowels, at least one."""
    word = word.lower()
    count = len(_VOWELS.findall(word))
    if word.endswith("e") and not word.endswith(("le", "ee", "ye")) and count > 1:
        count -= 1
    if re.search(r"[^aeiouytd]ed$", word) and count > 1:
        count -= 1
    if re.search(r"[^aeiouyscxzgh]es$", word) and count > 1:
        count -= 1
    count += len(re.findall(r"ia(?!n$|l$)|eo|[^q]ua|io(?!n|u)|[^aeiou]ying$", word))
    return max(count, 1)


SEED = 0
"""langdetect draws samples of the text; a fixed seed gives one text one verdict."""
LIKELY = 0.1
"""Share of the detector's probability at which a short text's language is accepted."""
SHORT = 12
"""Words; the detector decides alone on longer texts."""
_SHARED = frozenset(words("no me he a i in an am so do on as is be s t m o y re ve d ll ma de are man on come die was"))
"""English words that other languages have too."""
ENGLISH = (STOP_WORDS | VERBS | frozenset(words("hello hi yes ok okay thanks thank please dear like good"))) - _SHARED


def installed() -> bool:
    """Whether languages can be detected here."""
    return find_spec("langdetect") is not None


def in_language(text: str, language: str) -> bool:
    """Whether a text is in a language (ISO 639-1); one without letters is in any. Of few words, where the detector
    guesses by chance, a likely language is enough, and common English words are English."""
    text = text.lower() if text.isupper() else text
    shares = _shares(text)
    if not shares or max(shares, key=shares.__getitem__) == language:
        return True
    all_words = re.findall(r"[^\W\d_]+", text.lower())
    if len(all_words) > SHORT:
        return False
    known = sum(word in ENGLISH for word in all_words)
    is_english = language == "en" and text.isascii() and 3 * known >= len(all_words)
    return is_english or shares.get(language, 0.0) >= LIKELY


def _shares(text: str) -> dict[str, float]:
    from langdetect import DetectorFactory, LangDetectException, detect_langs

    DetectorFactory.seed = SEED
    try:
        return {str(guess.lang): float(guess.prob) for guess in detect_langs(text)}
    except LangDetectException:
        return {}
