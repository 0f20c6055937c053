"""Run one trial of the sweep of the paper's published code; `benchmarks.paper` starts it in an environment of its own.

It imports nothing of this project. Its argument is JSON: `code` and `baukit`, the two checkouts; `lm`, the folder of a
Llama that transformers 4.34 reads, and `start`, its start token; `relation`, a file; `layers`, `ranks` and `betas`;
`n_shot`, the number of examples; and `out`, the file that it writes, for `torch.load`.
"""

import json
import random
import sys
import time
import types

given = types.SimpleNamespace(**json.loads(sys.argv[1]))
# Of baukit only `nethook` is needed; its other modules import much more, and torchvision.
package = sys.modules["baukit"] = types.ModuleType("baukit")
package.__path__ = [f"{given.baukit}/baukit"]
sys.path.insert(0, given.code)

import torch  # noqa: E402
import transformers  # noqa: E402
from baukit import nethook  # noqa: E402

package.Trace, package.TraceDict = nethook.Trace, nethook.TraceDict
from src import data, functional, models, operators, sweeps  # noqa: E402

kept, prompts = [], []
estimate, approximate = operators.JacobianIclMeanEstimator.__call__, functional.order_1_approx


def keep_lre(estimator, relation):  # noqa: ANN001, ANN201
    """Estimate an LRE, and keep W and b, which the sweep does not return."""
    found = estimate(estimator, relation)
    kept.append({"weight": found.weight.clone(), "bias": found.bias[0].clone()})
    return found


def keep_prompt(**arguments):  # noqa: ANN003, ANN201
    """Compute a Jacobian, and keep the prompt's tokens and the position of s."""
    prompts.append([arguments["inputs"].input_ids[0].tolist(), arguments["h_index"]])
    return approximate(**arguments)


operators.JacobianIclMeanEstimator.__call__, functional.order_1_approx = keep_lre, keep_prompt
# A GPT-2 tokenizer is what the published code puts a start token before.
tokenizer = transformers.GPT2TokenizerFast(
    tokenizer_file=f"{given.lm}/tokenizer.json", **dict.fromkeys(("bos_token", "eos_token", "pad_token"), given.start)
)
model = transformers.LlamaForCausalLM.from_pretrained(given.lm, torch_dtype=torch.float32).eval()
dataset = data.load_dataset(given.relation)
random.seed(0)
began = time.perf_counter()
result = sweeps.sweep(
    mt=models.ModelAndTokenizer(model, tokenizer),
    dataset=dataset,
    h_layers=given.layers,
    n_trials=1,
    n_train_samples=given.n_shot,
    ranks=given.ranks,
    betas=given.betas,
)
seconds = time.perf_counter() - began
(trial,) = result.relations[0].trials
found = {
    "seconds": seconds,
    "prompts": prompts[: given.n_shot],
    "train": [[sample.subject, sample.object] for sample in trial.train_samples],
    "targets": {edit.source.subject: edit.target.subject for edit in trial.efficacy_trials},
    "layers": [
        lre
        | {
            "faithful": [[sample.subject for sample in at.faithfulness_successes] for at in scores.result.betas],
            "causal": [[edit.source.subject for edit in at.efficacy_successes] for at in scores.result.ranks],
        }
        for lre, scores in zip(kept, trial.layers, strict=True)
    ],
}
torch.save(found, given.out)
