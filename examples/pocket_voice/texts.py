"""Short sentences of a bounded vocabulary, and how its words are pronounced."""

from __future__ import annotations

import random

HELD_OUT = 60
"""The last sentences of a list: never trained on, only used to judge."""

_WORDS = {
    "who": "the teacher|my brother|our neighbor|the doctor|the old man|the young woman|my friend|"
    "the farmer|her sister|his father|your mother|the driver|the little girl|the baker|"
    "the children|the boys|my parents|the captain|her uncle|the students",
    "did": "bought|carried|opened|washed|painted|sold|dropped|moved|wanted|lost|cleaned|found|"
    "needed|watched|repaired|forgot|liked|borrowed",
    "do": "bring|take|open|close|wash|paint|move|clean|keep|leave|carry|watch",
    "how": "red|green|yellow|blue|white|black|brown|small|large|heavy|new|old|cheap|broken|warm|"
    "cold|clean|dirty|empty|beautiful|strange|wooden",
    "what": "book|table|chair|window|door|letter|bottle|basket|lamp|car|bicycle|boat|jacket|shirt|"
    "mirror|picture|box|clock|pencil|garden|kitchen|bridge|dog|horse|cat|bird|fish|apple|"
    "cake|potato|cup|plate|knife|hammer|ladder|piano|guitar|bag|hat|blanket",
    "many": "books|letters|bottles|chairs|apples|cakes|potatoes|horses|birds|pictures|pencils|"
    "shirts|plates|flowers|boxes|tickets",
    "count": "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|many|some|no",
    "where": "in the kitchen|near the river|behind the house|on the table|under the bridge|"
    "at the station|in the garden|beside the road|at school|in the village|by the window|"
    "at the market|on the floor|in the forest|near the church|at home|in the city|on the hill",
    "when": "today|yesterday|last night|in the morning|before dinner|after lunch|on monday|"
    "this week|in the evening|last summer|on friday|after breakfast|every winter",
    "mood": "happy|tired|angry|hungry|late|ready|quiet|busy|sick|alone",
    "whose": "my|your|his|her|our|the",
}
_FORMS = (
    "{who} {did} the {how} {what} {when}",
    "{who} {did} {whose} {what} {where}",
    "{who} {did} {count} {many} {when}",
    "{who} found a {how} {what} {where}",
    "there was a {how} {what} {where}",
    "there were {count} {how} {many} {where}",
    "please {do} the {how} {what} {when}",
    "please {do} {whose} {what} and the {many}",
    "do you see the {what} {where}",
    "did {who} like the {how} {many}",
    "the {what} is {how} and the {what} is {how}",
    "i think the {what} will be {how} {when}",
    "we saw {count} {many} {where} {when}",
    "{who} and {who} were {mood} {when}",
    "{who} will be {mood} {when}",
)


def sentences(count: int, seed: int = 0) -> list[str]:
    """Return different sentences in lower case that end in a full stop."""
    rng = random.Random(seed)  # noqa: S311 - not cryptography
    choices = {name: words.split("|") for name, words in _WORDS.items()}
    unique: dict[str, None] = {}
    while len(unique) < count:
        words = rng.choice(_FORMS).replace("{", " {").split()
        parts = [rng.choice(choices[w[1:-1]]) if w.startswith("{") else w for w in words]
        unique[" ".join(parts) + "."] = None
    return list(unique)


def vocabulary() -> list[str]:
    """Return every word of the sentences, sorted."""
    text = " ".join([*_WORDS.values(), *_FORMS])
    words = text.replace("|", " ").split()
    return sorted({word for word in words if not word.startswith("{")})


def pronunciations() -> dict[str, str]:
    """Return espeak's phonemes for every word; a phoneme is one character."""
    from piper.phonemize_espeak import EspeakPhonemizer

    phonemizer = EspeakPhonemizer()
    said = {word: "".join(phonemizer.phonemize("en-us", word)[0]) for word in vocabulary()}
    return said | {"a": "ɐ"}  # alone, the letter's name
