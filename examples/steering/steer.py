"""How far an edit has to go: the LM's answers after edits of several strengths, with the prompt of the fit and another.

python steer.py --relation "country capital city" --template "The government of {} sits in"
"""

import argparse

import torch

from lre_lightning import LRE, LanguageModel, Relation, estimate, load_relations
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.prompt import make_prompts

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def steer(lm: LanguageModel, lre: LRE, relation: Relation, template: str) -> dict[str, list[float]]:
    """Edit each test subject toward the next one, and count what the LM says, at every strength.

    Returns:
        The fractions of edits after which the LM keeps its answer, gives the target's, or gives another one.
    """
    train = {subject for subject, _ in lre.origin.train}
    samples = [sample for sample in relation.samples if sample.subject not in train]
    prompts = make_prompts(lm.tokenizer, template, samples, [s for s in relation.samples if s.subject in train])
    runs = prompts_to_run(lm, prompts)
    s, o = runs.hidden_states([lre.layer])
    answers = lm.predict(o)
    known = answers == torch.tensor([prompt.object_tokens[0] for prompt in prompts], device=answers.device)
    wanted = answers.roll(-1)
    counted = known & known.roll(-1) & (answers != wanted)
    edits = lre.edit(o, o.roll(-1, 0))[:, None] * torch.tensor(STRENGTHS, device=o.device)[:, None]
    said = lm.predict(runs.patched(lre.layer, s + edits))[counted]
    kept, reached = said == answers[counted, None], said == wanted[counted, None]
    outcomes = {"own answer": kept, "target's answer": reached, "another": ~kept & ~reached}
    return {name: found.float().mean(0).tolist() for name, found in outcomes.items()}


def main(model: str, name: str, template: str, layer: int, rank: int) -> None:
    """Print a table for the template that the LRE was estimated with, and one for another template."""
    lm = LanguageModel.from_pretrained(model)
    (relation,) = load_relations(name)
    lre = estimate(lm, relation, layer, rank=rank)
    for asked in (relation.template, template):
        print(f"\n{asked}\n{'strength':16}" + "".join(f"{strength:6.2f}" for strength in STRENGTHS))
        for outcome, fractions in steer(lm, lre, relation, asked).items():
            print(f"{outcome:16}" + "".join(f"{fraction:6.2f}" for fraction in fractions))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", default="demo", help="name or folder of an LM")
    parser.add_argument("--relation", default="country capital city")
    parser.add_argument("--template", default="The government of {} sits in")
    parser.add_argument("--layer", type=int, default=2)
    parser.add_argument("--rank", type=int, default=16)
    options = parser.parse_args()
    main(options.model, options.relation, options.template, options.layer, options.rank)
