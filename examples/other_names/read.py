"""Does an LRE made from countries' names read the capital off other words for the country? On SmolLM2.

The LRE of capitals was estimated at eight names, such as "Peru". Here it reads the last token of the adjective, of the
name in French and in capitals, and of another city of the country, in a sentence that does not ask for a capital.

python read.py
"""

import torch

from lre_lightning import LRE, LanguageModel, LRECollection
from lre_lightning.models.tokenizer import start_tokens

COUNTRIES = """
    Japan Japanese Japon JAPAN Osaka Tokyo; Germany German Allemagne GERMANY Munich Berlin;
    Italy Italian Italie ITALY Milan Rome; Russia Russian Russie RUSSIA Novosibirsk Moscow;
    Spain Spanish Espagne SPAIN Barcelona Madrid; Norway Norwegian Norvège NORWAY Bergen Oslo;
    Egypt Egyptian Égypte EGYPT Alexandria Cairo; Greece Greek Grèce GREECE Thessaloniki Athens;
    Sweden Swedish Suède SWEDEN Gothenburg Stockholm; Portugal Portuguese Portugal PORTUGAL Porto Lisbon;
    Poland Polish Pologne POLAND Krakow Warsaw; Cuba Cuban Cuba CUBA Santiago Havana;
    Peru Peruvian Pérou PERU Arequipa Lima; Iran Iranian Iran IRAN Isfahan Tehran;
    Austria Austrian Autriche AUSTRIA Salzburg Vienna; Hungary Hungarian Hongrie HUNGARY Debrecen Budapest;
    Ireland Irish Irlande IRELAND Cork Dublin; China Chinese Chine CHINA Shanghai Beijing
"""
KINDS = ("name", "adjective", "name in French", "NAME", "another city")


def right(lm: LanguageModel, lre: LRE, word: str, capital: str, layer: int) -> bool:
    """Return whether the LRE's first answer at the last token of a word, in a sentence, begins the capital's name."""
    tokenizer = lm.tokenizer
    start = start_tokens(tokenizer, lre.origin.form["start_token"])
    ids = [*start, *tokenizer(f"Yesterday we talked about {word}")["input_ids"]]
    state = lm.hidden_states(torch.tensor([ids]), [layer])[layer][0, -1]
    answer = str(tokenizer.decode([int(lm.predict(lre(state)))])).strip()
    return bool(answer) and capital.startswith(answer)


@torch.no_grad()
def main(layers: tuple[int, ...] = (0, 5, 10, 15, 20)) -> None:
    """Print how many capitals are right for each kind of word, by the layer that is read."""
    lm, lre = LanguageModel.from_pretrained("smollm2"), LRECollection.from_pretrained("smollm2")["country capital city"]
    seen = {subject for subject, _ in lre.origin.train}
    rows = [words for line in COUNTRIES.split(";") if (words := line.split())[0] not in seen]
    print("capitals that are right, of countries that the LRE was not made from, by the layer that is read")
    print(" " * 14, "   of", *(f"{layer:>5}" for layer in layers))
    for kind, name in enumerate(KINDS):
        asked = [words for words in rows if words[kind] not in words[:kind]]  # not the names that are alike in French
        counts = [sum(right(lm, lre, words[kind], words[-1], layer) for words in asked) for layer in layers]
        print(f"{name:>14}", *(f"{count:>5}" for count in (len(asked), *counts)))


if __name__ == "__main__":
    main()
