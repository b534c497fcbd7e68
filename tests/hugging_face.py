"""Write tests/data/hugging_face: small models of the package ``transformers``, and their logits.

    python tests/hugging_face.py

It needs the packages torch and transformers, in an environment of their own, and nothing of this
project; it was run with torch 2.13.0 and transformers 5.23.0 on CPU.  The tests
(tests/programs/test_weights.py) read the files with `repjax.models.weights` and compare logits.
That is the one place where closeness is asked, and not bits: these are sums in another library's
order.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "data" / "hugging_face"
#: Tokens of every case: two rows.
TOKENS = np.random.default_rng(0).integers(0, 13, (2, 11))
SIZES = {"vocab_size": 13, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    **SIZES,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
#: By name: the class of the model without its ending, and its configuration.
CASES = {
    "gpt2": ("GPT2", SIZES | {"n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}),
    "llama": ("Llama", LLAMA),
    "llama_tied": ("Llama", LLAMA | {"tie_word_embeddings": True, "num_key_value_heads": 4}),
}


def main() -> None:
    import torch
    import transformers

    FOLDER.mkdir(exist_ok=True)
    logits = {"tokens": TOKENS}
    for name, (kind, sizes) in CASES.items():
        head = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[kind]
        config = getattr(transformers, f"{kind}Config")(**sizes)
        model = getattr(transformers, head)(config).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            # Biases and norms too: as initialised, they would hide a mistake.
            for parameter in model.parameters():
                shift = 1.0 if parameter.ndim == 1 else 0.0
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(shift + 0.4 * noise)
            logits[name] = model(torch.from_numpy(TOKENS)).logits.numpy()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            shutil.copy(f"{folder}/model.safetensors", FOLDER / f"{name}.safetensors")
        (FOLDER / f"{name}.safetensors").chmod(0o644)
    np.savez(FOLDER / "logits.npz", **logits)


if __name__ == "__main__":
    main()
